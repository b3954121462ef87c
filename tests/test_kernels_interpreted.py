"""Kernels for GPUs without a GPU: `tests.interpreter` runs random problems, compared byte by byte.

Algorithms are forced. With ``DMLOPS_COMPILE_ALL=1``, these are all that plans can choose, which takes many
minutes; otherwise a sample, most of which the nightly run tries.
"""

import contextlib
import functools
import itertools
import math
import re

import numpy as np
import pytest
from ml_dtypes import bfloat16

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")

from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1, UnsupportedFeatureError
from tests import inside, reference
from tests.cuda_plans import COUNTING, SHARED_BYTES, STREAM, expanding, planned
from tests.data import DTYPES
from tests.gpu.algorithms import ALGORITHMS, CannotServeError
from tests.hard_rows import KINDS, OF_BITS, hard_rows
from tests.inside import NonzeroProblem, Options, Target, order_launches, rounds_launches
from tests.interpreter.device import interpreted
from tests.interpreter.memory import GlobalMemory
from tests.interpreter.problems import ALIGNMENT, aligned, run_case
from tests.kernel_sources import needs_compilations
from tests.marks import COMPILE_ALL, exhaustive, nightly
from tests.random_cases import RandomCase, random_case
from tests.test_cuda_compile import EXAMPLES, VARIANTS
from tests.top_k_cases import distinct, row_lengths

pytestmark = needs_compilations

# Longer problems take the interpreter seconds each.
MOST_ELEMENTS = 5000
MOST_THREADS = 1 << 13
# Elements that change meanwhile lead none of these outside of their memory; see docs/reliability.md.
READING_CHANGED = {"rounds", "one_pass", "cluster", "sampled", "block", "grid"}
READING_CHANGED |= {"sort", "sort-filtered", "sort-in_results"}
KERNELS = sorted(VARIANTS if COMPILE_ALL else EXAMPLES)
# The exhaustive run tries all but the slow.
ORDINARY = tuple(f"dmlops_{name}_" for name in ("nonzero_mask_4", "top_k_copy"))
SLOW = re.compile(
    "dmlops_(diagonal_transposed|top_k_(block|by_index|clear|cluster|finish|histogram|list|maxima|one_pass"
    "|sample|transposed_maxima))_"
)


@functools.cache
def problem(operator, number):
    """Return the descriptor and the options of a random problem."""
    case = random_case(operator, number, MOST_ELEMENTS)
    return case.descriptor, case.options


@functools.cache
def kernels_of(operator, choice, number):
    """Return the kernels that a problem asks for, and their threads; none if the choice does not serve it."""
    target = Target(0, "sm_90", 132, SHARED_BYTES["sm_90"])
    arguments = choice.arguments(target) if choice else {}
    if arguments.pop("target", None) and arguments.get("multiprocessors"):
        return frozenset(), 0
    try:
        asked = planned(*problem(operator, number), **arguments).asked
    except (ValueError, UnsupportedFeatureError):
        return frozenset(), 0
    labels = frozenset(launch.variant.label for launch in asked)
    return labels, sum(launch.grid * launch.block for launch in asked)


def problems_of(label):
    """Yield problems, and choices of an algorithm, that need a kernel, and no others than are tried here."""
    for operator, choices in ALGORITHMS.items():
        if not any(variant.label == label for variant in inside.cuda_kernels(operator).variants()):
            continue
        # The algorithm that the kernel is named after first; last, what plans choose by themselves.
        named = sorted(choices, key=lambda choice: choice.name.partition("-")[0] not in label)
        for choice in (*named, None):
            for number in range(-1, -30 if choice else -200, -1):
                labels, n_threads = kernels_of(operator, choice, number)
                if label in labels <= {*KERNELS} and n_threads <= MOST_THREADS:
                    yield random_case(operator, number, MOST_ELEMENTS), choice


@pytest.mark.parametrize(
    "label",
    [
        each
        if f"{each}_".startswith(ORDINARY)
        else nightly(each)
        if SLOW.match(f"{each}_")
        else exhaustive(each)
        for each in KERNELS
    ],
)
def test_each_kernel(label):
    found = next(problems_of(label), None)
    if found is None:
        pytest.skip("not served: no small problem needs this kernel")
    assert label in run_case(*found)


