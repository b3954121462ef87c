"""How the kernels divide rows and shared memory: the sizes that launches and kernels agree on.

These follow from how the kernels work. What may be tuned is in `policy`.
"""

from typing import NamedTuple

WARP_LANES = 32
# Rows are read in vectors of this size, whatever the elements.
VECTOR_BYTES = 16
# The table of row offsets has four int64 for each row.
OFFSETS_BYTES = 32
OFFSETS_THREADS = 256
# Threads of the kernels that reorder by index: for short rows, and for all others.
BY_INDEX_THREADS = (32, 512)
# Blocks whose warps reorder a row each, and how many selected elements a lane of them has.
REORDER_THREADS = 256
REORDER_ITEMS = (1, 4)
# A row's threshold, and what a part of it selects, are an int64 each.
PART_BYTES = 8

# Groups of vectors (`groups`, `grid`).
VECTORS_PER_LANE = 8
CHUNK_VECTORS = WARP_LANES * VECTORS_PER_LANE
LARGEST_LANE_BITS = 3
# The stages that a block goes through: maxima of coarse groups, of fine groups, and elements.
ELEMENTS, FINE, COARSE = range(3)
# A fine group has 1 << FINE_BITS vectors.
FINE_BITS = 3
FINE_PER_CHUNK = CHUNK_VECTORS >> FINE_BITS
# Fine groups of transposed rows are smaller: an element that is read again takes a memory sector of its own.
TRANSPOSED_FINE_BITS = {1: 1, 2: 1, 4: 1, 8: 2}
MAXIMA_THREADS = 256
MAXIMA_WARPS = MAXIMA_THREADS // WARP_LANES
# Rows of a block that finds the maxima of transposed rows, which lie side by side.
TRANSPOSED_ROWS = 32
# Vectors that a thread loads before it uses the first, in filter passes.
VECTORS_AHEAD = 4


def group_key_bytes(element_size: int) -> int:
    """Return the bytes of a group maximum in memory."""
    return max(4, element_size)


def fine_bits(element_size: int, is_transposed: bool) -> int:
    """Return the bits of the number of vectors of a fine group."""
    return TRANSPOSED_FINE_BITS[element_size] if is_transposed else FINE_BITS


# Blocks that order candidates still take this many more than twice k, rather than filter once more.
SPARE_CANDIDATES = 64
# Bins that candidates are ordered by.
BINS_PER_THREAD = 4
# A block orders up to this many candidates by position too, that is for k up to 128. It leaves more of them
# to another launch.
MOST_ORDERED_TWICE = 2 * 128 + SPARE_CANDIDATES


