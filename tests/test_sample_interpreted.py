"""The kernel of `sample` for GPUs, interpreted: its tokens, its accesses and its barriers."""

import math
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import TensorDataType, TensorDesc
from tests import inside, sampling
from tests.data import random, storage
from tests.inside import PARAMETERS, Options, SampleCall, data_type_of_numpy, problems, sample_problem, split
from tests.interpreter.device import interpreted
from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.memory import GlobalMemory
from tests.interpreter.problems import aligned
from tests.interpreter.program import parse
from tests.marks import exhaustive, nightly

kernels = inside.cuda_kernels("sample")

WAYS = (
    {},
    {"temperature": 0},
    {"k": 5, "top_p": 0.5, "min_p": 0.01},
    {"k": np.array([3]), "temperature": np.full(1, 2.5, "float16")},
    {"top_p": 0.9},
    {"k": 400, "top_p": np.array([0.8])},
)
OF_ARRAYS = [way for way in WAYS if not way or any(isinstance(each, np.ndarray) for each in way.values())]
# Of these, a cluster of blocks has a part of each row.
BLOCK, CLUSTER = {"cluster_elements": 1 << 40}, {"cluster_elements": 1}
H200 = inside.variant.typical_target("sm_90")


def described(array):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorDesc(data_type_of_numpy(array.dtype, "x"), array.shape, strides)


def few_blocks(n_blocks):
    """Return a GPU so small that `n_blocks` blocks share a single row, and without the memory to keep it."""
    return H200._replace(multiprocessors=n_blocks, block_shared_bytes=32 << 10)


def drawn(x, policy, *, target=H200, chosen="", stage=problems.WHOLE_ROWS, **given):
    """Draw tokens, or compute a stage of a draw from shards; `chosen` is part of the text about the plan."""
    defaults = {"steps": 0, "temperature": 1.0, "k": None, "top_p": 1.0, "min_p": 0.0}
    names, arrays, values = split([(defaults | given)[name] for name in PARAMETERS])
    tokens = np.full(x.shape[:-1], 77)
    call = SampleCall.of_inferred(
        input_tensor=described(x),
        output_tensor=described(tokens),
        values=values,
        given=dict(zip(names, map(described, arrays), strict=True)),
        stage=stage,
    )
    memory, rooms, addresses = GlobalMemory(), [], []
    for array in (x, *arrays, tokens):
        held, _, place = storage(array)
        rooms.append(aligned(max(held.nbytes, 1), 256))
        rooms[-1][: held.nbytes] = held.view(np.uint8)
        addresses.append(memory.add(rooms[-1]) + place * array.itemsize)
    with interpreted(memory) as interpreter:
        plan = kernels.plan(sample_problem(call, Options()), target, kernels.Policy(**policy))
        assert chosen in plan.variant
        plan.launch(5, *addresses, memory.add(aligned(max(plan.workspace_size, 1), 256)))
    assert not interpreter.races
    return rooms[-1][: tokens.nbytes].view(tokens.dtype).reshape(tokens.shape)


# The last shape has dimensions that do not merge, along which arrays have strides.
SHAPES = SHORT, _, LONG, SPREAD = (2, 5), (3, 701), (1, 3000), (2, 2, 2, 40)


@pytest.mark.parametrize(
    ("dtype", "policy", "shape"),
    [
        ("float32", BLOCK, (3, 701)),
        ("float32", BLOCK, SHORT),
        ("float32", BLOCK, SPREAD),
        ("float16", CLUSTER, (1, 701)),
        exhaustive("float32", BLOCK, LONG),
        exhaustive("float64", BLOCK, (1, 701)),
        exhaustive("float16", CLUSTER, SHORT),
        nightly("float32", CLUSTER, (1, 701)),
        *[nightly("float16", BLOCK, shape) for shape in SHAPES],
        *[nightly("float64", CLUSTER, shape) for shape in SHAPES],
        *[nightly(dtype, CLUSTER, LONG) for dtype in ("float16", "float32")],
    ],
)
def test_tokens(dtype, policy, shape):
    rng = random(("interpreted", dtype))
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    x[0, ..., 1] = np.nan
    seeds = rng.integers(-(2**63), 2**63, shape[:-1])
    for options in OF_ARRAYS if shape is SPREAD else WAYS:
        expected = sampling.sample(x, seeds, **options)
        assert np.array_equal(drawn(x, policy, seeds=seeds, **options), expected), options


MOST_KEPT = 81_278  # elements of 8 bytes