# Layouts that need a kernel of their own: sizes, and of the first tensors the order of dimensions and a step.
ROWS_OF_3, COLUMNS_OF_3 = ((0, 1, 2), 1), ((0, 2, 1), 1)
LAYOUTS = {
    "diagonal_matrix-transposed": [((3, 37, 70), ROWS_OF_3, COLUMNS_OF_3), ((2, 100, 33), COLUMNS_OF_3)],
    "diagonal_matrix-strided": [
        ((2, 9, 70), ROWS_OF_3, ((0, 1, 2), 2)),
        ((3, 5, 131), ROWS_OF_3, ((0, 1, 2), 3)),
    ],
    "diagonal_matrix-short_rows": [((2, 9, 70),), ((300, 3, 5),)],
    "diagonal_matrix-elements-wide": [((2, 9, 70), ((2, 1, 0), 1), ((1, 0, 2), 2))],
    "diagonal_matrix-elements": [((2, 9, 70), ((0, 1, 2), 2)), ((7, 3, 5), ((1, 0, 2), 1))],
    "nonzero_coordinates-masks-transposed": [((3, 70, 64), COLUMNS_OF_3), ((2, 33, 160), COLUMNS_OF_3)],
    "nonzero_coordinates-masks-strided": [((3, 70, 9), COLUMNS_OF_3), ((1800,), ((0,), 2))],
    "nonzero_coordinates-masks": [((3, 700),), ((2, 3, 4, 5, 6),)],
    "nonzero_coordinates-scan": [((5000,),), ((2, 3, 4, 5, 6),)],
    "nonzero_coordinates-wide": [((3, 700),), ((2, 3, 4, 5, 6), ((4, 3, 2, 1, 0), 1))],
    "gather_nd-strided": [((9, 7, 45), ((0, 1, 2), 2)), ((9, 7, 45), ((0, 1, 2), 3))],
    "gather_nd-unaligned": [((9, 7, 45),), ((50, 37),)],
    "gather_nd-planar": [((9, 7, 45),), ((5, 4, 3, 2),)],
    "gather_nd-units": [((9, 7, 45),), ((5, 4, 3, 8),)],
    "gather_nd-wide": [((9, 7, 45), COLUMNS_OF_3), ((5, 4, 3, 8),)],
}


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pair if pair == ("nonzero_coordinates-masks-transposed", 4) else nightly(*pair)
        for pair in itertools.product(LAYOUTS, (1, 2, 4, 8))
        if pair[1] == 4 or pair[0].endswith(("strided", "transposed", "unaligned", "masks"))
    ],
)
def test_layouts(name, width):
    operator, _, named = name.partition("-")
    (choice,) = (choice for choice in ALGORITHMS[operator] if choice.name == named)
    dtypes = [dtype for dtype in DTYPES if dtype.itemsize == width]
    for laid, number in itertools.product(LAYOUTS[name], (3, 5, 6, 9)):
        run_case(random_case(operator, number, MOST_ELEMENTS, dtypes, laid), choice)


def run_top_k(
    name,
    data_type,
    rows,
    k,
    is_sorted,
    largest=True,
    lengths=None,
    memory=None,
    axis=1,
    starts=None,
    numbers=None,
    nan_last=False,
    index_dtype="int64",
    **changes,
):
    """Have a forced algorithm select from rows, and compare every byte with the oracle's.

    In `memory` that changes, only accesses are checked. `changes` are of the algorithm's limits.
    """
    given = {"lengths": lengths, "starts": starts, "indices": numbers, "nan_last": nan_last}
    values, indices = reference.top_k(rows, k, axis=axis, sorted=is_sorted, largest=largest, **given)
    if numbers is None:
        indices = indices.astype(index_dtype)
    # Segments of one array: all rows of the input are the same.
    strides = (0, 1) if rows.strides[0] == 0 else None
    descriptor = TopK1(
        input_tensor=TensorDesc(data_type, rows.shape, strides),
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_value_tensor=TensorDesc(data_type, values.shape),
        output_index_tensor=TensorDesc(TensorDataType[indices.dtype.name.upper()], values.shape),
    )
    options = Options(is_sorted=is_sorted, nan_last=nan_last)
    inputs = {"input_tensor": rows[:1] if strides else rows}
    for field, array in (("lengths", lengths), ("starts", starts), ("numbers", numbers)):
        if array is not None:
            described = TensorDesc(TensorDataType[array.dtype.name.upper()], array.shape)
            options = options._replace(**{field: described})
            inputs[field] = array
    after = inputs | {"output_value_tensor": values, "output_index_tensor": indices}
    after = {field: operand.ravel().view(np.uint8) for field, operand in after.items()}
    before = {
        field: operand if field in inputs else np.zeros_like(operand) for field, operand in after.items()
    }
    (choice,) = (choice for choice in ALGORITHMS["top_k"] if choice.name == name)
    if changes:
        choice = choice._replace(limits=lambda target: {"target": target, "changes": changes})
    run_case(RandomCase("top_k", name, descriptor, options, before, after), choice, memory=memory)


