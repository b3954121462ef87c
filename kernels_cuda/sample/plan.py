"""The plan of `sample` on a GPU.

Rows without k, top_p and min_p have kernels of their own, and so have shards of rows. A small k is left to
the plan of `top_k`, which lists the elements that take part in the workspace, and a kernel draws from these.
The general kernel takes all other rows: those with a share or a large k. One block draws the token of a row,
or one cluster of blocks where there are few rows.

The slots of all launches are x, the parameters that are arrays, the output and the workspace, which also has
the dimensions of rows if there are more than `NARROW_DEPTH`.
"""

from typing import NamedTuple

from kernels_cpu import foreign
from kernels_cpu.integers import ceil_div, product
from kernels_cpu.plan_words import (
    ALGORITHM,
    CONTENT,
    END,
    KERNEL,
    N_LAST_POINTERS,
    N_POINTERS,
    N_VALUES,
    NULL_SLOT,
    Words,
    begin_launch,
    begin_plan,
    put_last_pointer,
    put_pointer,
    put_value,
    put_values,
)
from kernels_cpu.problems import WHOLE_ROWS
from kernels_cpu.sample.problem_words import (
    AXIS_SIZE,
    COUNT,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    FORMATS,
    INDEX_SIZE,
    MANTISSA,
    MIN_P,
    N_DIMS,
    N_PARAMETERS,
    OUTPUT_STRIDE,
    SIZE,
    STAGE,
    STRIDES,
    TOP_P,
    VALUES,
    X_STEP,
    X_STRIDE,
)
from kernels_cpu.top_k import problem_words as of_top_k
from kernels_cuda.device_words import (
    ARCH,
    BLOCK_SHARED_BYTES,
    MULTIPROCESSORS,
    PLANNED,
    ROOM,
    TOO_LONG,
    WORKSPACE_ALIGNMENT,
)
from kernels_cuda.kernel_keys import kernel_key
from kernels_cuda.layout import LAUNCH_WORDS, place, wide_table, wide_table_words
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER
from kernels_cuda.sample.parameters import (
    FROM_TOP_K,
    GROUP,
    KEPT_BYTES,
    KEPT_KERNEL,
    LISTED_KERNEL,
    LISTED_WARPS,
    MOST_LISTED,
    MOST_LISTED_OF_GIVEN,
    MOST_SLOTS,
    NARROW_DEPTH,
    PAIR,
    ROWS_KERNEL,
    SHARDS_KERNEL,
    SLOT_BYTES,
    THREADS,
    UNFILTERED_KERNEL,
    VECTOR,
    WARPS,
)
from kernels_cuda.top_k.plan import plan_selection
from kernels_cuda.top_k.policy import KEPT_SHARE
from kernels_cuda.top_k.problem import select

NOTHING, LISTED, BLOCKS, CLUSTERS_OF_BLOCKS, KEPT = range(5)
"""The algorithms."""
_CLUSTER_ARCH = 10 * CLUSTERS_FROM[0] + CLUSTERS_FROM[1]
# The words of a device that are of `sample` follow those that `top_k` reads.
CLUSTER_ELEMENTS, MOST_BLOCKS = KEPT_SHARE + 1, KEPT_SHARE + 2
_ONE = 0x3FF << 52  # of float64
_LISTED_SHARE = 8  # where k is an array, `top_k` lists at most one element in so many
_MOST_LISTED_ROWS = 1 << 31


class Policy(NamedTuple):
    """Thresholds, which follow the words of the device; tests plan with others to force an algorithm."""

    # A cluster of blocks shares a row of at least so many elements.
    cluster_elements: int = 16384
    # The most blocks that are launched; each takes one row after the other.
    most_blocks: int = 1 << 20


class Filters(NamedTuple):
    """How the elements of a problem's rows are filtered."""

    n_listed: int
    """Elements of each row that `top_k` lists; 0 if it lists none."""
    are_all_listed: int
    """No row has another k."""
    are_none: int
    """All elements of all rows take part."""


