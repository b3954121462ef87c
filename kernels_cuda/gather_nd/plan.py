"""The plan of GATHER_ND1: the choice of an algorithm, and the launches of each.

The plan is a function of integers, which is compiled as it stands (`plan_words`). A gather's launches have
the slots `X`, `INDICES`, `OUTPUT` and `WORKSPACE`; the check reads the indices, and writes its answer to the
workspace.
"""

from typing import NamedTuple

from kernels_cpu.gather_nd.problem_words import (
    CHECKS,
    COORDINATE_STEP,
    ELEMENT_SIZE,
    INDEX_SIZE,
    N_BATCH_DIMS,
    N_BOUNDS,
    N_SLICE_DIMS,
    N_TUPLE_DIMS,
    OUTPUT_RESIDUE,
    X_RESIDUE,
)
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
    take_workspace,
    wait_for_last,
)
from kernels_cuda.device_words import (
    MULTIPROCESSORS,
    PLANNED,
    ROOM,
    TOO_LONG,
    WORKSPACE_ALIGNMENT,
)
from kernels_cuda.gather_nd.parameters import (
    CHECK_KERNEL,
    CHECKED_TUPLES,
    CLEAR_KERNEL,
    PLANAR_COORDINATES,
    PLANAR_DIMS,
    PLANAR_KERNEL,
    PLANAR_UNITS,
    STRIDED_KERNEL,
    STRIDED_THREADS,
    THREADS,
    UNALIGNED_KERNEL,
    UNITS_KERNEL,
    VECTOR,
    CheckDims,
    CheckParameters,
    Dimension,
    Dims,
    PlanarParameters,
    PlanarRuns,
    Policy,
    Runs,
    StridedParameters,
    UnalignedParameters,
    UnitsParameters,
    bound_of,
    dimension_of,
    has_long_indices,
    largest_short_bound,
    policy_of,
    runs_along,
    tuples_of,
    units_per_thread,
)
from kernels_cuda.kernel_keys import kernel_key
from kernels_cuda.layout import (
    LAUNCH_WORDS,
    NARROW_DEPTH,
    NARROW_LIMIT,
    Divisor,
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

X, INDICES, OUTPUT, WORKSPACE = range(4)
NOTHING, UNITS, UNALIGNED, STRIDED, CHECK = range(5)
"""The algorithms of gathers, and that of the check; `UNITS` includes those of the planar kernel."""

ANSWER_BYTES = 8

# Elements of a run that is covered by vectors are counted in 31 bits.
_MOST_RUN_BYTES = 1 << 30
_LARGEST_PLANAR_BOUND = 1 << 31
# The columns of dimensions in the table of `Dims`, before those of bounds, and all of its columns.
_DIMENSION_COLUMNS = 6
_N_COLUMNS = len(Dims._fields) - 1
_N_CHECK_COLUMNS = len(CheckDims._fields) - 1


def plan(problem: Words, device: Words, out: Words) -> int:
    """Choose the kernels that gather slices, or look for indices out of range, and put their launches.

    Units serve what addresses are multiples of them, the largest first; vectors serve all others.
    """
    policy = policy_of(device)
    begin_plan(out, NOTHING)
    if problem[CHECKS]:
        return put_check(problem, device, policy, out)
    element_size = problem[ELEMENT_SIZE]
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS] + problem[N_SLICE_DIMS]
    runs = runs_along(problem, n_dims, 1)
    if runs.number == 0:
        return PLANNED
    is_gapless = False
    if problem[N_SLICE_DIMS]:
        last = dimension_of(problem, n_dims - 1)
        is_gapless = last.x == element_size and last.output == element_size
        if is_gapless:
            runs = Runs(n_dims - 1, last.size, runs.number // last.size)
        elif _are_vectors_of_strided(problem, policy, last):
            out[ALGORITHM] = STRIDED
            _put_strided(problem, runs_along(problem, n_dims - 1, last.size), last.x, out)
            return PLANNED
    largest = _largest_unit(problem, runs)
    residues = problem[X_RESIDUE] | problem[OUTPUT_RESIDUE]
    # Where addresses allow, units of 16 bytes are as fast as vectors that are shifted.
    has_vectors = largest == VECTOR and residues % VECTOR == 0
    if is_gapless and not has_vectors and _are_unaligned(problem, policy, runs, largest):
        out[ALGORITHM] = UNALIGNED
        _put_unaligned(problem, runs, out)
        return PLANNED
    out[ALGORITHM] = UNITS
    unit = largest if residues % largest == 0 else element_size
    return _put_units(problem, device, policy, runs, unit, out)


def _largest_unit(problem: Words, runs: Runs) -> int:
    """Return the most bytes, up to 16, that every run can be cut into if input and output begin on such."""
    multiples = VECTOR | (runs.size * problem[ELEMENT_SIZE])
    for i in range(runs.n_dims):
        dimension = dimension_of(problem, i)
        multiples |= dimension.x | dimension.output
    for c in range(problem[N_BOUNDS]):
        multiples |= bound_of(problem, c).stride
    # Its lowest bit.
    return multiples & -multiples


def _begin(out: Words, kernel: int, n_threads: int, per_block: int) -> None:
    """Begin the launch of a kernel that does not wait for what is ahead of it."""
    begin_launch(out, kernel, ceil_div(n_threads, per_block), per_block, 0, 1)
    wait_for_last(out)
    put_pointer(out, X, 0)
    put_pointer(out, INDICES, 0)
    put_pointer(out, OUTPUT, 0)


def _put_units(problem: Words, device: Words, policy: Policy, runs: Runs, unit: int, out: Words) -> int:
    """Put the launch for units of some bytes."""
    index_size = problem[INDEX_SIZE]
    units_per_run = runs.size * problem[ELEMENT_SIZE] // unit
    n_units = runs.number * units_per_run
    per_thread = 1 if n_units <= policy.single_units else PLANAR_UNITS
    # Threads of several units write an output in one piece.
    is_planar = n_units <= NARROW_LIMIT and (per_thread == 1 or not _has_gaps(problem, runs))
    if is_planar and _are_planar(problem, policy, runs):
        kernel = kernel_key(PLANAR_KERNEL, unit, index_size, per_thread)
        _begin(out, kernel, ceil_div(n_units, per_thread), THREADS)
        by = divisor(units_per_run, wide=False)
        put_values(out, PlanarParameters(n_units=n_units, units_per_run=by, runs=_planar_runs(problem, runs)))
        return PLANNED
    # Indices of 32 bits are dealt with in registers of 32 bits, unless a dimension is too large for these.
    # Narrow kernels read a first coordinate in any case.
    n_bounds = problem[N_BOUNDS]
    wide = is_wide(n_units, max(runs.n_dims, n_bounds), policy.narrow_elements) or n_bounds == 0
    wide = wide or (index_size == 4 and has_long_indices(problem, policy))
    n_dims = max(runs.n_dims, 1)
    n_integers = _DIMENSION_COLUMNS * n_dims + 2 * n_bounds
    table = Table(0, 0)
    if wide:
        if wide_table_words(n_integers) + LAUNCH_WORDS > device[ROOM] - out[END]:
            return TOO_LONG
        table = wide_table(out, WORKSPACE, n_integers)
    n_threads = ceil_div(n_units, units_per_thread(unit, wide))
    _begin(out, kernel_key(UNITS_KERNEL, unit, index_size, 1 if wide else 0), n_threads, THREADS)
    parameters = UnitsParameters(
        n_units=n_units,
        units_per_run=divisor(units_per_run, wide),
        tuples=tuples_of(problem, n_bounds, wide or index_size == 8),
    )
    put_values(out, parameters)
    put_value(out, n_dims)
    if wide:
        _put_wide_columns(out, table, n_dims, n_bounds)
        _fill_table(out, problem, table, runs.n_dims, n_dims, n_bounds, wide)
    else:
        table = narrow_table(out, _N_COLUMNS)
        _fill_table(out, problem, table, runs.n_dims, NARROW_DEPTH, NARROW_DEPTH, wide)
    return PLANNED


def _has_gaps(problem: Words, runs: Runs) -> bool:
    """Return whether the output is not written in one piece."""
    packed = runs.size * problem[ELEMENT_SIZE]
    for i in range(runs.n_dims - 1, -1, -1):
        dimension = dimension_of(problem, i)
        if dimension.output != packed:
            return True
        packed *= dimension.size
    return False


def _put_wide_columns(out: Words, table: Table, n_dims: int, n_bounds: int) -> None:
    """Put pointers at the columns of dimensions, and at those of bounds after them."""
    put_columns(out, WORKSPACE, table, _DIMENSION_COLUMNS, n_dims)
    after = table.workspace_at + 8 * _DIMENSION_COLUMNS * n_dims
    put_columns(out, WORKSPACE, Table(table.at, after), 2, n_bounds)


def _fill_table(
    out: Words, problem: Words, table: Table, n_dims: int, depth: int, bound_depth: int, wide: bool
) -> None:
    """Fill in the first `n_dims` dimensions, or one of a single run, and the bounds."""
    if n_dims == 0:
        fill_dimension(out, table, depth, 0, 1, wide)
    for i in range(n_dims):
        dimension, d = dimension_of(problem, i), n_dims - 1 - i
        fill_dimension(out, table, depth, d, dimension.size, wide)
        out[place(table, 3 * depth + d)] = dimension.x
        out[place(table, 4 * depth + d)] = dimension.indices
        out[place(table, 5 * depth + d)] = dimension.output
    for c in range(problem[N_BOUNDS]):
        bound = bound_of(problem, c)
        out[place(table, _DIMENSION_COLUMNS * depth + c)] = bound.size
        out[place(table, _DIMENSION_COLUMNS * depth + bound_depth + c)] = bound.stride


def _are_planar(problem: Words, policy: Policy, runs: Runs) -> bool:
    """Return whether runs lie along up to two dimensions, and all of their strides fit 32 bits."""
    if runs.n_dims > PLANAR_DIMS or not 1 <= problem[N_BOUNDS] <= PLANAR_COORDINATES:
        return False
    largest, longest = 0, 0
    for c in range(problem[N_BOUNDS]):
        bound = bound_of(problem, c)
        largest, longest = max(largest, bound.size), max(longest, abs(bound.stride))
    for i in range(runs.n_dims):
        dimension = dimension_of(problem, i)
        longest = max(longest, abs(dimension.x))
        longest = max(longest, abs(dimension.indices))
        longest = max(longest, abs(dimension.output))
    largest_bound = min(_LARGEST_PLANAR_BOUND, largest_short_bound(problem))
    return largest <= largest_bound and longest <= policy.planar_stride


def _planar_runs(problem: Words, runs: Runs) -> PlanarRuns:
    """Return the runs as the planar kernels take them; one dimension is the inner one."""
    outer = inner = Dimension(1, 0, 0, 0)
    inner_size = Divisor(0, 0, 0)
    if runs.n_dims > 0:
        inner = dimension_of(problem, runs.n_dims - 1)
    if runs.n_dims > 1:
        outer = dimension_of(problem, 0)
        inner_size = divisor(inner.size, wide=False)
    first, second, third = bound_of(problem, 0), bound_of(problem, 1), bound_of(problem, 2)
    return PlanarRuns(
        inner_size=inner_size,
        tuples=tuples_of(problem, problem[N_BOUNDS], problem[INDEX_SIZE] == 8),
        x_strides=(outer.x, inner.x),
        index_strides=(outer.indices, inner.indices),
        output_strides=(outer.output, inner.output),
        bounds=(first.size, second.size, third.size),
        coordinate_strides=(first.stride, second.stride, third.stride),
    )


class Vectors(NamedTuple):
    """The 16-byte vectors that cover runs of the output."""

    number: int
    per_run: Divisor


def _are_covered(policy: Policy, runs: Runs, run_bytes: int) -> bool:
    """Return whether vectors can cover runs: their elements, and all vectors, are counted in 31 bits."""
    most_vectors = product(runs.number, run_bytes // VECTOR + 2)
    return run_bytes <= _MOST_RUN_BYTES and not is_wide(most_vectors, runs.n_dims, policy.narrow_elements)


def _vectors(problem: Words, runs: Runs) -> Vectors:
    """Return the vectors that cover runs: one more of each, if these may begin between 16-byte boundaries."""
    strides, element_size = problem[OUTPUT_RESIDUE], problem[ELEMENT_SIZE]
    for i in range(runs.n_dims):
        strides |= dimension_of(problem, i).output
    residue = 0 if strides % VECTOR == 0 else VECTOR - element_size
    per_run = ceil_div(runs.size * element_size + residue, VECTOR)
    return Vectors(runs.number * per_run, divisor(per_run, wide=False))


def _are_unaligned(problem: Words, policy: Policy, runs: Runs, largest: int) -> bool:
    """Return whether vectors move contiguous runs faster than units."""
    # Addresses may be those of elements only.
    unit = largest if largest < VECTOR else problem[ELEMENT_SIZE]
    run_bytes = runs.size * problem[ELEMENT_SIZE]
    units_per_run = run_bytes // unit
    least = policy.unaligned_units_of_8
    if unit == 1:
        least = policy.unaligned_units_of_1
    elif unit == 2:
        least = policy.unaligned_units_of_2
    elif unit == 4:
        least = policy.unaligned_units_of_4
    if run_bytes < 2 * VECTOR or units_per_run < least:
        return False
    if runs.number * units_per_run < policy.unaligned_units:
        return False
    return _are_planar(problem, policy, runs) and _are_covered(policy, runs, run_bytes)


def _put_unaligned(problem: Words, runs: Runs, out: Words) -> None:
    """Put the launch for contiguous runs, whose vectors are shifted from those of the input."""
    vectors = _vectors(problem, runs)
    _begin(out, kernel_key(UNALIGNED_KERNEL, problem[INDEX_SIZE], 0, 0), vectors.number, STRIDED_THREADS)
    parameters = UnalignedParameters(
        n_vectors=vectors.number,
        vectors_per_run=vectors.per_run,
        run_bytes=runs.size * problem[ELEMENT_SIZE],
        runs=_planar_runs(problem, runs),
    )
    put_values(out, parameters)


def _are_vectors_of_strided(problem: Words, policy: Policy, last: Dimension) -> bool:
    """Return whether slices with gaps in the input are packed into vectors, and not moved by elements."""
    element_size, n_bounds = problem[ELEMENT_SIZE], problem[N_BOUNDS]
    if last.output != element_size or last.x == element_size or not 1 <= n_bounds <= NARROW_DEPTH:
        return False
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS] + problem[N_SLICE_DIMS] - 1
    run_bytes = last.size * element_size
    runs = runs_along(problem, n_dims, last.size)
    return run_bytes >= policy.strided_run_bytes and _are_covered(policy, runs, run_bytes)


def _put_strided(problem: Words, runs: Runs, step: int, out: Words) -> None:
    """Put the launch for slices whose elements lie `step` bytes apart in the input."""
    vectors = _vectors(problem, runs)
    _begin(out, kernel_key(STRIDED_KERNEL, problem[ELEMENT_SIZE], 0, 0), vectors.number, STRIDED_THREADS)
    parameters = StridedParameters(
        n_vectors=vectors.number,
        vectors_per_run=vectors.per_run,
        run_elements=runs.size,
        step=step,
        index_size=problem[INDEX_SIZE],
        tuples=tuples_of(problem, problem[N_BOUNDS], is_long=True),
    )
    put_values(out, parameters)
    put_value(out, max(runs.n_dims, 1))
    table = narrow_table(out, _N_COLUMNS)
    _fill_table(out, problem, table, runs.n_dims, NARROW_DEPTH, NARROW_DEPTH, wide=False)


class Group(NamedTuple):
    """Dimensions of tuples, from `first` on, whose indices lie evenly, as if they were one."""

    first: int
    size: int
    step: int


def _group(problem: Words, end: int) -> Group:
    """Return the group of dimensions that ends before dimension `end`."""
    first = end - 1
    last = dimension_of(problem, first)
    size = last.size
    while first > 0:
        dimension = dimension_of(problem, first - 1)
        if dimension.indices != size * last.indices:
            break
        size *= dimension.size
        first -= 1
    return Group(first, size, last.indices)


class Checked(NamedTuple):
    """Tuples that launches check: those of the dimensions from `first` on, `step` of them by each launch."""

    first: int
    number: int
    step: int


def _checked(problem: Words, policy: Policy) -> Checked:
    """Return the most dimensions, of the fastest ones, that the check's kernel can count.

    Where the fastest ones lie evenly and are too many, launches check ranges of them.
    """
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]
    first = n_dims
    number = 1
    n_groups = 0
    while first > 0:
        group = _group(problem, first)
        n_groups += 1
        if is_wide(product(number, group.size), n_groups, policy.narrow_elements):
            if n_groups == 1:
                return Checked(group.first, group.size, policy.narrow_elements)
            break
        first = group.first
        number *= group.size
    return Checked(first, number, number)