# Rows of many kinds in one array: their length, values of k, all but the first along columns; kinds.
MIXED = {
    "rounds": (250, (40, 3), (*KINDS, *OF_BITS)),
    "one_pass": (9001, (103,), ("distinct", "few", "ascending", "misleading", "special_thresholds")),
    "block": (9001, (300, 5), ("distinct", "few", "plateau", "ascending")),
    "grid": (40_001, (100, 2), ("distinct", "few", "equal_together", "ascending")),
    "grid-transposed": (9001, (100, 50), ("distinct", "few")),
    "partition-0": (1000, (80, 900), ("distinct", "few", "constant", "special_thresholds")),
    "partition-1": (2001, (900, 30), ("distinct", "constant", "special_thresholds")),
    "cluster": (5003, (300, 20, 1), ("distinct",)),
    "sampled": (20_003, (600,), ("few", "misleading", "ascending")),
    "sort": (5003, (5003, 70), ("few",)),
    "sort-filtered": (16_384, (700, 70), ("distinct", "few")),
    "sort-filtered-few_rows_at_a_time": (20_003, (700,), ("distinct",)),
}


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "partition-0",
        *map(exhaustive, ("grid-transposed", "sort", "sort-filtered")),
        exhaustive("sort-filtered-few_rows_at_a_time"),
        *map(nightly, ("block", "grid", "cluster", "sampled", "one_pass", "partition-1")),
    ],
)
def test_rows_of_many_kinds(name):
    n_elements, ks, kinds = MIXED[name]
    for dtype in DTYPES if COMPILE_ALL else ("float32", "bfloat16")[: 1 + (name == "partition-0")]:
        kinds = (*KINDS, *OF_BITS) if COMPILE_ALL else kinds
        found = [hard_rows(kind, dtype, (2, n_elements)) for kind in kinds]
        rows = np.concatenate([each for each in found if each is not None])
        columns, data_type = np.ascontiguousarray(rows.T), TensorDataType[np.dtype(dtype).name.upper()]
        try:
            run_top_k(name, data_type, rows, ks[0], True)
            run_top_k(name, data_type, rows, ks[0], False, False, row_lengths(rows, 1, ks[0]))
            for k in ks[1:]:
                run_top_k(name, data_type, columns, k, True, False, row_lengths(columns, 0, k), axis=0)
        except CannotServeError:
            continue


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [
        exhaustive("float32", "int64"),
        nightly("float64", "uint32"),
        *(nightly(*pair) for pair in itertools.product(("uint8", "bfloat16", "int64"), ("int64", "uint32"))),
    ],
)
@pytest.mark.parametrize("name", ["sort-in_results", "sort-selected"])
def test_sorts_of_little_memory(name, dtype, index_dtype):
    """Pairs are in the results, or some elements are selected first; rows may end early."""
    rows = rows_of_ties((2, 6401)).astype(dtype) if "float" in dtype else hard_rows("few", dtype, (2, 6401))
    data_type = TensorDataType[np.dtype(dtype).name.upper()]
    windows = {"lengths": np.array([6400, 2000]), "starts": np.array([5, -3])}
    for k, given in ((300, {}), (4000, windows), (6401, windows)):
        run_top_k(name, data_type, rows, k, True, k != 4000, index_dtype=index_dtype, **given)