def _filters_of(problem: Words, n_rows: int) -> Filters:
    if problem[STAGE] != WHOLE_ROWS:
        return Filters(0, 0, 1)
    n, count = problem[AXIS_SIZE], problem[VALUES + COUNT]
    is_given, is_counted = problem[FORMATS + COUNT] != 0, 0 < count < n
    n_listed = 0
    if is_given:
        n_listed = min(MOST_LISTED_OF_GIVEN, n // _LISTED_SHARE)
    elif is_counted and count <= MOST_LISTED:
        n_listed = count
    if problem[N_DIMS] > NARROW_DEPTH or n_rows > _MOST_LISTED_ROWS:
        n_listed = 0
    has_shares = problem[FORMATS + TOP_P] != 0 or problem[FORMATS + MIN_P] != 0
    is_default = problem[VALUES + TOP_P] == _ONE and problem[VALUES + MIN_P] == 0
    are_none = not has_shares and is_default and not is_given and not is_counted
    return Filters(n_listed, int(n_listed > 0 and not is_given), int(are_none))


def _bytes_of(format_word: int) -> int:
    """Return the bytes of an element of a parameter."""
    if format_word >= 52 or 16 <= format_word <= 17:
        return 8
    return 2 if format_word in (7, 10) else 4


def plan(problem: Words, device: Words, table: Words, out: Words) -> int:
    """Plan the tokens of all rows; `TOO_LONG` if there is no room for the words."""
    n_dims, n_rows = problem[N_DIMS], 1
    for d in range(n_dims):
        n_rows = product(n_rows, problem[DIMS + DIMENSION * d])
    begin_plan(out, NOTHING)
    n_far = n_dims * DIMENSION if n_dims > NARROW_DEPTH else 0
    if 2 * LAUNCH_WORDS + wide_table_words(n_far) > device[ROOM]:
        return TOO_LONG
    if n_rows == 0:
        return PLANNED
    filters, workspace, far_at = _filters_of(problem, n_rows), _workspace_slot(problem), 0
    if n_far > 0:
        far = wide_table(out, workspace, n_far)
        far_at = far.workspace_at
        for i in range(n_far):
            out[place(far, i)] = _dimension_word(problem, n_dims, i)
    if filters.n_listed > 0:
        of_elements = n_rows * filters.n_listed * problem[ELEMENT_SIZE]
        indices_at = ceil_div(of_elements, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        status = _put_selection(problem, device, table, out, filters.n_listed, indices_at)
        if status != PLANNED or out[END] + 2 * LAUNCH_WORDS > device[ROOM]:
            begin_plan(out, NOTHING)
            return TOO_LONG
        kernel = kernel_key(LISTED_KERNEL, problem[ELEMENT_SIZE])
        begin_launch(out, kernel, ceil_div(n_rows, LISTED_WARPS), 32 * LISTED_WARPS, 0, 1)
        put_pointer(out, workspace, 0)
        put_pointer(out, workspace, indices_at)
        _put_operands(problem, out, n_rows, 0, filters.n_listed, NULL_SLOT, 0)
    out[ALGORITHM] = LISTED
    if filters.are_all_listed == 0:
        shape = _shape_of(problem, device, filters, n_rows)
        out[ALGORITHM] = CLUSTERS_OF_BLOCKS if shape.cluster > 1 else BLOCKS
        if shape.family == KEPT_KERNEL:
            out[ALGORITHM] = KEPT
        n_clusters = min(n_rows, max(device[MOST_BLOCKS] // shape.cluster, 1))
        kernel = kernel_key(shape.family, problem[ELEMENT_SIZE], shape.cluster)
        begin_launch(out, kernel, n_clusters * shape.cluster, THREADS, shape.shared_bytes, shape.cluster)
        slot = workspace if n_far > 0 else NULL_SLOT
        _put_operands(problem, out, n_rows, shape.segment, filters.n_listed, slot, far_at)
    return PLANNED


class Shape(NamedTuple):
    """How rows are shared among blocks and their warps."""

    family: int
    """The kernel's number in `FAMILIES`."""
    cluster: int
    """Blocks that share a row."""
    segment: int
    """Elements of a row that each warp has; the last warps may have fewer, or none."""
    shared_bytes: int
    """Dynamic shared memory of a block."""


def _shape_of(problem: Words, device: Words, filters: Filters, n_rows: int) -> Shape:
    """Return how rows are shared: by as many blocks as pay, as measured on an H200 for various sizes."""
    n, element_size = problem[AXIS_SIZE], problem[ELEMENT_SIZE]
    can_share = device[ARCH] >= _CLUSTER_ARCH and n >= device[CLUSTER_ELEMENTS]
    # Without filters, more blocks per row pay only while no multiprocessor runs two of them.
    n_beside = device[MULTIPROCESSORS]
    family = UNFILTERED_KERNEL
    if problem[STAGE] != WHOLE_ROWS:
        family = SHARDS_KERNEL
    elif filters.are_none == 0:
        # Finding where top_p ends takes so long that they pay even where some multiprocessors run two blocks,
        # though not where all do.
        family, n_beside = ROWS_KERNEL, n_beside * 3 // 2
    elif can_share and product(n_rows, PORTABLE_CLUSTER) <= min(2 * n_beside, device[MOST_BLOCKS]):
        # Each cluster keeps one row and takes no other, and a multiprocessor has room for two blocks.
        # The last warp draws, and should have nothing else to do.
        segment = _segment(n, element_size, WARPS * PORTABLE_CLUSTER - 1)
        # Pairs of vectors of each thread.
        n_slots = ceil_div(segment * element_size, PAIR * VECTOR) * 2
        kept_bytes = n_slots * SLOT_BYTES
        if n_slots <= MOST_SLOTS and kept_bytes + KEPT_BYTES <= device[BLOCK_SHARED_BYTES]:
            return Shape(KEPT_KERNEL, PORTABLE_CLUSTER, segment, kept_bytes)
    cluster = PORTABLE_CLUSTER if can_share else 1
    while cluster > 1 and product(n_rows, cluster) > n_beside:
        cluster //= 2
    segment = _segment(n, element_size, WARPS * cluster)
    group = GROUP * VECTOR // element_size
    if family != ROWS_KERNEL and segment > group:
        # Whole groups are faster to add up, and then only the row's first and last groups are ragged. The
        # last warps may have nothing to do. Segments of at most a group stay: rounding would idle most warps.
        segment = ceil_div(segment, group) * group
    return Shape(family, cluster, segment, 0)


def _segment(n: int, element_size: int, n_warps: int) -> int:
    """Return how many elements of a row each of `n_warps` warps has: a multiple of 32, thus whole vectors."""
    # One vector more, as a row may begin within a vector.
    return ceil_div(ceil_div(n + VECTOR // element_size, n_warps), 32) * 32


def _put_selection(
    problem: Words, device: Words, table: Words, out: Words, n_listed: int, indices_at: int
) -> int:
    """Put launches that list the first elements of each row, in order, and their indices of 32 bits."""
    words = foreign.stack_integers(of_top_k.DIMS + NARROW_DEPTH * of_top_k.DIMENSION)
    n_dims, element_size, n = problem[N_DIMS], problem[ELEMENT_SIZE], problem[AXIS_SIZE]
    for i in range(of_top_k.DIMS + n_dims * of_top_k.DIMENSION):
        words[i] = 0
    flip = (1 << (8 * element_size - 1)) - 1
    words[of_top_k.ELEMENT_SIZE], words[of_top_k.INDEX_SIZE] = element_size, 4
    # Of 8 bytes, the sign is an integer with a sign.
    words[of_top_k.SIGN], words[of_top_k.FLIP] = -flip - 1 if element_size == 8 else flip + 1, flip
    words[of_top_k.INFINITY] = _infinity(element_size, problem[MANTISSA])
    words[of_top_k.LARGEST], words[of_top_k.NAN_LAST], words[of_top_k.IS_SORTED] = 1, 1, 1
    words[of_top_k.K], words[of_top_k.AXIS_SIZE], words[of_top_k.MAX_LENGTH] = n_listed, n, n
    words[of_top_k.X_STEP], words[of_top_k.VALUE_STEP], words[of_top_k.INDEX_STEP] = problem[X_STEP], 1, 1
    words[of_top_k.N_DIMS] = n_dims
    stride = n_listed
    for d in range(n_dims - 1, -1, -1):
        at, given = of_top_k.DIMS + d * of_top_k.DIMENSION, DIMS + d * DIMENSION
        words[at + of_top_k.SIZE] = problem[given + SIZE]
        words[at + of_top_k.X_STRIDE] = problem[given + X_STRIDE]
        words[at + of_top_k.VALUE_STRIDE] = stride
        words[at + of_top_k.INDEX_STRIDE] = stride
        stride *= problem[given + SIZE]
    end = indices_at + ceil_div(4 * stride, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
    # The slot of the workspace is the second one after that of values.
    selection = select(words, device)._replace(
        value_area=0, index_area=indices_at, reserved=end, outputs_at=_workspace_slot(problem) - 2
    )
    first = out[END]
    status = plan_selection(words, device, table, selection, out)
    while status == PLANNED and first < out[END]:
        out[first + KERNEL] = out[first + KERNEL] | FROM_TOP_K
        n_pointers = out[first + N_POINTERS] + out[first + N_LAST_POINTERS]
        first += CONTENT + 2 * n_pointers + out[first + N_VALUES]
    return status


def _workspace_slot(problem: Words) -> int:
    """Return the slot after those of x, the parameters that are arrays, and the output."""
    slot = 2
    for i in range(N_PARAMETERS):
        slot += int(problem[FORMATS + i] != 0)
    return slot


def _infinity(element_size: int, mantissa: int) -> int:
    """Return the bits of infinity."""
    return ((1 << (8 * element_size - 1 - mantissa)) - 1) << mantissa


def _put_operands(
    problem: Words, out: Words, n_rows: int, segment: int, n_listed: int, far_slot: int, far_at: int
) -> None:
    """Put the operands of all kernels: the arrays of the call, and `Parameters`."""
    n_dims, n, element_size = problem[N_DIMS], problem[AXIS_SIZE], problem[ELEMENT_SIZE]
    mantissa, slot = problem[MANTISSA], 1
    put_pointer(out, 0, 0)
    for i in range(N_PARAMETERS):
        if problem[FORMATS + i] != 0:
            put_pointer(out, slot, 0)
            slot += 1
        else:
            put_pointer(out, NULL_SLOT, 0)
    put_pointer(out, slot, 0)
    put_values(out, (n_rows, n, problem[X_STEP] * element_size, segment, mantissa))
    put_values(out, (_infinity(element_size, mantissa), problem[INDEX_SIZE], n_listed, n_dims))
    for at in range(FORMATS, VALUES + N_PARAMETERS):
        put_value(out, problem[at])
    n_near = n_dims * DIMENSION if n_dims <= NARROW_DEPTH else 0
    for i in range(NARROW_DEPTH * DIMENSION):
        put_value(out, _dimension_word(problem, n_dims, i) if i < n_near else 0)
    put_last_pointer(out, far_slot, far_at)


def _dimension_word(problem: Words, n_dims: int, i: int) -> int:
    """Return an integer of the dimensions, the fastest first, with strides in bytes."""
    number = i // DIMENSION
    field = i - number * DIMENSION
    word = problem[DIMS + DIMENSION * (n_dims - 1 - number) + field]
    if field == SIZE:
        return word
    if field == X_STRIDE:
        return word * problem[ELEMENT_SIZE]
    if field == OUTPUT_STRIDE:
        return word * problem[INDEX_SIZE]
    return word * _bytes_of(problem[FORMATS + field - STRIDES])