class BlockShape(NamedTuple):
    """What a block of the block kernel holds: candidates, group maxima in their place, and listed groups."""

    n_threads: int
    n_slots: int
    n_groups: int
    n_candidate_groups: int
    key_bytes: int

    @property
    def list_offset(self) -> int:
        """Where the list lies in dynamic shared memory; it is also the order of the candidates."""
        offset = max(self.n_slots * (self.key_bytes + 4), self.n_groups * self.key_bytes)
        return -(-offset // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def bins_offset(self) -> int:
        """Where the bins lie that the candidates are ordered by."""
        size = max(4 * self.n_candidate_groups, 2 * self.n_slots)
        return self.list_offset + -(-size // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def dynamic_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        return self.bins_offset + 4 * BINS_PER_THREAD * self.n_threads

    @property
    def shared_bytes(self) -> int:
        """All shared memory of a block, at most."""
        return self.dynamic_bytes + block_static_bytes(self.n_threads)


def block_static_bytes(n_threads: int) -> int:
    """Return the shared memory that the block kernel has of its own, at most."""
    return 4 * n_threads + 1024


class ColumnShape(NamedTuple):
    """How a block of the columns kernel uses its shared memory: warps, and slots for candidates per lane."""

    n_warps: int
    n_slots: int
    first_position: int
    shared_bytes: int


POSITION_BYTES = 2
# From a slot of a lane to its next.
POSITION_STEP = WARP_LANES * POSITION_BYTES
# Positions of candidates count within a part of a column.
LONGEST_COLUMN_PART = 1 << 8 * POSITION_BYTES
# Rows of a chunk; two chunks are loaded ahead, enough for the memory's latency.
CHUNK_ROWS = {1: 16, 2: 16, 4: 16, 8: 8}


def column_key_bytes(element_size: int) -> int:
    """Return the bytes of a candidate's key."""
    return max(element_size, 2)


def spare_candidates(k: int) -> int:
    """Return how many more than k candidates of a column may stay, to find a threshold soon."""
    return max(2, k // 4)


# Slots for candidates of a warp of the warp kernel: for those at or above a threshold, and for all elements
# of a row that is ranked without one.
FEW_SLOTS = 64
MANY_SLOTS = 256
WARP_KERNEL_THREADS = 256
WARP_KERNEL_WARPS = WARP_KERNEL_THREADS // WARP_LANES
# A lane gives its two largest elements to the search for a threshold: with a larger k, these may not do.
WARP_LARGEST_K = 32


def vectors_per_lane(element_size: int, n_elements: int) -> int:
    """Return how many vectors each lane of a warp holds of rows of up to `n_elements`."""
    return -(-n_elements * element_size // (WARP_LANES * VECTOR_BYTES))


def warp_shared_bytes(element_size: int, n_slots: int) -> int:
    """Return the dynamic shared memory of a block whose warps have `n_slots` slots each."""
    return WARP_KERNEL_WARPS * n_slots * (12 if element_size == 8 else 8)


class RoundsShape(NamedTuple):
    """What holds a row of the rounds kernel: lanes of a warp, and keys of each."""

    n_lanes: int
    n_keys: int

    @property
    def n_elements(self) -> int:
        """The longest row."""
        return self.n_lanes * self.n_keys


ROUNDS_THREADS = 128
# Lanes of short rows remember several of the selected positions each.
ROUNDS_LARGEST_K = 8


# Blocks of a cluster have these threads, and a vector of a row for each of them in a step.
CLUSTER_THREADS = 1024
CLUSTER_WARPS = CLUSTER_THREADS // WARP_LANES
CLUSTER_STEP_BYTES = CLUSTER_THREADS * VECTOR_BYTES
LARGEST_CLUSTER = 16
# Bins that keys are counted in: a thread has two of them.
CLUSTER_BINS = 2 * CLUSTER_THREADS
# The most that clusters select: the bins of a block have room for so many keys.
CLUSTER_LARGEST_K = 4096
# What one block orders of what is selected.
SMALLEST_CLUSTER_CHUNK = 128
LARGEST_CLUSTER_CHUNK = 1024
# A cluster selects few elements, of at most so many bytes each, if it has enough groups for each of them: a
# block has one per lane. There is room for so many candidates, and so many of one block.
FEW_LARGEST_ELEMENT = 4
FEW_GROUPS_PER_SELECTED = 4
FEW_CANDIDATES = 256
FEW_CANDIDATES_OF_BLOCK = 64

# The one-pass kernel has blocks of either size, and room for so many candidates: at most one for each thread.
ONE_PASS_ELEMENTS = (2, 4)
ONE_PASS_THREADS = (512, 1024)
ONE_PASS_LARGEST_K = 128
ONE_PASS_CANDIDATES = 512
# It looks for a threshold among at least so many maxima, and so many for each selected element.
ONE_PASS_FEWEST_MAXIMA = 256
ONE_PASS_MAXIMA_PER_SELECTED = 4
# It counts positions in 32 bits, and vectors of a group in 16.
ONE_PASS_LONGEST_ROW = 1 << 29


def one_pass_maxima(k: int) -> int:
    """Return among how many maxima a block looks for a threshold, a power of two."""
    return max(ONE_PASS_FEWEST_MAXIMA, 1 << (k * ONE_PASS_MAXIMA_PER_SELECTED - 1).bit_length())


def cluster_sort_bytes(element_size: int) -> int:
    """Return the room for all keys that are ordered: in chunks, with a vector between them."""
    return CLUSTER_LARGEST_K * max(4, element_size) + LARGEST_CLUSTER * VECTOR_BYTES


def cluster_static_bytes(element_size: int) -> int:
    """Return the shared memory that the cluster kernel has besides the keys of a row, at most."""
    chunk_bytes = LARGEST_CLUSTER_CHUNK * (max(4, element_size) + 4)
    return max(cluster_sort_bytes(element_size), 24 << 10) + chunk_bytes + 512


# Radix sorts (`tile`, `sort`).
DIGIT_BITS = 8
N_DIGITS = 1 << DIGIT_BITS
# An entry of a row's histogram.
COUNT_BYTES = 8
CLEARING_THREADS = 256
CLEARED_BYTES = VECTOR_BYTES * CLEARING_THREADS
# Large blocks, for each adds its counts to those of the whole row.
COUNTING_THREADS = 1024
# Elements that a thread counts at a time.
COUNTED_PER_THREAD = 8
COUNTED_ELEMENTS = COUNTING_THREADS * COUNTED_PER_THREAD
# Counts of elements, with two bits of state, fit into 32 bits for rows below this.
NARROW_COUNTS = 1 << 30


class SortTile(NamedTuple):
    """What a block of the sort kernel takes of a row, and the limit on its registers."""

    n_threads: int
    n_items: int
    max_registers: int

    @property
    def n_elements(self) -> int:
        """Elements of a tile."""
        return self.n_threads * self.n_items


# By the bytes of a pair: what is best for few tiles, all of which run at once, and for many. Both are of the
# same number of elements.
SORT_TILES = {8: (SortTile(384, 16, 80), SortTile(256, 24, 80)), 16: (SortTile(384, 8, 56),)}


def pair_bytes(element_size: int, position_size: int = 4) -> int:
    """Return the bytes of a pair of a key and a position: a word of 8 bytes for both, or one for each."""
    return 8 if max(element_size, position_size) <= 4 else 16


class TileShape(NamedTuple):
    """What a block of the tile kernel sorts: `n_items` elements per thread."""

    n_threads: int
    n_items: int

    @property
    def n_elements(self) -> int:
        """The longest row."""
        return self.n_threads * self.n_items

    def dynamic_bytes(self, element_size: int) -> int:
        """Return the dynamic shared memory in which a block exchanges keys, then positions."""
        return self.n_elements * max(4, element_size)

    def shared_bytes(self, element_size: int) -> int:
        """Return all shared memory of a block: it also counts digits per warp, in 16 bits, and adds them."""
        return self.dynamic_bytes(element_size) + self.n_threads // WARP_LANES * N_DIGITS * 2 + TILE_SUMS * 4


# Sums of a block's warps, twice 32.
TILE_SUMS = 64


# Histograms of the partition kernel.
PARTITION_BIN_BITS = 11
PARTITION_BINS = 1 << PARTITION_BIN_BITS
# Shared memory of a block besides, at most.
PARTITION_STATIC_BYTES = 1024
# The most that a block sorts of what it selects, and bytes of a warp's counters.
SORTED_PAIRS = 4096
WARP_COUNTER_BYTES = 2 * N_DIGITS


def pair_counters_offset(element_size: int, k: int, n_threads: int) -> int:
    """Return where a block that sorts what it selects counts: behind as many pairs for each thread."""
    return -(-k // n_threads) * n_threads * pair_bytes(element_size)


def pair_sort_bytes(element_size: int, k: int, n_threads: int) -> int:
    """Return the shared memory of a block that sorts what it selects: pairs, and counters of each warp."""
    counter_bytes = n_threads // WARP_LANES * WARP_COUNTER_BYTES
    return pair_counters_offset(element_size, k, n_threads) + counter_bytes


class PartitionShape(NamedTuple):
    """What a block of the partition kernel holds: `n_keys` elements per thread."""

    n_threads: int
    n_keys: int

    @property
    def n_elements(self) -> int:
        """The longest row."""
        return self.n_threads * self.n_keys

    def dynamic_bytes(self, element_size: int, k: int, is_sorted: bool) -> int:
        """Return the dynamic shared memory for a histogram, and then for what is selected."""
        n_bytes = k * pair_bytes(element_size)
        if is_sorted:
            n_bytes = pair_sort_bytes(element_size, k, self.n_threads)
        # Keys that are in no bin are counted behind the last one.
        return max(4 * (PARTITION_BINS + 1), n_bytes)


# The sampled algorithm. A warp lists what reaches the threshold of a row segment by segment, while others of
# its segments are on their way to shared memory.
SEGMENT_VECTORS_PER_LANE = 8
# The alignment of what a thread marks, 8 neighbouring vectors: their addresses differ in three bits. Dynamic
# shared memory does not have that.
STAGE_ALIGNMENT = SEGMENT_VECTORS_PER_LANE * VECTOR_BYTES
SEGMENT_VECTORS = WARP_LANES * SEGMENT_VECTORS_PER_LANE
# What is known of a segment, and of a row: its threshold (8 bytes), and two counters.
SEGMENT_BYTES = 8
ROW_STATE_BYTES = 16
LISTING_THREADS = 128
LISTING_WARPS = LISTING_THREADS // WARP_LANES
# Of two segments for each warp.
LISTING_WORDS = 2 * LISTING_WARPS * SEGMENT_VECTORS * VECTOR_BYTES // 4
# Threads that choose a row's threshold, and that finish a row.
SAMPLED_THREADS = 512


def segment_elements(element_size: int) -> int:
    """Return the elements of a segment."""
    return SEGMENT_VECTORS * VECTOR_BYTES // element_size


def sample_rank(sample_size: int, k: int, n_elements: int) -> int:
    """Return the rank in a sample that surely does not come before the k-th element of the row.

    About k of the row's elements come before it, `expected` of them in the sample, give or take the root of
    that: 5 roots are less than a quarter of it and 25.

    Examples
    --------
    >>> sample_rank(4096, 2048, 131072), sample_rank(4096, 32, 131072)
    (113, 34)
    """
    expected = -(-sample_size * k // n_elements)
    return expected + expected // 4 + 33


def list_slots(sample_size: int, k: int, n_elements: int) -> int:
    """Return the room for a row's candidates: the elements that so many of the sample stand for, and 2k.

    Examples
    --------
    >>> list_slots(4096, 2048, 131072)
    5632
    """
    most = most_of_sample(sample_rank(sample_size, k, n_elements))
    stood_for = -(-(most + most // 4 + 25) * n_elements // sample_size)
    return -(-max(stood_for, 2 * k) // 128) * 128


def most_of_sample(rank: int) -> int:
    """Return how many of the sample may be at or above the threshold, for a rank."""
    return rank + rank // 16


def candidate_bytes(element_size: int, n_slots: int, k: int) -> int:
    """Return the shared memory for a row's candidates, or for those selected and what sorts them."""
    listed_bytes = n_slots * (group_key_bytes(element_size) + 4)
    return max(listed_bytes, pair_sort_bytes(element_size, k, SAMPLED_THREADS))


def selected_offset(element_size: int, n_slots: int, n_segments: int, k: int, is_sorted: bool) -> int:
    """Return where a block that finishes a row lists candidates: behind bins, if these are to be sorted."""
    bins_bytes = 4 * BINS_PER_THREAD * SAMPLED_THREADS if is_sorted else 0
    return candidate_bytes(element_size, n_slots, k) + 8 * n_segments + bins_bytes


# What blocks of the sampled algorithm have of their own, at most: a histogram, and sums.
SAMPLED_STATIC_BYTES = 4 * SAMPLED_THREADS + 1024