def variant_for(rows, n, target, top_p=1.0):
    """Return the text about the plan for rows of float32."""
    call = SampleCall.of_inferred(
        input_tensor=TensorDesc(TensorDataType.FLOAT32, (rows, n)),
        output_tensor=TensorDesc(TensorDataType.INT64, (rows,)),
        values=split([0, 0, 1.0, None, top_p, 0.0])[2],
        given={},
        stage=problems.WHOLE_ROWS,
    )
    with interpreted(GlobalMemory()):
        return kernels.plan(sample_problem(call, Options()), target).variant


@pytest.mark.parametrize(
    ("rows", "n", "arch", "kept"),
    [
        (1, 16384, "sm_90", True),
        (33, 2 * MOST_KEPT, "sm_90", True),
        (33, 2 * MOST_KEPT + 1, "sm_90", False),
        (34, 128_256, "sm_90", False),
        (1, 16383, "sm_90", False),
        (1, 128_256, "sm_120", True),
        (1, 2 * MOST_KEPT, "sm_120", False),  # whose blocks have less shared memory
        (1, 128_256, "sm_80", False),
    ],
)
def test_which_rows_are_kept(rows, n, arch, kept):
    assert variant_for(rows, n, inside.variant.typical_target(arch)).endswith("keeps it") == kept


@pytest.mark.parametrize(
    ("top_p", "n", "most_rows"),
    [
        (1.0, 1_000_000, {8: 16, 4: 33, 2: 66}),  # too long to keep
        (0.9, 16384, {8: 24, 4: 49, 2: 99}),
        (0.9, 16383, {}),
    ],
)
def test_how_many_blocks_share_a_row(top_p, n, most_rows):
    """At most one block per multiprocessor without filters, and three per two multiprocessors with top_p."""
    rows = 1
    for n_blocks, most in most_rows.items():
        for n_rows in (rows, most):
            assert f"cluster of {n_blocks} blocks" in variant_for(n_rows, n, H200, top_p)
        rows = most + 1
    assert "one block per row" in variant_for(rows, n, H200, top_p)


@pytest.mark.parametrize(
    ("dtype", "n_blocks", "n", "way"),
    [
        ("float32", 2, 20_000, {}),
        ("float16", 4, 5000, {"top_p": 0.8}),
        *[
            nightly(dtype, n_blocks, 17_600 * n_blocks, way)
            for dtype in ("float16", "float32", "float64")
            for n_blocks in (2, 4, 8)
            for way in ({}, {"top_p": 0.8}, {"k": 700, "min_p": 0.001}, {"temperature": np.full(1, 0.01)})
        ],
        nightly("float64", 2, 280_003, {}),  # chunks of two groups
    ],
)
def test_blocks_share_a_row(dtype, n_blocks, n, way):
    """A row that begins within a vector, without filters and with: its tokens are those of the definition.

    Without filters, its first and last groups of vectors are ragged and the others whole, and the last warps
    have no elements in most cases. With filters, the short row has only ragged groups, and others have both.
    """
    rng = random(("shared", dtype))
    x = (rng.standard_normal((1, n)) * 3).astype(dtype)[:, 3:]
    seeds = rng.integers(-(2**63), 2**63, 1)
    text = f"cluster of {n_blocks} blocks per row"
    found = drawn(x, CLUSTER, target=few_blocks(n_blocks), chosen=text, seeds=seeds, **way)
    assert np.array_equal(found, sampling.sample(x, seeds, **way))


@pytest.mark.parametrize("policy", [BLOCK, CLUSTER])
def test_rows_follow_each_other(policy):
    """One block, or one cluster, takes all rows, even where fewer blocks may be launched than it has."""
    rng = random("rows")
    x, seeds = (rng.standard_normal((2, 300)) * 3).astype("float32"), np.arange(2)
    found = drawn(x, policy | {"most_blocks": 1}, target=few_blocks(4), seeds=seeds)
    assert np.array_equal(found, sampling.sample(x, seeds))


@pytest.mark.parametrize(
    ("dtype", "n", "step"),
    [
        ("float32", 701, 1),
        exhaustive("float16", 1702, 1),
        exhaustive("float64", 501, 1),
        exhaustive("float32", 20_000, 1),
        *[nightly(dtype, 3000, step) for dtype in ("float16", "float32", "float64") for step in (1, 2)],
        # As long as rows that are kept may be, and longer.
        exhaustive("float64", MOST_KEPT, 1),
        nightly("float64", MOST_KEPT + 1, 1),
    ],
)
def test_clusters_keep_rows(dtype, n, step):
    """Rows begin and end within vectors, and have any temperatures; one has no token."""
    rng = random(("kept", dtype, n))
    x = (rng.standard_normal((4, n * step)) * 3).astype(dtype)[:, 1::step]
    x[0, 1], x[1] = np.nan, -np.inf
    seeds = rng.integers(-(2**63), 2**63, 4)
    for options in ({}, {"temperature": np.array([0, 1, 1e30, 0.5])}):
        expected = sampling.sample(x, seeds, **options)
        assert np.array_equal(drawn(x, CLUSTER, seeds=seeds, **options), expected), options


