"""The plan of NONZERO_COORDINATES: the choice of an algorithm, and the launches of each step.

The plan is a function of integers, which is compiled as it stands (`plan_words`). Its launches have the slots
`X`, `COORDINATES`, `COUNTED` and `WORKSPACE`. The `STEP` of a problem says what is planned:

=========  ===========================================================================================
`WHOLE`    coordinates and count
`COUNT`    the count, with what `EXPAND` needs left in the workspace
`EXPAND`   coordinates, after `COUNT` for the same input, whose alignment is the same; `CAPACITY` is how
           many there are, or more
=========  ===========================================================================================
"""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div, total
from kernels_cpu.nonzero_coordinates.problem_words import (
    CAPACITY,
    COLUMN_STEP,
    COORDINATE_RESIDUE,
    COORDINATE_SIZE,
    COUNT,
    COUNT_SIZE,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    EXPAND,
    FILLS,
    MAGNITUDE,
    N_DIMS,
    N_SIZES,
    ONE_FILL,
    ROW_STEP,
    STEP,
    WHOLE,
    X_RESIDUE,
    fill_of,
)
from kernels_cpu.plan_words import (
    END,
    NULL_SLOT,
    Words,
    begin_launch,
    begin_plan,
    put_pointer,
    put_value,
    put_values,
    take_workspace,
    wait_for_last,
)
from kernels_cuda.device_words import (
    MULTIPROCESSORS,
    OWN_WORDS,
    PLANNED,
    ROOM,
    TOO_LONG,
    WORKSPACE_ALIGNMENT,
)
from kernels_cuda.kernel_keys import kernel_key
from kernels_cuda.layout import (
    LAUNCH_WORDS,
    NARROW_DEPTH,
    NARROW_LIMIT,
    Table,
    divisor,
    fill_dimension,
    is_wide,
    narrow_table,
    place,
    put_columns,
    wide_table,
    wide_table_words,
)
from kernels_cuda.nonzero_coordinates.parameters import (
    COUNT_KERNEL,
    EXPAND_KERNEL,
    EXPAND_THREADS,
    FILLED_WORDS,
    GENERAL_COLUMNS,
    GRANULE,
    MASK_KERNEL,
    MASK_STRIDED_KERNEL,
    MASK_THREADS,
    MASK_TRANSPOSED_KERNEL,
    SCAN_KERNEL,
    SCAN_THREADS,
    SMALL_KERNEL,
    SMALL_LIMIT,
    TRANSPOSED_THREADS,
    Columns,
    Dims,
    ExpandParameters,
    MaskParameters,
    SmallParameters,
    TransposedMaskParameters,
    block_elements,
    small_threads,
)

X, COORDINATES, COUNTED, WORKSPACE = range(4)
ONE_BLOCK, CONTIGUOUS, STRIDED, TRANSPOSED = range(4)
"""The algorithms: one block does everything, or how the mask is made."""

# A start that is not on a 16-byte boundary adds fewer elements than these.
_MOST_SKIPPED = 15
_N_COLUMNS = len(Dims._fields) - 1
_COLUMN_FIELDS = len(Columns._fields)


class Policy(NamedTuple):
    """Thresholds, which follow the words of the device; tests plan with others to force an algorithm."""

    # Inputs that one block does everything for, and coordinates that it may fill.
    small_elements: int = SMALL_LIMIT
    small_fill: int = 1 << 16
    # Counts that every block of `expand` may read: 32 KiB from L2.
    direct_granules: int = 8192
    most_granules_per_tile: int = 4
    fill_rows_per_block: int = 1 << 13
    # Transposed matrices of fewer rows waste most of what is loaded.
    transposed_rows: int = 16
    # Inputs, and outputs, of more elements are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT
    narrow_rows: int = NARROW_LIMIT


def _policy(device: Words) -> Policy:
    return Policy(
        small_elements=device[OWN_WORDS],
        small_fill=device[OWN_WORDS + 1],
        direct_granules=device[OWN_WORDS + 2],
        most_granules_per_tile=device[OWN_WORDS + 3],
        fill_rows_per_block=device[OWN_WORDS + 4],
        transposed_rows=device[OWN_WORDS + 5],
        narrow_elements=device[OWN_WORDS + 6],
        narrow_rows=device[OWN_WORDS + 7],
    )


