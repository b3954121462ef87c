"""The plan of NONZERO_COORDINATES: one pass or two, and the parts of each; `kernels` describes the passes.

The addresses of a run are those of x, the coordinates, the count and the workspace, which holds one bit per
element and one word per part. Its units are parts, and its result is the full count. The `STEP` of the
problem tells what is planned:

========= ========================================================================================
`WHOLE`   one pass over a contiguous x that is not worth several threads, if coordinates and count have
          one size; otherwise both steps below
`COUNT`   mark and add up: writes the count, and leaves in the workspace what the next step reads
`EXPAND`  write `CAPACITY` rows from the words in the workspace; without a result
========= ========================================================================================
"""

from kernels_cpu.host_words import STREAMING_BYTES, THREADS
from kernels_cpu.integers import ceil_div, product
from kernels_cpu.nonzero_coordinates import (
    EXPAND_ELEMENTS,
    EXPAND_WORDS,
    MARK,
    ONE_PASS,
    PACKED_COLUMNS,
    TOTAL,
    TWO_PASSES,
    kernel_key,
)
from kernels_cpu.nonzero_coordinates import problem_words as given
from kernels_cpu.plan_words import (
    RESULT,
    Values,
    Words,
    begin_plan,
    begin_tasks,
    put_pointer,
    put_value,
    put_values,
    take_workspace,
)
from kernels_cpu.processor import LINE_BYTES

# Fields of the table of integers that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, MAGNITUDE, N_DIMS, N_SIZES = range(6)
X_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE = range(6, 10)
FILLS, STREAM_ROWS, COUNTS, TABLES = range(10, 14)
# Then (size, x_stride) for each dimension of the input (at least one), then the logical sizes, and what fills
# each column.

PART_BYTES = 1 << 20  # input and full output per part: some 100 us of work
UNIFORM_COLUMNS = 64  # logical rows of at least this length are written one by one


def _packed_columns(problem: Words, last_size: int) -> int:
    """Return how many columns there are, if rows are packed, and long ones differ in the last column only."""
    n_sizes = problem[given.N_SIZES]
    # The stride along a single column says nothing.
    is_packed = problem[given.ROW_STEP] == n_sizes and (n_sizes == 1 or problem[given.COLUMN_STEP] == 1)
    return n_sizes if is_packed and 0 < n_sizes <= PACKED_COLUMNS and last_size >= UNIFORM_COLUMNS else 0


def plan(problem: Words, host: Words, out: Words) -> int:
    """Plan the list of the coordinates of all elements with ``bits & magnitude != 0``."""
    element_size, coordinate_size = problem[given.ELEMENT_SIZE], problem[given.COORDINATE_SIZE]
    count_size, step = problem[given.COUNT_SIZE], problem[given.STEP]
    n_dims, n_sizes = problem[given.N_DIMS], problem[given.N_SIZES]
    sizes_at = given.DIMS + given.DIMENSION * n_dims
    n_elements, last_size = 1, 0
    for d in range(n_sizes):
        last_size = problem[sizes_at + d]
        n_elements = product(n_elements, last_size)
    n_words = ceil_div(n_elements, 64)
    row_bytes = n_sizes * coordinate_size
    n_parts = 1
    if host[THREADS] > 1:
        # More parts than threads, as parts with more non-zero elements take longer.
        n_bytes = product(n_elements, element_size + row_bytes)
        n_parts = max(min(4 * host[THREADS], n_bytes // PART_BYTES, n_words), 1)
    part_words = ceil_div(n_words, n_parts)
    is_contiguous = n_dims == 0 or (n_dims == 1 and problem[given.DIMS + 1] == 1)
    in_one_pass = step == given.WHOLE and is_contiguous and n_parts == 1 and coordinate_size == count_size
    begin_plan(out, ONE_PASS if in_one_pass else TWO_PASSES)
    take_workspace(out, 8 * part_words * n_parts, LINE_BYTES)
    counts = take_workspace(out, 8 * n_parts, LINE_BYTES)
    work = (n_elements, n_parts, part_words, problem[given.MAGNITUDE], max(n_dims, 1), n_sizes)
    rows = (problem[given.CAPACITY], problem[given.ROW_STEP], problem[given.COLUMN_STEP])
    # Kernels count in words.
    others = (problem[given.FILLS], host[STREAMING_BYTES] // max(row_bytes, 1), counts // 8)
    table = (work, problem[given.X_OFFSET], rows, others)
    if step != given.EXPAND and not in_one_pass:
        begin_tasks(out, kernel_key(MARK, 0, element_size, 0, 0), n_parts, n_parts, 1)
        put_pointer(out, 0, 0)
        put_pointer(out, 3, 0)
        _put_table(problem, out, table)
        begin_tasks(out, kernel_key(TOTAL, 0, 0, 0, count_size), 1, 1, 0)
        put_pointer(out, 2, 0)
        put_pointer(out, 3, 0)
        _put_table(problem, out, table)
        out[RESULT] = 1
    if step != given.COUNT:
        name = EXPAND_ELEMENTS if in_one_pass else EXPAND_WORDS
        columns = _packed_columns(problem, last_size)
        # A kernel that reads words writes no count.
        kernel = kernel_key(name, columns, element_size, coordinate_size, coordinate_size)
        begin_tasks(out, kernel, n_parts, n_parts, 1)
        for slot in range(4):
            put_pointer(out, slot, 0)
        _put_table(problem, out, table)
        if in_one_pass:
            out[RESULT] = 0
    return 0


def _put_table(problem: Words, out: Words, header: Values) -> None:
    """Put a table: its header, the dimensions, the sizes, and the fill of each column."""
    put_values(out, header)
    n_dims = problem[given.N_DIMS]
    if n_dims == 0:
        put_values(out, (1, 1))
    for at in range(given.DIMS, given.DIMS + given.DIMENSION * n_dims + problem[given.N_SIZES]):
        put_value(out, problem[at])
    for column in range(max(problem[given.N_SIZES], 1)):
        put_value(out, given.fill_of(problem, column))
