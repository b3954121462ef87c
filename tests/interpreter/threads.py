"""The threads of blocks that run at the same time: their identities and their registers."""

import numpy as np

from tests.interpreter.memory import RANK_BITS, SIGNED, UNSIGNED, SharedMemory
from tests.interpreter.messages import Messages
from tests.interpreter.program import round_up
from tests.random_cases import SEED

WARP_LANES = 32


class Threads:
    """Threads that begin a kernel.

    Parameters
    ----------
    program : Program
        The kernel.
    sizes : Sizes
        Of its launch.
    first_block, n_blocks : int
        Which blocks begin.

    Attributes
    ----------
    count : int
        How many threads there are.
    blocks, warps, lanes, numbers : array
        For each thread: its block among those that run and its warp among theirs, its lane, and its number in
        the block.
    clusters : array
        For each thread, its cluster among those that run.
    shared, local : SharedMemory, array
        Their memory.
    copies : _Copies
        What is on its way to shared memory.
    messages : Messages
        The barriers that wait for messages.
    """

    def __init__(self, program, sizes, first_block, n_blocks):
        self._program, self._registers = program, {}
        self.first_block = first_block
        self.count = n_blocks * sizes.n_threads
        threads = np.arange(self.count)
        self.numbers = threads % sizes.n_threads
        self.blocks = threads // sizes.n_threads
        self.clusters = self.blocks // sizes.n_cluster
        self.lanes = (self.numbers % WARP_LANES).astype(np.uint32)
        warps_per_block = -(-sizes.n_threads // WARP_LANES)
        self.warps = self.blocks * warps_per_block + self.numbers // WARP_LANES
        n_bytes = round_up(program.shared_end + sizes.shared_bytes, 16)
        assert n_bytes < 1 << RANK_BITS
        block_of_warp = np.arange(warps_per_block * n_blocks) // warps_per_block
        self.shared = SharedMemory(n_blocks, sizes.n_cluster, n_bytes, block_of_warp)
        self.copies = _Copies(self)
        self.messages = Messages(self.shared, block_of_warp)
        # Registers hold noise until they are written.
        self._noise = np.random.default_rng(SEED)
        self.local = self._noise.integers(0, 256, (self.count, program.local_bytes), np.uint8)
        self._special = self._special_registers(sizes)

    def _special_registers(self, sizes):
        lane = np.uint64(1) << self.lanes.astype(np.uint64)
        before, all_lanes = lane - np.uint64(1), np.uint64(0xFFFFFFFF)
        one, zero = np.ones(self.count, int), np.zeros(self.count, int)
        blocks = self.first_block + self.blocks
        return {
            "%tid.x": self.numbers,
            "%ntid.x": one * sizes.n_threads,
            "%ctaid.x": blocks,
            "%nctaid.x": one * sizes.n_grid,
            "%laneid": self.lanes,
            "%warpid": self.numbers // WARP_LANES,
            "%lanemask_lt": before,
            "%lanemask_le": before | lane,
            "%lanemask_eq": lane,
            "%lanemask_gt": all_lanes ^ (before | lane),
            "%lanemask_ge": all_lanes ^ before,
            "%cluster_ctarank": blocks % sizes.n_cluster,
            "%cluster_ctaid.x": blocks % sizes.n_cluster,
            "%cluster_nctarank": one * sizes.n_cluster,
            "%cluster_nctaid.x": one * sizes.n_cluster,
            "%clusterid.x": blocks // sizes.n_cluster,
            "%dynamic_smem_size": one * sizes.shared_bytes,
            "%clock": zero,
            **{f"%{name}.{axis}": zero for name in ("tid", "ctaid") for axis in "yz"},
            **{f"%{name}.{axis}": one for name in ("ntid", "nctaid") for axis in "yz"},
        }

    def lane_masks(self, chosen):
        """Return for each warp the mask of those of its lanes that are among the chosen threads."""
        masks = np.zeros(self.warps[-1] + 1, np.uint32)
        np.bitwise_or.at(masks, self.warps[chosen], np.uint32(1) << self.lanes[chosen])
        return masks

    def special(self, name):
        """Return a special register of all threads."""
        return self._special[name]

    def register(self, name):
        """Return a register of all threads."""
        found = self._registers.get(name)
        if found is None:
            bits = self._program.registers[name].bits
            kind = np.bool_ if bits == 1 else UNSIGNED[bits]
            found = self._registers[name] = self._noise.integers(0, 2**bits, self.count, kind)
        return found

    def write(self, name, threads, values):
        """Write values to a register of some threads; narrower signed ones are extended."""
        if name == "_":
            return
        register = self.register(name)
        if values.dtype.kind == "i":
            values = values.astype(SIGNED[register.itemsize * 8]).view(register.dtype)
        register[threads] = values.astype(register.dtype)


class _Copies:
    """Words that threads copy to shared memory while they go on, in groups of each thread."""

    def __init__(self, threads):
        self._threads = threads
        self._groups = np.zeros(threads.count, np.int64)
        self._under_way = []

    def begin(self, chosen, addresses, words, text):
        """Begin a copy of one word for each of some threads."""
        self._under_way.append((chosen, self._groups[chosen], addresses, words, text))

    def end_group(self, chosen):
        """End the current group of some threads."""
        self._groups[chosen] += 1

    def wait(self, chosen, n_left):
        """Complete what threads have begun, but for the last `n_left` groups; all of it if that is -1."""
        waits = np.zeros(self._threads.count, bool)
        waits[chosen] = True
        left = []
        for threads, groups, addresses, words, text in self._under_way:
            is_done = waits[threads] & (groups < self._groups[threads] - n_left)
            warps = self._threads.warps[threads[is_done]]
            self._threads.shared.store(addresses[is_done], words[is_done], 32, warps, text)
            if not is_done.all():
                rest = (each[~is_done] for each in (threads, groups, addresses, words))
                left.append((*rest, text))
        self._under_way = left