def _size(problem: Words, i: int) -> int:
    """Return the size of the dimension whose coordinates are column `i`."""
    size: int = problem[DIMS + DIMENSION * problem[N_DIMS] + i]
    return size


def _n_elements(problem: Words) -> int:
    number = 1
    for i in range(problem[N_SIZES]):
        if _size(problem, i) == 0:
            return 0
    for i in range(problem[N_DIMS]):
        number *= problem[DIMS + DIMENSION * i]
    return number


def plan(problem: Words, device: Words, out: Words) -> int:
    """Choose the kernels that list the non-zero elements, and put the launches of a step."""
    policy = _policy(device)
    n_elements = _n_elements(problem)
    if _is_small(problem, policy, n_elements):
        begin_plan(out, ONE_BLOCK)
        _put_small(problem, n_elements, out)
        return PLANNED
    mask = _mask(problem, policy, n_elements)
    begin_plan(out, mask.kind)
    areas = _take_areas(problem, mask, out)
    has_rows = problem[N_SIZES] > 0 and problem[CAPACITY] > 0
    is_direct = problem[STEP] == WHOLE and has_rows and mask.n_granules <= policy.direct_granules
    if problem[STEP] != EXPAND:
        if _put_mask(problem, device, mask, areas, out) == TOO_LONG:
            return TOO_LONG
        if not is_direct:
            _put_scan(problem, mask, areas, out)
    if problem[STEP] != COUNT and has_rows:
        return _put_expand(problem, device, policy, mask, areas, is_direct, out)
    return PLANNED


def _is_small(problem: Words, policy: Policy, n_elements: int) -> bool:
    """Return whether one block does everything."""
    n_columns = problem[N_SIZES]
    if n_columns > GENERAL_COLUMNS or is_wide(n_elements, problem[N_DIMS], policy.narrow_elements):
        return False
    if problem[FILLS] and n_columns > 0 and problem[CAPACITY] > policy.small_fill // n_columns:
        return False
    return 0 < n_elements <= policy.small_elements


def _put_small(problem: Words, n_elements: int, out: Words) -> None:
    """Put the one launch for a few elements; with no rows to write it only counts."""
    kernel = kernel_key(SMALL_KERNEL, problem[ELEMENT_SIZE], 0, 0)
    begin_launch(out, kernel, 1, small_threads(n_elements), 0, 1)
    wait_for_last(out)
    put_pointer(out, X, 0)
    put_pointer(out, COORDINATES, 0)
    put_pointer(out, NULL_SLOT if problem[STEP] == EXPAND else COUNTED, 0)
    parameters = SmallParameters(
        end=n_elements,
        magnitude=problem[MAGNITUDE],
        capacity=0 if problem[STEP] == COUNT else problem[CAPACITY],
        row_bytes=problem[ROW_STEP] * problem[COORDINATE_SIZE],
        column_bytes=problem[COLUMN_STEP] * problem[COORDINATE_SIZE],
        coordinate_size=problem[COORDINATE_SIZE],
        n_columns=problem[N_SIZES],
        fills=problem[FILLS],
        count_size=problem[COUNT_SIZE],
    )
    put_values(out, parameters)
    put_value(out, max(problem[N_DIMS], 1))
    table = narrow_table(out, _N_COLUMNS)
    _fill_table(problem, out, table, NARROW_DEPTH, wide=False)
    _put_columns(problem, out, 0, problem[N_SIZES], GENERAL_COLUMNS, wide=False)


def _fill_table(problem: Words, out: Words, table: Table, depth: int, wide: bool) -> None:
    """Fill in the dimensions of the input, or one of a single element."""
    n_dims = problem[N_DIMS]
    if n_dims == 0:
        fill_dimension(out, table, depth, 0, 1, wide)
    for i in range(n_dims):
        at, d = DIMS + DIMENSION * i, n_dims - 1 - i
        fill_dimension(out, table, depth, d, problem[at], wide)
        out[place(table, 3 * depth + d)] = problem[at + 1] * problem[ELEMENT_SIZE]


