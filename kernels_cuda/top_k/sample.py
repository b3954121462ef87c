"""A threshold from the largest keys of groups of lanes, of one block or all blocks of a cluster."""

from numba import cuda, types

from kernels_cuda.ptx import (
    cluster_address,
    cluster_arrive,
    cluster_wait,
    load_shared_u32x4,
    shared_address,
    shuffle_xor_u32,
    store_cluster_u32,
    warp_add,
    warp_inclusive_sum,
    warp_max,
    warp_min,
)
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.shapes import SINGLE_PASS_WARPS, VECTOR_BYTES, WARP_LANES

u32 = types.uint32

# Each group is a part of a warp, the smaller, the fewer blocks there are.
N_GROUPS = 256
_GROUPS_PER_LANE = N_GROUPS // WARP_LANES


@linked_function
def send_maximum(group_maxima, best, rank, cluster_bits, lane, warp):
    """Hand the largest key of each group of neighbouring lanes to all blocks of the cluster.

    The more blocks, the fewer groups a warp has; a group has twice as many lanes as there are blocks.
    """
    lane_bits = cluster_bits + 1
    group_lanes = u32(1) << lane_bits
    distance = u32(1)
    while distance < group_lanes:
        best = max(best, shuffle_xor_u32(best, distance))
        distance <<= 1
    group = (((rank * SINGLE_PASS_WARPS + warp) << 5) + lane) >> lane_bits
    receiver = lane & (group_lanes - 1)
    if cluster_bits != 0:
        # All blocks have begun.
        cluster_wait()
        if receiver < group_lanes >> 1:
            store_cluster_u32(cluster_address(shared_address(group_maxima) + group * 4, receiver), best)
        cluster_arrive()
        cluster_wait()
    else:
        group_maxima[group] = best
        cuda.syncthreads()


@linked_function
def sample_threshold(group_maxima, n_selected, lane):
    """Return a key that at least `n_selected` groups reach, and few more; 0 if not so many reach any other.

    If more do because they have that key, the groups up to one that is returned as well are enough of them;
    otherwise that is `N_GROUPS`. One warp bisects the range of the keys.
    """
    keys = cuda.local.array(_GROUPS_PER_LANE, u32)
    at = shared_address(group_maxima) + lane * VECTOR_BYTES
    for half in range(2):
        word = 4 * half
        keys[word], keys[word + 1], keys[word + 2], keys[word + 3] = load_shared_u32x4(
            at + WARP_LANES * VECTOR_BYTES * half
        )
    lowest = keys[0]
    highest = keys[0]
    for number in range(1, _GROUPS_PER_LANE):
        lowest = min(lowest, keys[number])
        highest = max(highest, keys[number])
    lowest = warp_min(lowest)
    highest = warp_max(highest)
    reaching = u32(N_GROUPS)
    most = n_selected + (n_selected >> 3) + 1
    while lowest < highest and reaching > most:
        middle = highest - ((highest - lowest) >> 1)
        count = u32(0)
        for number in range(_GROUPS_PER_LANE):
            count += u32(keys[number] >= middle)
        count = warp_add(count)
        if count >= n_selected:
            lowest = middle
            reaching = count
        else:
            highest = middle - 1
    last_group = u32(N_GROUPS)
    if reaching > most:
        above = u32(0)
        for number in range(_GROUPS_PER_LANE):
            above += u32(keys[number] > lowest)
        needed = n_selected - warp_add(above)
        last_group = u32(0)
        before = u32(0)
        for half in range(2):
            ties = u32(0)
            for number in range(4):
                ties += u32(keys[4 * half + number] == lowest)
            through = before + warp_inclusive_sum(ties)
            if through - ties < needed <= through:
                last_group = u32(N_GROUPS // 2 * half) + lane * 4 + 3
            before = warp_max(through)
        last_group = warp_max(last_group)
    return lowest, last_group
