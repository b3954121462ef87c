"""`sample`: its definition, what its tokens depend on and what not, and its errors."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError, UnsupportedFeatureError
from tests import cases, sampling
from tests.data import FLOATS, INDEX_DTYPES, LAYOUTS, assert_same, random
from tests.libraries import check
from tests.marks import as_parameters


def logits(shape, dtype="float32", name="logits", spread=3.0):
    """Return random logits."""
    return (random((name, shape)).standard_normal(shape) * spread).astype(dtype)


@pytest.mark.parametrize("case", as_parameters(cases.SAMPLE), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


class TestDefinition:
    """Of the oracle: what it shares with no kernel."""

    def test_philox_gives_the_answers_of_its_authors(self):
        low = 2**32 - 1
        pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
        for counter, key, answer in (
            ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
            ([low] * 4, [low] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
            (*pi, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
        ):
            assert sampling.philox(key, counter) == answer

    @pytest.mark.parametrize(
        "dtype", [np.dtype(dtype) for dtype in ("float16", "float32", "float64")], ids=str
    )
    def test_weights_are_near_the_exact_ones(self, dtype):
        rng, worst = random(("weights", dtype)), 0
        for turn in range(3000):
            temperature = float(10.0 ** rng.uniform(-6, 6))
            spread = temperature * 10.0 ** rng.uniform(-3, 5) if turn % 2 else 10.0 ** rng.uniform(-4, 4)
            with np.errstate(over="ignore"):
                largest = np.array(rng.standard_normal() * spread).astype(dtype)
                drop = temperature * rng.uniform(0, 30) * 10.0 ** -rng.integers(0, 9)
                x = (largest.astype(float) - drop).astype(dtype)
            if turn % 5 == 0:
                x = np.nextafter(largest, dtype.type(-np.inf))
            if not np.isfinite(largest):
                continue
            if not np.isfinite(x) or x > largest:
                x = largest
            with localcontext() as context:
                context.prec = 50
                quotient = (Decimal(float(x)) - Decimal(float(largest))) / Decimal(temperature)
                got = Decimal(sampling.weight(float(x), float(largest), temperature)) / sampling.FULL
                worst = max(worst, abs(got - quotient.exp()) * 2**36)
        assert worst < 1

    def test_a_seed_and_a_step_give_the_random_word(self):
        n = 1 << 20
        seeds = np.array([0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567], "int64")
        steps = np.array([[0], [1], [-5], [2**40]], "int64")
        tokens = dmlops.sample(np.zeros((4, 6, n), "float16"), seeds, steps=steps)
        for i, step in enumerate(steps[:, 0]):
            for j, seed in enumerate(seeds):
                assert tokens[i, j] == sampling.random_word(seed, step) >> 44
                one = dmlops.sample(np.zeros(n, "float16"), int(seed) % 2**64, steps=int(step))
                assert one == tokens[i, j]


class TestInvariance:
    """A token depends on its row, its parameters, its seed and its step alone."""

    def parameters(self, n_rows, name="parameters"):
        rng = random(name)
        return {
            "seeds": rng.integers(-(2**63), 2**63, n_rows),
            "steps": rng.integers(0, 2**63, n_rows),
            "temperature": rng.uniform(0, 2, n_rows).astype("float32"),
            "k": rng.integers(0, 200, n_rows).astype("int32"),
            "top_p": rng.uniform(0, 1.2, n_rows),
            "min_p": (rng.uniform(0, 0.2, n_rows) ** 2).astype("float16"),
        }

    def test_rows_alone_and_in_any_order(self):
        x, given = logits((60, 777)), self.parameters(60)
        tokens = dmlops.sample(x, **given)
        order = random("order").permutation(60)
        permuted = dmlops.sample(x[order], **{name: value[order] for name, value in given.items()})
        assert_same(permuted, tokens[order])
        for row in range(0, 60, 7):
            one = dmlops.sample(
                x[row], **{name: value[row : row + 1].reshape(()) for name, value in given.items()}
            )
            assert one == tokens[row]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_layouts(self, layout):
        x = LAYOUTS[layout](logits((6, 5, 333)))
        given = {name: value.reshape(6, 5) for name, value in self.parameters(30).items()}
        expected = sampling.sample(np.ascontiguousarray(x), **given)
        assert_same(dmlops.sample(x, **given), expected)
        strided = {name: LAYOUTS["every_other"](value) for name, value in given.items()}
        out = np.full((6, 10), 77)[:, ::2]
        assert dmlops.sample(x, **strided, out=out) is out
        assert_same(np.ascontiguousarray(out), expected)

    def test_threads(self, restore_num_threads):
        x, given = logits((40, 30_000)), self.parameters(40)
        found = []
        for n_threads in (1, 2, 5):
            dmlops.set_num_threads(n_threads)
            found.append(dmlops.sample(x, **given))
        assert_same(found[1], found[0])
        assert_same(found[2], found[0])

    def test_kinds_keep_nothing_of_earlier_calls(self):
        for turn in range(6):
            x = logits((4, 50 + turn), name=turn)
            given = {name: value[:4] for name, value in self.parameters(4, turn).items()}
            options = {"k": turn, "top_p": 0.9, "min_p": 0.01 * turn, "temperature": 0.5 + turn}
            assert_same(dmlops.sample(x, turn, **options), sampling.sample(x, turn, **options))
            assert_same(dmlops.sample(x, **given), sampling.sample(x, **given))


def test_frequencies_are_the_weights():
    probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    x = np.broadcast_to(np.log(probabilities), (200_000, 5))
    counts = np.bincount(dmlops.sample(x, np.arange(200_000)), minlength=5)
    error = np.abs(counts - 200_000 * probabilities) / np.sqrt(200_000 * probabilities * (1 - probabilities))
    assert error.max() < 4.5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("row", [[], [np.nan] * 3, [-np.inf, np.nan], [-np.inf]], ids=str)
def test_no_element_with_a_weight(dtype, row):
    for options in ({}, {"temperature": 0.0}, {"k": 1}, {"top_p": 0.5}):
        for index_dtype in INDEX_DTYPES:
            tokens = dmlops.sample(np.array([row, row], dtype), 1, index_dtype=index_dtype, **options)
            assert_same(tokens, np.array([-1, -1]).astype(index_dtype))


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (4, {"top_p": 0.95, "temperature": 3.0}),
        (40, {"top_p": 0.95, "temperature": 2.0}),
        (140, {"k": 130, "temperature": 4.0}),
        (140, {"k": 130, "top_p": 0.97, "temperature": 4.0}),
    ],
)
def test_what_stays_ends_far_below_zero(n, options):
    """Bits of float64 on both sides of zero are 2^63 and more apart."""
    x = logits((300, n), "float64", spread=2.0)
    x[:, 0] = 3
    assert_same(dmlops.sample(x, np.arange(300), **options), sampling.sample(x, np.arange(300), **options))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("options", [{}, {"top_p": 0.99}, {"k": 3, "top_p": 0.99}], ids=str)
@pytest.mark.parametrize("temperature", [1, 10, math.inf])
def test_nan_among_others_is_never_drawn(temperature, options, dtype):
    x = np.broadcast_to(np.array([1.0, np.nan, 0.5, -1.0, np.nan], dtype), (100, 5))
    tokens = dmlops.sample(x, np.arange(100), temperature=temperature, **options)
    assert set(tokens.tolist()) == {0, 2, 3}


def test_no_rows():
    assert_same(dmlops.sample(np.zeros((0, 3, 5), "float32"), 1), np.zeros((0, 3), "int64"))
    assert_same(dmlops.sample(np.zeros((2, 0, 5)), np.zeros((2, 1), "int32")), np.zeros((2, 0), "int64"))


def test_clamping_of_arrays():
    x = np.array([0.0, 1.0, 2.0, 1.5])
    for name, values, same in (
        ("top_p", [np.nan, 2.0, np.inf, -1.0, -np.inf], [1.0, 1.0, 1.0, 0.0, 0.0]),
        ("min_p", [np.nan, 2.0, np.inf, -1.0, -np.inf], [0.0, 1.0, 1.0, 0.0, 0.0]),
        ("temperature", [np.nan, -1.0, -0.0, -np.inf], [0.0, 0.0, 0.0, 0.0]),
        ("k", [-1, 0, 5, 2**62], [0, 0, 0, 0]),
    ):
        for value, other in zip(values, same, strict=True):
            for seed in range(20):
                got = dmlops.sample(x, seed, **{name: np.array(value)})
                assert got == dmlops.sample(x, seed, **{name: other})
    assert dmlops.sample(x, 3, k=np.array(2**64 - 1, "uint64")) == dmlops.sample(x, 3)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"temperature": math.nan}, InvalidDescriptorError, r"sample\.temperature: got nan.*must not be NaN"),
        ({"temperature": "hot"}, TypeError, r"sample\.temperature: got .*must be a real number"),
        ({"top_p": 1.5}, InvalidDescriptorError, r"sample\.top_p: got 1\.5.*must be in \[0, 1\]"),
        ({"top_p": math.nan}, InvalidDescriptorError, r"sample\.top_p: got nan.*must be in \[0, 1\]"),
        ({"min_p": -0.1}, InvalidDescriptorError, r"sample\.min_p: got -0\.1.*must be in \[0, 1\]"),
        ({"k": 2.5}, TypeError, r"sample\.k: got 2\.5, .*k must be an integer"),
        ({"seeds": 1.5}, TypeError, r"sample\.seeds: got 1\.5, .*seeds must be an integer"),
        ({"seeds": None}, TypeError, r"sample\.seeds: got None"),
        ({"steps": 2**64}, InvalidDescriptorError, r"sample\.steps: got 18446744073709551616"),
        ({"seeds": np.zeros(3, "int64")}, InvalidDescriptorError, r"sample\.seeds: got shape \(3,\)"),
        ({"steps": np.zeros((1, 2), "int64")}, InvalidDescriptorError, r"sample\.steps: got shape \(1, 2\)"),
        ({"seeds": np.zeros(2)}, TypeError, r"sample\.seeds: got float64"),
        ({"k": np.zeros(2, "int8")}, TypeError, r"sample\.k: got int8"),
        ({"top_p": np.ones(2, "int64")}, TypeError, r"sample\.top_p: got int64"),
        ({"index_dtype": "int8"}, TypeError, r"sample\.index_dtype: got 'int8'"),
        ({"out": np.zeros(3, "int64")}, InvalidDescriptorError, r"sample\.out: got shape \(3,\)"),
        (
            {"out": np.zeros(2, "int64"), "index_dtype": "int32"},
            InvalidDescriptorError,
            r"sample\.out: got int64",
        ),
        ({"out": np.zeros(2)}, TypeError, r"sample\.out: got float64"),
        ({"stream": 0}, InvalidDescriptorError, r"sample\.stream"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors(options, error, text):
    for _ in range(2):
        with pytest.raises(error, match=text):
            dmlops.sample(logits((2, 5)), **{"seeds": 1, **options})
        dmlops.sample(logits((2, 5)), 1)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (
            np.zeros((2, 3), "int32"),
            TypeError,
            r"sample\.logits: got int32.*float16, bfloat16, float32 or float64",
        ),
        (np.zeros((2, 3), "complex64"), TypeError, r"sample\.logits: got complex64"),
        (np.float32(1.0), InvalidDescriptorError, r"sample\.logits: got 0 dimensions"),
        (np.broadcast_to(np.float16(0), (1, 2**26 + 1)), InvalidDescriptorError, r"sample\.logits.*67108864"),
    ],
    ids=["int", "complex", "0-d", "long"],
)
def test_refused_logits(x, error, text):
    with pytest.raises(error, match=text):
        dmlops.sample(x, 1)


def test_levels_of_directml_have_no_such_operator():
    with dmlops.feature_level("DML_6_4"):
        for _ in range(2):
            with pytest.raises(UnsupportedFeatureError, match=r"sample\..*EXTENDED"):
                dmlops.sample(logits((2, 5)), 1)
    dmlops.sample(logits((2, 5)), 1)


def test_an_output_has_memory_of_its_own():
    memory = np.zeros(8, "int64")
    for _ in range(2):
        with pytest.raises(InvalidDescriptorError, match=r"sample\.out: .*shares memory with sample\.seeds"):
            dmlops.sample(logits((4, 9)), memory[:4], out=memory[2:6])
        dmlops.sample(logits((4, 9)), memory[:4], out=memory[4:])


@pytest.mark.parametrize("protocol", ["__array_interface__", "__array__"])
def test_parameters_known_by_a_protocol_are_arrays(protocol):
    def known(array):
        return type("Known", (), {protocol: getattr(array, protocol)})()

    rows, seeds, temperature = logits((3, 20)), np.arange(3), np.array([0.0, 1.0, 2.0])
    for _ in range(2):
        tokens = dmlops.sample(rows, known(seeds), k=known(seeds), temperature=known(temperature))
        assert_same(tokens, dmlops.sample(rows, seeds, k=seeds, temperature=temperature))


def test_lists_of_seeds_are_exact(library):
    rows = logits((2, 50))
    expected = [dmlops.sample(row, seed)[()] for row, seed in zip(rows, (2**64 - 1, 1), strict=True)]
    assert library.to_numpy(dmlops.sample(library.from_numpy(rows), [2**64 - 1, 1])).tolist() == expected
    assert dmlops.sample(library.from_numpy(rows[:0]), []).shape == (0,)
    with pytest.raises(InvalidDescriptorError, match=r"sample\.seeds: got -1, but no type of 64 bits holds"):
        dmlops.sample(rows, [2**64 - 1, -1])