def rows_of_ties(shape):
    """Return elements of which many tie, and zeros, NaNs and infinities are among them."""
    return np.random.default_rng(9).choice(np.float32([0, -0.0, 1, 2, np.nan, np.inf, -np.inf]), shape)


# Rows that a kernel holds, k, and the dimension that the rows lie along.
WINDOWED = {
    "rounds": ((9, 61), 29, 1),
    "partition-0": ((9, 501), 60, 1),
    "columns": ((95, 40), 5, 0),
    "one_pass": ((9, 3001), 50, 1),
    "block": ((9, 3001), 60, 1),
    "grid": ((9, 9001), 60, 1),
    "cluster": ((9, 5003), 60, 1),
    "sampled": ((9, 9003), 200, 1),
    "partition-1": ((9, 501), 300, 1),
    "sort": ((9, 501), 60, 1),
}


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        *map(exhaustive, ("partition-0", "columns")),
        *map(nightly, ("one_pass", "block", "grid", "cluster", "sampled", "partition-1", "sort")),
    ],
)
def test_windows(name):
    """Windows lie anywhere, and reach beyond both ends of a row; nothing else is read."""
    shape, k, axis = WINDOWED[name]
    rows, n = rows_of_ties(shape), shape[axis]
    starts, lengths = np.int64(np.random.default_rng(3).integers(-5, n, (2, shape[1 - axis])))
    edges = [(-3, n + 9), (1, k), (5, k - 1), (n - 2, 5), (n + 5, 2), (-(1 << 62), (1 << 63) - 1)]
    starts[: len(edges)], lengths[: len(edges)] = zip(*edges, strict=True)
    given = {"starts": starts, "lengths": lengths, "axis": axis}
    run_top_k(name, TensorDataType.FLOAT32, rows, k, True, nan_last=True, **given)
    run_top_k(name, TensorDataType.FLOAT32, rows, k, False, False, **given)


@pytest.mark.parametrize(
    ("name", "n", "k", "dtype"),
    [
        ("partition-0", 1023, 60, "bfloat16"),
        *(exhaustive("partition-0", 511, 60, dtype) for dtype in ("uint8", "float32", "float64")),
        *(exhaustive("rounds", 61, 13, dtype) for dtype in ("uint8", "bfloat16", "uint32", "int64")),
    ],
)
def test_rows_of_every_alignment(name, n, k, dtype):
    """Rows and windows begin and end anywhere between two boundaries, and some fill all of a block."""
    rng, n_rows = np.random.default_rng(7), 17
    # Many tie, also with what lies beside a window.
    rows = rng.integers(0, 3, (n_rows, n)).astype(dtype)
    starts = np.arange(n_rows)
    lengths = n - rng.integers(0, 24, n_rows)
    starts[1:5], lengths[1:5] = (n - 1, n - 3, n, 5), (1, 2, 3, 0)
    data_type = TensorDataType[dtype.upper()]
    run_top_k(name, data_type, rows, k, True)
    run_top_k(name, data_type, rows, k, True, starts=starts, lengths=lengths)
    run_top_k(name, data_type, rows, k, False, False, starts=starts, lengths=lengths)


def test_what_lies_before_a_window_is_never_selected():
    """Nor when all else that a lane compares with it has been selected, and the others come last."""
    starts = np.arange(1, 4)
    rows = np.zeros((3, 64), np.uint32)
    # A lane of four has a vector of every four, and compares two of them at a time.
    rows[:, [*range(4), *range(16, 20)]] = 1
    for row, start in zip(rows, starts, strict=True):
        row[:start] = 9
    run_top_k("rounds", TensorDataType.UINT32, rows, 8, True, starts=starts, lengths=np.full(3, 50))


@pytest.mark.parametrize("dtype", ["float32", exhaustive("bfloat16"), nightly("int64")])
@pytest.mark.parametrize("k", [10, exhaustive(40)])
def test_segments(dtype, k):
    """Launches at the same time select from short, longer and the longest ones; many are empty."""
    rng = np.random.default_rng(8)
    x = rng.integers(0, 50, 9000).astype(dtype)
    lengths = np.minimum((rng.pareto(0.8, 40) * 40).astype("int64"), 1500) - 3
    starts = rng.integers(-9, x.size, 40)
    for row, window in enumerate(
        [(7, 5000), (9, 257), (3, 256), (0, 4096), (8990, 99), (1, 1024), (2, 1025)]
    ):
        starts[row], lengths[row] = window
    rows = np.lib.stride_tricks.as_strided(x, (40, x.size), (0, x.itemsize))
    for is_sorted in (True, False):
        given = {"starts": starts, "lengths": lengths}
        run_top_k("one_multiprocessor", TensorDataType[dtype.upper()], rows, k, is_sorted, is_sorted, **given)


