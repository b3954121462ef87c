"""The plan of DIAGONAL_MATRIX1: the one choice of an algorithm, and the launches of each.

The plan is a function of integers, which is compiled as it stands (`plan_words`). Its launches have the slots
`X`, `OUTPUT` and `WORKSPACE`.
"""

from typing import NamedTuple

from kernels_cpu.diagonal_matrix.problem_words import (
    BEGIN,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    HAS_INPUT,
    HEIGHT,
    INVERTED,
    N_BATCH_DIMS,
    OUTPUT_COLUMN,
    OUTPUT_RESIDUE,
    OUTPUT_ROW,
    VALUE,
    WIDTH,
    X_COLUMN,
    X_ROW,
)
from kernels_cpu.diagonal_matrix.problem_words import END as BAND_END
from kernels_cpu.integers import ceil_div, product
from kernels_cpu.plan_words import (
    ALGORITHM,
    END,
    Words,
    begin_launch,
    begin_plan,
    put_pointer,
    put_value,
    put_values,
    wait_for_last,
)
from kernels_cuda.device_words import OWN_WORDS, PLANNED, ROOM, TOO_LONG
from kernels_cuda.diagonal_matrix.parameters import (
    ELEMENTS_KERNEL,
    ROWS_KERNEL,
    THREADS,
    TILE_ROW_BYTES,
    TILE_ROWS,
    TRANSPOSED_KERNEL,
    VECTOR,
    BandParameters,
    Dims,
    ElementsParameters,
    MatrixParameters,
    RowsParameters,
    TransposedParameters,
    elements_per_thread,
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

X, OUTPUT, WORKSPACE = range(3)
NOTHING, ROWS, STRIDED, TRANSPOSED, ELEMENTS = range(5)
"""The algorithms; there may be nothing to write."""

# The transposed kernel counts rows and diagonals in 31 bits.
_MOST_TRANSPOSED_ROWS = 1 << 29
_N_COLUMNS = len(Dims._fields) - 1


class Policy(NamedTuple):
    """Thresholds, which follow the words of the device; tests plan with others to force an algorithm."""

    # Shorter rows are mostly unaligned ends.
    vector_row_bytes: int = 64
    # Kernels of vectors count columns and diagonals in 31 bits.
    longest_row_bytes: int = 1 << 30
    # Transposed matrices of fewer rows waste most of what is loaded.
    transposed_rows: int = 16
    # Vectors of one launch.
    launch_vectors: int = NARROW_LIMIT - THREADS
    # Larger problems are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT


def _policy(device: Words) -> Policy:
    return Policy(
        vector_row_bytes=device[OWN_WORDS],
        longest_row_bytes=device[OWN_WORDS + 1],
        transposed_rows=device[OWN_WORDS + 2],
        launch_vectors=device[OWN_WORDS + 3],
        narrow_elements=device[OWN_WORDS + 4],
    )


class Matrices(NamedTuple):
    """Matrices of one layout: how many, their size, and their layout and band as kernels take them."""

    number: int
    element_size: int
    height: int
    width: int
    layout: MatrixParameters


def plan(problem: Words, device: Words, out: Words) -> int:
    """Choose the kernel that writes a band, and put its launches."""
    policy = _policy(device)
    begin_plan(out, NOTHING)
    number = _n_matrices(problem)
    if number == 0 or problem[HEIGHT] == 0 or problem[WIDTH] == 0:
        return PLANNED
    # Where the output's rows, not its columns, are contiguous, rows become columns.
    if problem[OUTPUT_COLUMN] != 1 and problem[OUTPUT_ROW] == 1:
        matrices = _transposed_matrices(problem, number)
    else:
        matrices = _matrices(problem, number)
    algorithm = _choose(matrices, problem[N_BATCH_DIMS], policy)
    out[ALGORITHM] = algorithm
    if algorithm == ELEMENTS:
        return _put_elements(problem, device, policy, matrices, out)
    if algorithm == TRANSPOSED:
        return _put_transposed(problem, matrices, out)
    return _put_rows(problem, device, policy, matrices, out)


def _n_matrices(problem: Words) -> int:
    number = 1
    for i in range(problem[N_BATCH_DIMS]):
        number = product(number, problem[DIMS + DIMENSION * i])
    return number


def _matrices(problem: Words, number: int) -> Matrices:
    size = problem[ELEMENT_SIZE]
    layout = MatrixParameters(
        x_row=problem[X_ROW] * size,
        x_column=problem[X_COLUMN] * size,
        output_row=problem[OUTPUT_ROW] * size,
        output_column=problem[OUTPUT_COLUMN] * size,
        band=_band(problem, problem[BEGIN], problem[BAND_END]),
    )
    return Matrices(number, size, problem[HEIGHT], problem[WIDTH], layout)


def _transposed_matrices(problem: Words, number: int) -> Matrices:
    """Return the matrices with rows for columns, and the band as it is in these."""
    size, height = problem[ELEMENT_SIZE], problem[HEIGHT]
    begin, end = min(1 - problem[BAND_END], height), min(1 - problem[BEGIN], height)
    layout = MatrixParameters(
        x_row=problem[X_COLUMN] * size,
        x_column=problem[X_ROW] * size,
        output_row=problem[OUTPUT_COLUMN] * size,
        output_column=problem[OUTPUT_ROW] * size,
        band=_band(problem, begin, end),
    )
    return Matrices(number, size, problem[WIDTH], height, layout)


def _band(problem: Words, begin: int, end: int) -> BandParameters:
    """Return the band from diagonal `begin` to `end`, with the value in every element of two words."""
    size, value = problem[ELEMENT_SIZE], problem[VALUE]
    low = high = value
    if size == 8:
        low = value & 0xFFFFFFFF
        high = (value >> 32) & 0xFFFFFFFF
    else:
        low *= 0xFFFFFFFF // ((1 << (8 * size)) - 1)
        high = low
    return BandParameters(
        begin=begin,
        end=end,
        inverted=problem[INVERTED],
        has_input=problem[HAS_INPUT],
        low_value=low,
        high_value=high,
    )


def _choose(matrices: Matrices, n_batch_dims: int, policy: Policy) -> int:
    """Choose the algorithm for matrices whose output has contiguous columns, if its rows or columns are."""
    size, layout = matrices.element_size, matrices.layout
    row_bytes = matrices.width * size
    fits_rows = policy.vector_row_bytes <= row_bytes <= policy.longest_row_bytes
    if layout.output_column != size or not fits_rows or n_batch_dims > NARROW_DEPTH:
        return ELEMENTS
    if layout.band.has_input == 0:
        return ROWS
    # Neighbours of the input may be in the same column, and enough of them.
    are_neighbours = 0 < abs(layout.x_row) < abs(layout.x_column)
    has_rows = policy.transposed_rows <= matrices.height <= _MOST_TRANSPOSED_ROWS
    if are_neighbours and has_rows and _n_tiles(matrices) < NARROW_LIMIT:
        return TRANSPOSED
    return ROWS if layout.x_column == size else STRIDED


def _n_tiles(matrices: Matrices) -> int:
    tiles_per_row = ceil_div(matrices.width * matrices.element_size, TILE_ROW_BYTES)
    return matrices.number * tiles_per_row * ceil_div(matrices.height, TILE_ROWS)


def _put_elements(problem: Words, device: Words, policy: Policy, matrices: Matrices, out: Words) -> int:
    """Put the launch that goes element by element, and for a wide kernel the table of dimensions before."""
    n_dims = max(problem[N_BATCH_DIMS], 1)
    n_elements = matrices.number * matrices.height * matrices.width
    wide = is_wide(n_elements, problem[N_BATCH_DIMS], policy.narrow_elements)
    table = Table(0, 0)
    if wide:
        if wide_table_words(_N_COLUMNS * n_dims) + LAUNCH_WORDS > device[ROOM] - out[END]:
            return TOO_LONG
        table = wide_table(out, WORKSPACE, _N_COLUMNS * n_dims)
    kernel = kernel_key(ELEMENTS_KERNEL, matrices.element_size, 1 if wide else 0)
    begin_launch(out, kernel, ceil_div(n_elements, THREADS * elements_per_thread(wide)), THREADS, 0, 1)
    _put_operands(out, 0, 0)
    parameters = ElementsParameters(
        n_elements=n_elements,
        width=divisor(matrices.width, wide),
        height=divisor(matrices.height, wide),
        matrix=matrices.layout,
    )
    put_values(out, parameters)
    put_value(out, n_dims)
    if wide:
        put_columns(out, WORKSPACE, table, _N_COLUMNS, n_dims)
        _fill_table(out, problem, table, _batch_from(problem, 0), n_dims, wide)
    else:
        table = narrow_table(out, _N_COLUMNS)
        _fill_table(out, problem, table, _batch_from(problem, 0), NARROW_DEPTH, wide)
    return PLANNED


class Batch(NamedTuple):
    """The batch dimensions from number `first` on, the first of which has another size."""

    first: int
    size: int


def _batch_from(problem: Words, first: int) -> Batch:
    is_none = first == problem[N_BATCH_DIMS]
    return Batch(first, 1 if is_none else problem[DIMS + DIMENSION * first])


def _fill_table(out: Words, problem: Words, table: Table, batch: Batch, depth: int, wide: bool) -> None:
    """Fill in the table of batch dimensions; none at all are one of a single matrix."""
    end, element_size = problem[N_BATCH_DIMS], problem[ELEMENT_SIZE]
    if batch.first == end:
        fill_dimension(out, table, depth, 0, 1, wide)
    for i in range(batch.first, end):
        d = end - 1 - i
        at = DIMS + DIMENSION * i
        fill_dimension(out, table, depth, d, batch.size if i == batch.first else problem[at], wide)
        out[place(table, 3 * depth + d)] = problem[at + 1] * element_size
        out[place(table, 4 * depth + d)] = problem[at + 2] * element_size


def _put_operands(out: Words, x_offset: int, output_offset: int) -> None:
    """Put the first two pointers of a launch, whose kernel does not wait for what is ahead of it."""
    wait_for_last(out)
    put_pointer(out, X, x_offset)
    put_pointer(out, OUTPUT, output_offset)


def _transposed_parameters(matrices: Matrices) -> TransposedParameters:
    return TransposedParameters(
        tiles_per_row=divisor(ceil_div(matrices.width * matrices.element_size, TILE_ROW_BYTES), wide=False),
        rows_of_tiles=divisor(ceil_div(matrices.height, TILE_ROWS), wide=False),
        height=matrices.height,
        width=matrices.width,
        matrix=matrices.layout,
    )


def _put_transposed(problem: Words, matrices: Matrices, out: Words) -> int:
    """Put the launch for rows that lie side by side in the input, and columns that do in the output."""
    kernel = kernel_key(TRANSPOSED_KERNEL, matrices.element_size)
    begin_launch(out, kernel, _n_tiles(matrices), THREADS, 0, 1)
    _put_operands(out, 0, 0)
    put_values(out, _transposed_parameters(matrices))
    _put_narrow_table(out, problem, _batch_from(problem, 0))
    return PLANNED


class TransposedCopy(NamedTuple):
    """A launch of the transposed kernel that copies: its blocks, and its parameters before the dimensions."""

    n_blocks: int
    parameters: TransposedParameters


def transposed_copy(
    n_matrices: int, height: int, width: int, element_size: int, x_row: int, x_column: int
) -> TransposedCopy:
    """Return the launch that copies matrices whose rows lie side by side, one row after the other.

    Strides are in bytes. Blocks have `THREADS` threads; `one_batch` makes the dimensions.
    """
    layout = MatrixParameters(
        x_row=x_row,
        x_column=x_column,
        output_row=width * element_size,
        output_column=element_size,
        band=BandParameters(begin=0, end=0, inverted=0, has_input=1, low_value=0, high_value=0),
    )
    matrices = Matrices(n_matrices, element_size, height, width, layout)
    return TransposedCopy(_n_tiles(matrices), _transposed_parameters(matrices))


def one_batch(size: int, x_stride: int, output_stride: int) -> Dims:
    """Return the dimensions of matrices along one dimension, with strides in bytes."""
    by = divisor(size, wide=False)
    return Dims(
        n_dims=1,
        multipliers=(by.multiplier, 0, 0, 0),
        shifts=(by.shift, 0, 0, 0),
        sizes=(by.size, 0, 0, 0),
        x_strides=(x_stride, 0, 0, 0),
        output_strides=(output_stride, 0, 0, 0),
    )


def _put_narrow_table(out: Words, problem: Words, batch: Batch) -> None:
    put_value(out, max(problem[N_BATCH_DIMS] - batch.first, 1))
    _fill_table(out, problem, narrow_table(out, _N_COLUMNS), batch, NARROW_DEPTH, wide=False)


class Split(NamedTuple):
    """How rows are split: indices of dimension `dim` go by `step`, those of the dimensions before it singly.

    Rows come after the last batch dimension.
    """

    dim: int
    size: int
    step: int


class Part(NamedTuple):
    """Some of all rows: where they begin in both tensors, in bytes, and in each matrix; and which."""

    x_offset: int
    output_offset: int
    first_row: int
    height: int
    n_matrices: int
    batch: Batch


def _put_rows(problem: Words, device: Words, policy: Policy, matrices: Matrices, out: Words) -> int:
    """Put the launches of rows: one, or as many as it takes to count vectors in 31 bits."""
    per_row = _vectors_per_row(problem, matrices)
    most_rows = policy.launch_vectors // per_row
    if matrices.number <= most_rows // matrices.height:
        part = Part(0, 0, 0, matrices.height, matrices.number, _batch_from(problem, 0))
        _put_part(out, problem, matrices, part, per_row)
        return PLANNED
    split = _split(problem, matrices, most_rows)
    n_outer = 1
    for i in range(split.dim):
        n_outer *= problem[DIMS + DIMENSION * i]
    for outer in range(n_outer):
        for first in range(0, split.size, split.step):
            if out[END] + LAUNCH_WORDS > device[ROOM]:
                return TOO_LONG
            _put_part(out, problem, matrices, _part(problem, matrices, split, outer, first), per_row)
    return PLANNED


def _vectors_per_row(problem: Words, matrices: Matrices) -> int:
    """Return how many vectors cover a row of the output: one more, if rows may begin between boundaries."""
    size = matrices.element_size
    strides = matrices.layout.output_row
    for i in range(problem[N_BATCH_DIMS]):
        strides |= problem[DIMS + DIMENSION * i + 2] * size
    is_every_row_aligned = problem[OUTPUT_RESIDUE] == 0 and strides % VECTOR == 0
    return ceil_div(matrices.width * size + (0 if is_every_row_aligned else VECTOR - size), VECTOR)


def _split(problem: Words, matrices: Matrices, most_rows: int) -> Split:
    """Split the outermost dimension of which single indices have at most so many rows."""
    dim = problem[N_BATCH_DIMS]
    size, n_inner = matrices.height, 1
    while dim > 0 and size <= most_rows // n_inner:
        n_inner *= size
        dim -= 1
        size = problem[DIMS + DIMENSION * dim]
    return Split(dim, size, max(most_rows // n_inner, 1))


def _part(problem: Words, matrices: Matrices, split: Split, outer: int, first: int) -> Part:
    """Return the part from index `first` on, for combination `outer` of the indices before `split.dim`."""
    x_offset = output_offset = 0
    for i in range(split.dim - 1, -1, -1):
        at = DIMS + DIMENSION * i
        x_offset += outer % problem[at] * problem[at + 1] * matrices.element_size
        output_offset += outer % problem[at] * problem[at + 2] * matrices.element_size
        outer //= problem[at]
    count = min(split.step, split.size - first)
    n_dims = problem[N_BATCH_DIMS]
    if split.dim == n_dims:
        x_offset += first * matrices.layout.x_row
        output_offset += first * matrices.layout.output_row
        return Part(x_offset, output_offset, first, count, 1, _batch_from(problem, n_dims))
    at = DIMS + DIMENSION * split.dim
    x_offset += first * problem[at + 1] * matrices.element_size
    output_offset += first * problem[at + 2] * matrices.element_size
    n_matrices = count
    for i in range(split.dim + 1, n_dims):
        n_matrices *= problem[DIMS + DIMENSION * i]
    batch = Batch(split.dim, count) if split.step > 1 else _batch_from(problem, split.dim + 1)
    return Part(x_offset, output_offset, 0, matrices.height, n_matrices, batch)


def _put_part(out: Words, problem: Words, matrices: Matrices, part: Part, per_row: int) -> None:
    """Put the launch for some rows."""
    layout, band = matrices.layout, matrices.layout.band
    n_vectors = part.n_matrices * part.height * per_row
    is_strided = band.has_input != 0 and layout.x_column != matrices.element_size
    kernel = kernel_key(ROWS_KERNEL, matrices.element_size, 1 if is_strided else 0)
    begin_launch(out, kernel, ceil_div(n_vectors, THREADS), THREADS, 0, 1)
    _put_operands(out, part.x_offset, part.output_offset)
    # The band as it is in these rows.
    part_band = BandParameters(
        begin=max(-part.height, min(band.begin + part.first_row, matrices.width)),
        end=max(-part.height, min(band.end + part.first_row, matrices.width)),
        inverted=band.inverted,
        has_input=band.has_input,
        low_value=band.low_value,
        high_value=band.high_value,
    )
    parameters = RowsParameters(
        n_vectors=n_vectors,
        vectors_per_row=divisor(per_row, wide=False),
        height=divisor(part.height, wide=False),
        width=matrices.width,
        matrix=MatrixParameters(
            x_row=layout.x_row,
            x_column=layout.x_column,
            output_row=layout.output_row,
            output_column=layout.output_column,
            band=part_band,
        ),
    )
    put_values(out, parameters)
    _put_narrow_table(out, problem, part.batch)