def _period(problem: Words, first: int) -> int:
    """Return how many elements share the coordinates in the columns before `first`."""
    period = 1
    for i in range(first, problem[N_SIZES]):
        period *= _size(problem, i)
    return period


def _put_columns(problem: Words, out: Words, first: int, n_columns: int, depth: int, wide: bool) -> None:
    """Put `Columns`, each field as `depth` integers, for `n_columns` columns from `first` on.

    Nothing is divided where there are no elements, or no columns.
    """
    at = out[END]
    for _ in range(_COLUMN_FIELDS * depth):
        put_value(out, 0)
    if problem[N_SIZES] == 0:
        return
    is_empty = _n_elements(problem) == 0
    for c in range(depth):
        by = divisor(1 if is_empty or c >= n_columns else _period(problem, first + c + 1), wide)
        out[at + c] = by.multiplier
        out[at + depth + c] = by.shift
        out[at + 2 * depth + c] = by.size
        if c < n_columns:
            out[at + 3 * depth + c] = fill_of(problem, first + c)


class Mask(NamedTuple):
    """The mask, and how it is made."""

    kind: int
    """The algorithm."""
    wide: int
    """Whether elements of a strided input are counted in 63 bits."""
    n_elements: int
    skipped: int
    n_granules: int
    """The elements; those from the 16-byte boundary before a contiguous input to it; the granules of both."""


def _mask(problem: Words, policy: Policy, n_elements: int) -> Mask:
    n_dims = problem[N_DIMS]
    is_contiguous = n_elements <= 1 or (n_dims == 1 and problem[DIMS + 1] == 1)
    wide = is_wide(n_elements, n_dims, policy.narrow_elements)
    skipped, kind = 0, STRIDED
    if is_contiguous:
        skipped, kind = problem[X_RESIDUE] // problem[ELEMENT_SIZE], CONTIGUOUS
    elif not wide and _are_transposed(problem, policy):
        kind = TRANSPOSED
    n_granules = 0
    if n_elements:
        # In this order, no sum is too large.
        n_granules = n_elements // GRANULE + ceil_div(n_elements % GRANULE + skipped, GRANULE)
    return Mask(kind, 1 if wide else 0, n_elements, skipped, n_granules)


def _are_transposed(problem: Words, policy: Policy) -> bool:
    """Return whether the input is matrices with contiguous columns, and mask words lie within rows."""
    n_dims = problem[N_DIMS]
    if n_dims not in (2, 3):
        return False
    row_at, column_at = DIMS + DIMENSION * (n_dims - 2), DIMS + DIMENSION * (n_dims - 1)
    has_rows = problem[row_at] >= policy.transposed_rows
    return problem[row_at + 1] == 1 and has_rows and problem[column_at] % 32 == 0


class Areas(NamedTuple):
    """Where the areas of the workspace begin, of which the mask is the first."""

    mask: int
    counts: int
    prefix: int