@pytest.mark.parametrize(
    "dtype", ["float32", exhaustive("uint8"), exhaustive("bfloat16"), exhaustive("float64")]
)
def test_many_short_rows(dtype):
    """Lanes of a warp select from each: elements that tie, that all tie, and in descending order."""
    rng = np.random.default_rng(9)
    rows = rng.integers(0, 9, (135, 101)).astype(dtype)
    rows[:3] = 1
    rows[3:6] = np.arange(101)[::-1]
    for k, largest in ((12, True), (9, False)):
        run_top_k("one_multiprocessor", TensorDataType[dtype.upper()], rows, k, True, largest)


@pytest.mark.parametrize(
    ("name", "n", "k"),
    [("partition", 203, 30), exhaustive("partition", 5003, 60), nightly("sort", 5003, 4200)],
)
def test_numbers(name, n, k):
    """A block holds a row, or orders what another algorithm has found, or numbers are sorted first."""
    rng = np.random.default_rng(4)
    distinct_numbers = np.stack([rng.permutation(n), np.arange(n)[::-1]])
    some = np.where(rng.random((2, n)) < 0.7, -1, rng.integers(-9, 9, (2, n))).astype(np.int32)
    rows = rows_of_ties((2, n))
    for is_sorted in (True, False):
        run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted, numbers=distinct_numbers)
        run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted, False, numbers=some)


@pytest.mark.parametrize("misleads", [exhaustive(False), nightly(True)])
def test_numbers_of_more_ties_than_a_block_holds(misleads):
    """A sample tells which numbers come first, unless the sampled ones are the last."""
    rng, n = np.random.default_rng(5), 16_384
    numbers = np.stack([rng.permutation(n), 3 * rng.permutation(n) - 1])
    if misleads:
        numbers[:, ::4] += 1 << 40
    run_top_k("block", TensorDataType.FLOAT32, np.ones((2, n), np.float32), 60, True, numbers=numbers)
    run_top_k("block", TensorDataType.INT16, np.ones((2, n), np.int16), 60, False, numbers=numbers)


@pytest.mark.parametrize(
    "dtype", ["float32", *map(exhaustive, ("bfloat16", "float64")), *map(nightly, ("uint8", "int64"))]
)
def test_numbers_of_long_rows(dtype):
    """Too many elements tie, or too few take part, for what another algorithm finds to suffice."""
    rng, n = np.random.default_rng(6), 25_003
    rows = 40 * rng.random((6, n))
    rows[1], rows[2], rows[3] = 1, np.sort(rows[2]), rng.integers(0, 3, n)
    numbers = np.stack([rng.permutation(n) for _ in rows])
    numbers[4] = np.where(rng.random(n) < 0.5, -1, numbers[4])
    numbers[5] = 3
    rows, data_type = rows.astype(dtype), TensorDataType[dtype.upper()]
    starts, lengths = np.array([0, 3, 5, 1, 2, 7]), np.array([n, n - 5, n, 9000, 4097, n - 7])
    run_top_k("block", data_type, rows, 300, True, numbers=numbers)
    given = {"starts": starts, "lengths": lengths, "numbers": numbers.astype(np.int32)}
    run_top_k("block", data_type, rows, 300, False, False, **given)


def test_ties_by_index():
    """More elements tie than a block has room for, with larger elements among them."""
    rows = np.random.default_rng(7).choice(np.float32([2, 1, 0]), (2, 1501), p=[0.02, 0.48, 0.5])
    run_top_k("block", TensorDataType.FLOAT32, rows, 50, False)