@pytest.mark.parametrize(
    ("dtype", "policy", "n"),
    [
        ("float32", BLOCK, 701),
        ("float16", CLUSTER, 301),
        *[nightly(dtype, policy, 1500) for dtype in ("float16", "float64") for policy in (BLOCK, CLUSTER)],
    ],
)
def test_shards(dtype, policy, n):
    """What ranks compute for the token of rows that are divided among them."""
    rng = random(("shards", dtype))
    x = (rng.standard_normal((7, n)) * 3).astype(dtype)
    x[0, 1], x[1], x[2, n // 3], x[3, : n // 2] = np.nan, -np.inf, np.inf, -60000
    seeds = rng.integers(-(2**63), 2**63, 7)
    options = {"steps": 3, "temperature": np.array([1, 1, 1, 0.25, 0, 9, np.nan], "float16")}
    shares = {"min_p": np.array([0, 0, 0, 0, 0.9, 0.7, 0.5])}
    largest = np.fmax.reduce(x, axis=-1)
    parts = np.split(x, [n // 4, n // 4, n // 2 + 1], axis=-1)
    # Each parameter of a stage has the name of the one whose place it has.
    of_weights = {"temperature": options["temperature"], "top_p": largest} | shares
    sums = [drawn(part, policy, stage=problems.SHARD_SUMS, seeds=0, **of_weights) for part in parts]
    of_shards, tokens, start = np.stack(sums, -1).view("float64"), [], 0
    for shard, part in enumerate(parts):
        targets = drawn(of_shards, BLOCK, stage=problems.SHARD_TARGETS, seeds=seeds, k=shard, **options)
        tokens.append(drawn(part, policy, stage=problems.SHARD_TOKENS, seeds=start, k=targets, **of_weights))
        assert np.array_equal(tokens[-1] >= 0, targets >= 0)
        start += part.shape[-1]
    assert np.array_equal(np.max(tokens, axis=0), sampling.sample(x, seeds, **options, **shares))


def share_rows(rng, n):
    """Return rows in which a share ends at a tie, far from the largest, and among many or few values."""
    normal = rng.standard_normal(n)
    far = np.full(n, 11.0)
    far[n // 3] = 20
    return np.stack(
        [normal * 3, np.sort(normal), np.zeros(n), normal.round(), normal / 1000, far, normal * 1000]
    )


@pytest.mark.parametrize(
    ("dtype", "policy", "n"),
    [
        ("float32", BLOCK, 2100),  # more close values than a block lists
        ("float32", CLUSTER, 600),
        *[nightly(dtype, policy, 4800) for dtype in ("float16", "float32") for policy in (BLOCK, CLUSTER)],
        *[nightly("float64", policy, 2100) for policy in (BLOCK, CLUSTER)],
    ],
)
def test_where_a_share_ends(dtype, policy, n):
    rng = random(("share", dtype))
    x = share_rows(rng, n).astype(dtype)
    x[0, 1], x[1, 0] = np.nan, -np.inf
    seeds, temperatures = rng.integers(0, 2**63, 7), np.array([1, 1, 1, 30, 1, 1, 0.5], "float32")
    for options in (
        {"top_p": 0.9},
        {"top_p": np.array([0.5, 1e-9, 0.3, 0.99, 0.7, 0.9999, 0]), "temperature": temperatures},
        {"top_p": 0.8, "min_p": 0.01, "k": n // 2},
    ):
        expected = sampling.sample(x, seeds, **options)
        assert np.array_equal(drawn(x, policy, seeds=seeds, **options), expected), options


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [("float32", BLOCK), exhaustive("float64", BLOCK), nightly("float16", CLUSTER)],
)
def test_k_ends_among_elements_without_a_weight(dtype, policy):
    """Elements that are too far, NaN, or dropped by min_p add nothing to the sum of the first k."""
    x = np.full((9, 40), -np.inf, dtype)
    x[0, 7], x[1] = 0, np.arange(40) / 8
    x[2:], x[2:, 3:6] = np.nan, [3, 2, 1]
    for options in ({}, {"top_p": 1 - 2.0**-40}, {"min_p": 0.5}, {"top_p": 1 - 2.0**-40, "min_p": 0.5}):
        expected = sampling.sample(x, np.arange(9), k=np.array([20]), **options)
        found = drawn(x, policy, seeds=np.arange(9), k=np.full(9, 20), **options)
        assert np.array_equal(found, expected), options


@pytest.mark.parametrize(
    ("dtype", "n"),
    [("float32", 600), exhaustive("float16", 301), nightly("float64", 600), nightly("float16", 2100)],
)
def test_few_elements_take_part(dtype, n):
    """Those that are listed take one step, or several; no step is full, or the last one is."""
    rng = random(("listed", dtype))
    x = share_rows(rng, n).astype(dtype)
    x[0, 1], x[1, :] = np.nan, -np.inf
    x[3, n // 2] = np.inf
    seeds, temperatures = rng.integers(0, 2**63, 7), np.array([1, 1, 1, 30, 1, 0, 0.5], "float32")
    for options in (
        {"k": 1},
        {"k": 63, "top_p": np.array([0.5, 1e-9, 0.3, 0.99, 0.7, 0.9999, 0]), "temperature": temperatures},
        {"k": 64, "temperature": np.inf},
        {"k": 200, "top_p": 0.97, "temperature": 20.0, "min_p": 1e-6},
        {"k": np.array([0, 1, 2, n // 8, n // 8 + 1, 33, -1]), "top_p": 0.9},
    ):
        expected = sampling.sample(x, seeds, **options)
        assert np.array_equal(drawn(x, BLOCK, seeds=seeds, **options), expected), options


@pytest.mark.exhaustive
def test_listed_elements_are_neighbours():
    """Their indices differ in the last digits only, or in all of them."""
    x = np.zeros((2, 33_000), "float16")
    x[0, 32_700:32_800], x[1, ::400] = 1, 1
    for k in (30, 80):
        seeds = np.arange(2) + k
        assert np.array_equal(drawn(x, BLOCK, seeds=seeds, k=k), sampling.sample(x, seeds, k=k)), k


def test_float64_far_apart():
    """The bits of NaN, and of negative values, differ from the bits of the largest by 2^63 and more."""
    x = np.array([[3.0, np.nan, -1.0, -2.0], [np.nan, 0.5, -0.5, np.nan], [np.finfo("float64").min] * 4] * 2)
    seeds = np.arange(6)
    for options in ({}, {"top_p": 0.95}, {"k": 3, "top_p": 0.99}):
        expected = sampling.sample(x, seeds, temperature=3.0, **options)
        assert np.array_equal(drawn(x, BLOCK, seeds=seeds, temperature=3.0, **options), expected), options


def temperatures():
    """Return some at which a quotient of floats may be rounded to the next integer, and any others."""
    rng = random("factors")
    digits = [2**52, 2**52 + 1, 2**53 - 2, 2**53 - 1, *rng.integers(2**52, 2**53, 1000).tolist()]
    most = (sampling.LOG2_E << 36) // 2**52
    for quotient in rng.integers(most // 2 + 1, most, 1000).tolist():
        nearest = (sampling.LOG2_E << 36) // quotient
        digits += [each for each in range(nearest - 1, nearest + 2) if 2**52 <= each < 2**53]
    scales = [math.ldexp(1.0, exponent) for exponent in (-1074, -1022, -60, 0, 900)]
    found = np.outer(np.array(digits, "float64"), scales).ravel()
    return np.append(found, [5e-324, 0, -0.0, -1, np.inf, -np.inf, np.nan])


def expected_factor(temperature):
    """Return log2(e) * 2^98 / m, rounded down, of a temperature m * 2^e; none where it divides nothing."""
    if not 0 < temperature < np.inf:
        return 0
    mantissa, _ = math.frexp(temperature)
    return int(Fraction(sampling.LOG2_E << 36) / Fraction(mantissa * 2**53))


def test_factors_of_temperatures():
    """A GPU finds them by floats, and the definition by integers."""
    cuda, ptx = inside.compiler.cuda, inside.ptx
    arithmetic = inside.cuda_kernels("sample", "arithmetic").ARITHMETIC

    @cuda.jit
    def factors(given, found):
        place = 8 * (cuda.blockIdx.x * 128 + cuda.threadIdx.x)
        digits, exponent = arithmetic.temperature_of(ptx.read_u64(given + place), 64, 52)
        ptx.store_u64(found + place, arithmetic.factor_of(digits, exponent))

    given = temperatures()
    given = np.append(given, np.ones(-len(given) % 128))
    found, memory = np.zeros(given.size, np.int64), GlobalMemory()
    program = parse(inside.compiler.compile_ptx(factors, "factors", (9, 0)))
    Machine(program, memory, Sizes(given.size // 128, 128, 1), [memory.add(given), memory.add(found)]).run()
    memory.settle()
    assert found.tolist() == [expected_factor(each) for each in given.tolist()]