def _take_areas(problem: Words, mask: Mask, out: Words) -> Areas:
    """Take the areas of the workspace for a mask that is written in blocks, wherever the input begins."""
    block = block_elements(problem[ELEMENT_SIZE]) if mask.kind == CONTIGUOUS else GRANULE
    blocks = mask.n_elements // block + ceil_div(mask.n_elements % block + _MOST_SKIPPED, block)
    n_granules = blocks * (block // GRANULE)
    return Areas(
        mask=take_workspace(out, n_granules * (GRANULE // 8), WORKSPACE_ALIGNMENT),
        counts=take_workspace(out, n_granules * 4 + 16, WORKSPACE_ALIGNMENT),
        prefix=take_workspace(out, n_granules * 8 + 8, WORKSPACE_ALIGNMENT),
    )


def _put_mask(problem: Words, device: Words, mask: Mask, areas: Areas, out: Words) -> int:
    """Put the launches that make the mask and count; the table of a wide kernel is written first."""
    if mask.n_elements == 0:
        return PLANNED
    if mask.kind == TRANSPOSED:
        _put_transposed_mask(problem, areas, out)
        return PLANNED
    element_size = problem[ELEMENT_SIZE]
    wide = mask.wide != 0
    n_dims = max(problem[N_DIMS], 1)
    is_strided = mask.kind == STRIDED
    kernel = kernel_key(MASK_KERNEL, element_size, 0, 0)
    per_block = block_elements(element_size)
    table = Table(0, 0)
    if is_strided:
        kernel = kernel_key(MASK_STRIDED_KERNEL, element_size, mask.wide, 0)
        per_block = GRANULE
        if wide:
            if wide_table_words(_N_COLUMNS * n_dims) + LAUNCH_WORDS > device[ROOM] - out[END]:
                return TOO_LONG
            table = wide_table(out, WORKSPACE, _N_COLUMNS * n_dims)
            _fill_table(problem, out, table, n_dims, wide)
    end = total(mask.n_elements, mask.skipped)
    begin_launch(out, kernel, ceil_div(end, per_block), MASK_THREADS, 0, 1)
    wait_for_last(out)
    put_pointer(out, X, -mask.skipped * element_size)
    put_pointer(out, WORKSPACE, areas.mask)
    put_pointer(out, WORKSPACE, areas.counts)
    put_values(out, MaskParameters(mask.skipped, end, _word_magnitude(problem)))
    if is_strided:
        put_value(out, n_dims)
        if wide:
            put_columns(out, WORKSPACE, table, _N_COLUMNS, n_dims)
        else:
            table = narrow_table(out, _N_COLUMNS)
            _fill_table(problem, out, table, NARROW_DEPTH, wide)
    return PLANNED


def _word_magnitude(problem: Words) -> int:
    """Return the magnitude of every element of a word of 32 bits, or of an element of 64."""
    magnitude: int = problem[MAGNITUDE]
    if problem[ELEMENT_SIZE] < 4:
        magnitude *= 0xFFFFFFFF // ((1 << (8 * problem[ELEMENT_SIZE])) - 1)
    return magnitude


def _put_transposed_mask(problem: Words, areas: Areas, out: Words) -> None:
    """Put the launches that fill the mask of matrices with contiguous columns, and count."""
    element_size = problem[ELEMENT_SIZE]
    at = DIMS + DIMENSION * (problem[N_DIMS] - 2)
    height = problem[at]
    width = problem[at + DIMENSION]
    column_stride = problem[at + DIMENSION + 1]
    n_matrices = 1
    batch_stride = 0
    if problem[N_DIMS] == 3:
        n_matrices = problem[DIMS]
        batch_stride = problem[DIMS + 1]
    n_row_tiles = ceil_div(height, 32)
    row_words = width // 32
    n_word_tiles = ceil_div(row_words, FILLED_WORDS)
    n_units = n_matrices * n_row_tiles * n_word_tiles
    n_words = n_matrices * height * row_words
    n_blocks = ceil_div(n_units, TRANSPOSED_THREADS // 32)
    kernel = kernel_key(MASK_TRANSPOSED_KERNEL, element_size, 0, 0)
    begin_launch(out, kernel, n_blocks, TRANSPOSED_THREADS, 0, 1)
    put_pointer(out, X, 0)
    put_pointer(out, WORKSPACE, areas.mask)
    parameters = TransposedMaskParameters(
        magnitude=problem[MAGNITUDE],
        n_units=n_units,
        height=height,
        n_row_tiles=n_row_tiles,
        row_words=row_words,
        n_word_tiles=n_word_tiles,
        batch_bytes=batch_stride * element_size,
        column_bytes=column_stride * element_size,
    )
    put_values(out, parameters)
    n_blocks = ceil_div(n_words * 32, GRANULE)
    begin_launch(out, kernel_key(COUNT_KERNEL, 0, 0, 0), n_blocks, TRANSPOSED_THREADS, 0, 1)
    put_pointer(out, WORKSPACE, areas.mask)
    put_pointer(out, WORKSPACE, areas.counts)
    put_value(out, n_words)


def _put_scan(problem: Words, mask: Mask, areas: Areas, out: Words) -> None:
    """Put the launch that adds up the counts, and writes the count."""
    begin_launch(out, kernel_key(SCAN_KERNEL, 0, 0, 0), 1, SCAN_THREADS, 0, 1)
    put_pointer(out, WORKSPACE, areas.counts)
    put_pointer(out, WORKSPACE, areas.prefix)
    put_pointer(out, COUNTED, 0)
    put_value(out, mask.n_granules)
    put_value(out, problem[COUNT_SIZE])


class Tiles(NamedTuple):
    """Granules per tile, and how many tiles and blocks there are."""

    n_granules: int
    number: int
    n_blocks: int


def _tiles(problem: Words, device: Words, policy: Policy, mask: Mask) -> Tiles:
    per_tile = policy.most_granules_per_tile
    while per_tile > 1 and mask.n_granules < 2 * device[MULTIPROCESSORS] * per_tile:
        per_tile //= 2
    number = ceil_div(mask.n_granules, per_tile)
    n_blocks = max(number, 1)
    if problem[FILLS]:
        fill_blocks = problem[CAPACITY] // policy.fill_rows_per_block
        n_blocks = max(n_blocks, min(fill_blocks, 8 * device[MULTIPROCESSORS]))
    return Tiles(per_tile, number, n_blocks)


def _put_expand(
    problem: Words, device: Words, policy: Policy, mask: Mask, areas: Areas, is_direct: bool, out: Words
) -> int:
    """Put the launches that write the rows, a group of columns each.

    If they are direct, their blocks add up counts themselves, and the first launch writes the count.
    """
    wide, per_launch = mask.n_elements > policy.narrow_rows, problem[N_SIZES]
    if wide or per_launch > 4:
        per_launch = GENERAL_COLUMNS
    tiles = _tiles(problem, device, policy, mask)
    kernel = kernel_key(EXPAND_KERNEL, per_launch, problem[COORDINATE_SIZE], 1 if wide else 0)
    for first in range(0, problem[N_SIZES], per_launch):
        if out[END] + LAUNCH_WORDS > device[ROOM]:
            return TOO_LONG
        begin_launch(out, kernel, tiles.n_blocks, EXPAND_THREADS, 0, 1)
        put_pointer(out, WORKSPACE, areas.mask)
        put_pointer(out, WORKSPACE, areas.counts)
        if is_direct:
            put_pointer(out, NULL_SLOT, 0)
        else:
            put_pointer(out, WORKSPACE, areas.prefix)
        put_pointer(out, COORDINATES, first * problem[COLUMN_STEP] * problem[COORDINATE_SIZE])
        put_pointer(out, COUNTED if is_direct and first == 0 else NULL_SLOT, 0)
        n_columns = min(per_launch, problem[N_SIZES] - first)
        put_values(out, _expand_parameters(problem, mask, tiles, first, n_columns, wide))
        _put_columns(problem, out, first, n_columns, per_launch, wide)
    return PLANNED


def _expand_parameters(
    problem: Words, mask: Mask, tiles: Tiles, first: int, n_columns: int, wide: bool
) -> ExpandParameters:
    """Return the parameters of the launch for `n_columns` columns from `first` on, before their divisors."""
    size = problem[COORDINATE_SIZE]
    row_step = problem[ROW_STEP]
    column_step = problem[COLUMN_STEP]
    offset = first * column_step * size
    vector = min(size * (n_columns if n_columns in (2, 4) else 1), 16)
    is_contiguous = (column_step == 1 or n_columns == 1) and row_step == n_columns
    is_packed = 1 if is_contiguous and (problem[COORDINATE_RESIDUE] + offset) % vector == 0 else 0
    by = divisor(_period(problem, first) if mask.n_elements else 1, wide)
    return ExpandParameters(
        n_granules=mask.n_granules,
        granules_per_tile=tiles.n_granules,
        n_tiles=tiles.number,
        skipped=mask.skipped,
        capacity=problem[CAPACITY],
        row_bytes=row_step * size,
        column_bytes=column_step * size,
        is_packed=is_packed,
        fills=problem[FILLS],
        fills_cells=is_packed if problem[FILLS] == ONE_FILL else 0,
        count_size=problem[COUNT_SIZE],
        n_columns=n_columns,
        multiplier=by.multiplier,
        shift=by.shift,
        period=by.size,
    )