def put_check(problem: Words, device: Words, policy: Policy, out: Words) -> int:
    """Put what looks for index tuples out of range: up to `NARROW_DEPTH` coordinates of tuples a launch."""
    out[ALGORITHM] = CHECK
    take_workspace(out, ANSWER_BYTES, WORKSPACE_ALIGNMENT)
    begin_launch(out, kernel_key(CLEAR_KERNEL, 0, 0, 0), 1, 1, 0, 1)
    put_pointer(out, WORKSPACE, 0)
    tuples = runs_along(problem, problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS], 1)
    if tuples.number == 0:
        return PLANNED
    checked = _checked(problem, policy)
    for first_bound in range(0, problem[N_BOUNDS], NARROW_DEPTH):
        for outer in range(tuples.number // checked.number):
            for start in range(0, checked.number, checked.step):
                if out[END] + LAUNCH_WORDS > device[ROOM]:
                    return TOO_LONG
                _put_check_launch(problem, device, policy, out, checked, first_bound, outer, start)
    return PLANNED


def _put_check_launch(
    problem: Words,
    device: Words,
    policy: Policy,
    out: Words,
    checked: Checked,
    first_bound: int,
    outer: int,
    start: int,
) -> None:
    """Put the launch for tuples from `start` on, of combination `outer` of the dimensions before these."""
    is_long = has_long_indices(problem, policy)
    n_tuples = min(checked.step, checked.number - start)
    most_blocks = policy.check_blocks_per_multiprocessor * device[MULTIPROCESSORS]
    n_blocks = min(ceil_div(n_tuples, THREADS * CHECKED_TUPLES), most_blocks)
    kernel = kernel_key(CHECK_KERNEL, problem[INDEX_SIZE], 1 if is_long else 0, 0)
    begin_launch(out, kernel, n_blocks, THREADS, 0, 1)
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]
    offset = first_bound * problem[COORDINATE_STEP] * problem[INDEX_SIZE]
    if start:
        offset += start * dimension_of(problem, n_dims - 1).indices
    rest = outer
    for i in range(checked.first - 1, -1, -1):
        dimension = dimension_of(problem, i)
        offset += rest % dimension.size * dimension.indices
        rest //= dimension.size
    put_pointer(out, INDICES, offset)
    put_pointer(out, WORKSPACE, 0)
    n_coordinates = min(NARROW_DEPTH, problem[N_BOUNDS] - first_bound)
    parameters = CheckParameters(
        first_position=outer * checked.number + start,
        n_tuples=n_tuples,
        tuples=tuples_of(problem, n_coordinates, is_long),
    )
    put_values(out, parameters)
    _put_check_table(problem, out, checked, n_tuples, first_bound)


def _put_check_table(problem: Words, out: Words, checked: Checked, n_tuples: int, first_bound: int) -> None:
    """Put the dimensions of some tuples, and the sizes that their coordinates are compared with."""
    n_dims_at = out[END]
    put_value(out, 1)
    table = narrow_table(out, _N_CHECK_COLUMNS)
    end, d = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS], 0
    if end == checked.first:
        fill_dimension(out, table, NARROW_DEPTH, 0, 1, wide=False)
    while end > checked.first:
        group = _group(problem, end)
        size = group.size if checked.step == checked.number else n_tuples
        fill_dimension(out, table, NARROW_DEPTH, d, size, wide=False)
        out[place(table, 3 * NARROW_DEPTH + d)] = group.step
        end = group.first
        d += 1
    out[n_dims_at] = max(d, 1)
    for c in range(min(NARROW_DEPTH, problem[N_BOUNDS] - first_bound)):
        out[place(table, 4 * NARROW_DEPTH + c)] = bound_of(problem, first_bound + c).size