@pytest.mark.exhaustive
def test_group_maxima_of_bools():
    """Set bytes differ in their bits, and tie; the first groups that have a False come first."""
    rows = hard_rows("set_bytes", np.dtype(bool), (1, 600_005))
    run_top_k("grid-coarse_groups", TensorDataType.BOOL, rows, 90, True, False)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_in_parts_that_are_filled_up(is_sorted):
    """Some have fewer elements than are selected, or none, and elements equal what fills parts up."""
    rows = np.random.default_rng(7).choice(np.float64([2, 1, 0, -np.inf]), (3, 1501))
    given = {"lengths": np.array([0, 147, 1501]), "part_elements": 256}
    run_top_k("grid-parts", TensorDataType.FLOAT64, rows, 150, is_sorted, **given)


@pytest.mark.parametrize(
    ("kind", "n_elements", "k"), [exhaustive("descending", 20_003, 600), nightly("one_of_512", 40_003, 100)]
)
def test_memory_of_a_cluster_that_others_have_read(kind, n_elements, k):
    """One block has all that is selected; a block has more candidates than room, so that all begin anew."""
    run_top_k("cluster", TensorDataType.FLOAT32, hard_rows(kind, "float32", (1, n_elements)), k, True)


@pytest.mark.nightly
def test_columns():
    """They are walked down, some by several warps; the columns of a warp end at different rows."""
    kinds = ("distinct", "few", "ascending", "special_thresholds", "plateau", "one_above_the_lowest")
    for dtype, n, k in (("float32", 95, 5), ("float64", 700, 3), ("int8", 203, 31)):
        found = [hard_rows(kind, dtype, (6, n)) for kind in kinds]
        columns = np.concatenate([each for each in found if each is not None]).T.copy()
        run = functools.partial(run_top_k, "columns", TensorDataType[dtype.upper()], columns, k)
        for is_sorted, lengths in ((True, None), (False, row_lengths(columns, 0, k))):
            run(is_sorted, is_sorted, lengths, axis=0)


@pytest.mark.parametrize("shape", [(70, 5), (5, 70), (3, 2500), (40, 150)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_all_of_each_row_by_index(shape, axis):
    """Many short rows, few long ones, rows side by side: all are copied, as far as they go."""
    rows = np.random.default_rng(5).choice(np.float32([0, -0.0, 1, np.nan, np.inf]), shape)
    n = shape[axis]
    for largest, lengths in ((True, None), (False, row_lengths(rows, axis, n))):
        run_top_k("copy", TensorDataType.FLOAT32, rows, n, False, largest, lengths, axis=axis)


@pytest.mark.nightly
def test_marks_of_what_is_selected(monkeypatch):
    """A block per part of a row puts many results in order of their indices."""
    monkeypatch.setattr(order_launches, "PART_WORDS", 8)
    rows = distinct((2, 2001), "marks").T.copy()
    run_top_k("sort", TensorDataType.FLOAT32, rows, 700, False, axis=0)
    run_top_k("sort", TensorDataType.FLOAT32, rows, 700, False, False, row_lengths(rows, 0, 700), axis=0)


# A lane of the rounds kernel keeps its keys of 4 and 8 bytes in groups of so many.
GROUP_KEYS = 8


@pytest.mark.parametrize("n_elements", [61, exhaustive(250), exhaustive(512)])
@pytest.mark.parametrize(
    "numbers", [np.arange(8), np.arange(8)[::-1], np.zeros(8), np.arange(8) % 3], ids=str
)
def test_largest_of_one_group(numbers, n_elements):
    """A lane of the rounds kernel loses all elements of one of its groups, in any order."""
    rng = np.random.default_rng(13)
    n_lanes = next(lanes for lanes, keys in rounds_launches.ROUNDS_SHAPES[4] if n_elements <= lanes * keys)
    vectors, elements = np.divmod(np.arange(n_elements), 4)
    groups = (vectors // n_lanes * 4 + elements) // GROUP_KEYS * n_lanes + vectors % n_lanes
    rows = rng.integers(0, 3, (11, n_elements)).astype(np.float32)
    for row in rows:
        row[groups == rng.choice(np.flatnonzero(np.bincount(groups) == GROUP_KEYS))] = 9 + numbers
    for largest in (True, False):
        for k, is_sorted in ((5, False), (8, True), (40, False)):
            run_top_k("rounds", TensorDataType.FLOAT32, rows if largest else -rows, k, is_sorted, largest)


@pytest.mark.parametrize(
    ("dtype", "n_lanes", "per_vector"),
    [("uint32", 4, 4), exhaustive("int64", 4, 2), exhaustive("uint8", 4, 16)],
)
@pytest.mark.parametrize("k", [17, exhaustive(64)])
def test_lanes_that_run_out_of_elements(dtype, n_lanes, per_vector, k):
    """One has the largest elements, which are all selected, then the first of those that are the least."""
    rows = np.full((3, 64), np.iinfo(dtype).min, dtype)
    rows[:, np.arange(64) // per_vector % n_lanes == 1] = 7
    rows[1, 40] = rows[2, 5] = 3
    lengths = np.array([64, 12, 33])
    for is_sorted in (True, False):
        run_top_k("rounds", TensorDataType[dtype.upper()], rows, k, is_sorted)
        run_top_k("rounds", TensorDataType[dtype.upper()], rows, k, is_sorted, lengths=lengths)


class CountedMemory(GlobalMemory):
    """Memory that counts the bytes of its first array that are loaded."""

    def __init__(self):
        super().__init__()
        self.n_loaded, self._counted = 0, None

    def add(self, array):
        address = super().add(array)
        self._counted = self._counted or range(address, address + array.nbytes)
        return address

    def load(self, addresses, bits, warps):
        self.n_loaded += bits // 8 * sum(int(address) in self._counted for address in addresses)
        return super().load(addresses, bits, warps)


# Numbers of elements, and some k.
READ_ONCE = {
    "rounds": (1000, (32,)),
    "one_pass": (9001, (103,)),
    "block": (9001, (300,)),
    "cluster": (5003, (1, 300)),
    "sampled": (40_003, (300, 600)),
    "grid": (40_001, (100,)),
    "partition": (2001, (900,)),
}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        exhaustive(name, dtype)
        if (name, dtype) in (("one_pass", np.float32), ("sampled", np.float32))
        else nightly(name, dtype)
        for name in READ_ONCE
        for dtype in (np.float32, np.float16, bfloat16, np.int16, np.uint16, np.float64)
    ],
)
def test_ordinary_rows_are_read_once(name, dtype, largest):
    """Parts may be read again. Where a guess misleads, all is, which gives the right answer, but late."""
    n_elements, ks = READ_ONCE[name]
    rows = (np.random.default_rng(21).standard_normal((3, n_elements)) * 9000).astype(np.int64).astype(dtype)
    for k, is_sorted in itertools.product(ks, (True, False)):
        memory = CountedMemory()
        with contextlib.suppress(CannotServeError):
            data_type = TensorDataType[np.dtype(dtype).name.upper()]
            run_top_k(name, data_type, rows, k, is_sorted, largest, memory=memory)
            assert rows.nbytes <= memory.n_loaded < 1.5 * rows.nbytes


class ChangingMemory(GlobalMemory):
    """Memory whose first array changes at any time: each load finds some elements of another array."""

    is_stable = False

    def __init__(self, other, rng):
        super().__init__()
        self._other, self._rng, self._first = other.reshape(-1).view(np.uint8), rng, None

    def add(self, array):
        address = super().add(array)
        if self._first is None:
            self._first = address
        return address

    def load(self, addresses, bits, warps):
        found = super().load(addresses, bits, warps)
        offsets = addresses.astype(np.int64) - self._first
        changed = (offsets >= 0) & (offsets < self._other.size) & (self._rng.random(offsets.size) < 0.5)
        at = offsets[changed, None] + np.arange(bits // 8)
        found[changed] = np.ascontiguousarray(self._other[at]).view(found.dtype).ravel()
        return found


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    "name",
    ["rounds", exhaustive("one_pass"), *map(nightly, sorted(READING_CHANGED - {"rounds", "one_pass"}))],
)
def test_elements_that_change_meanwhile(name, is_sorted):
    """The answer may be anything, but the kernels end, and access nothing else."""
    rng = np.random.default_rng(11)
    n_elements, ks = (200, (3, 8)) if name == "rounds" else (9001, (1, 100))
    if name == "sort-in_results":
        ks = (600, 5000, 9001)
    rows = rng.standard_normal((2, n_elements)).astype(np.float32)
    for other in (np.sort(rows, axis=1), rows - 9):
        for k in ks:
            memory = ChangingMemory(np.ascontiguousarray(other), rng)
            run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted, memory=memory)


@pytest.mark.nightly
def test_elements_that_change_after_they_were_counted():
    """No more rows are written than were counted."""
    sizes, n_rows = (10, 50), 100
    target = Target(0, "sm_90", 132, SHARED_BYTES["sm_90"])
    kernels = inside.cuda_kernels("nonzero_coordinates")
    for policy in (kernels.Policy(), kernels.Policy(small_elements=0)):
        memory = GlobalMemory()
        x = aligned(4 * math.prod(sizes), ALIGNMENT)
        elements = x.view(np.uint32)
        elements[...] = 0
        elements[:: elements.size // n_rows] = 1
        count, coordinates = aligned(8, ALIGNMENT), aligned(n_rows * 16, ALIGNMENT)
        with interpreted(memory):
            problem = NonzeroProblem(
                element_size=4,
                magnitude=(1 << 32) - 1,
                sizes=sizes,
                dims=((elements.size, 1),),
                x_offset=0,
                capacity=elements.size,
                coordinate_strides=(2, 1),
                coordinate_size=8,
                count_size=8,
                fill=(),
            )
            plan = kernels.plan(problem, target, policy)
            x_address, count_address, address = map(memory.add, (x, count, coordinates))
            workspace = memory.add(aligned(plan.workspace_size, ALIGNMENT))
            plan.step(COUNTING, STREAM, x_address, 0, count_address, workspace)
            memory.settle()
            assert count.view(np.int64) == n_rows
            elements[...] = 1
            plan.step(expanding(n_rows), STREAM, x_address, address, 0, workspace)
        # One block reads the elements again; otherwise, a mask has kept them.
        step = 5 if policy.small_elements == 0 else 1
        expected = np.stack(np.unravel_index(step * np.arange(n_rows), sizes), axis=1)
        np.testing.assert_array_equal(coordinates.view(np.int64).reshape(-1, 2), expected)


@pytest.mark.parametrize(("n_rows", "k"), [exhaustive(40, 7), exhaustive(1100, 7), exhaustive(40, 20)])
def test_long_segments_share_blocks(n_rows, k):
    """Lanes take the short segments of one row; the others are shared by one group of blocks, or several."""
    rng, n = np.random.default_rng(8), 20_000
    x = rows_of_ties(n)
    lengths = np.where(
        rng.random(n_rows) < 12 / n_rows, rng.integers(257, 900, n_rows), rng.integers(-1, 257, n_rows)
    )
    starts = rng.integers(-3, n - 900, n_rows)
    starts[:4], lengths[:4] = (0, n - 300, -5, 7), (n, 999, 300, 5000)
    values, indices = reference.top_k(x, k, starts=starts, lengths=lengths)
    shape = TensorDesc(TensorDataType.FLOAT32, (n_rows, n), (0, 1))
    descriptor = TopK1.of_inferred(
        input_tensor=shape,
        axis=1,
        k=k,
        axis_direction=AxisDirection.DECREASING,
        output_value_tensor=TensorDesc(TensorDataType.FLOAT32, (n_rows, k)),
        output_index_tensor=TensorDesc(TensorDataType.INT64, (n_rows, k)),
    )
    of_rows = TensorDesc(TensorDataType.INT64, (n_rows,))
    inputs = {"input_tensor": x, "lengths": lengths, "starts": starts}
    outputs = {"output_value_tensor": values, "output_index_tensor": indices}
    after = {name: array.ravel().view(np.uint8) for name, array in (inputs | outputs).items()}
    before = {name: np.zeros_like(each) if name in outputs else each for name, each in after.items()}
    (choice,) = (choice for choice in ALGORITHMS["top_k"] if choice.name == "one_multiprocessor")
    options = Options(lengths=of_rows, starts=of_rows)
    launched = run_case(RandomCase("top_k", "segments", descriptor, options, before, after), choice)
    expected = [
        "one_pass_4_512_1",
        *(["lanes_4"] if k <= 12 else ["partition_4_128_32_1", "shared_rounds_4_8_32"]),
    ]
    assert launched == [f"dmlops_top_k_{name}" for name in expected]
