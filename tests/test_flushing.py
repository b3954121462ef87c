"""A processor that is set to flush subnormal numbers to zero, as XLA sets its threads, changes no answer.

Every call is made while it flushes, and again when it does not: what is kept of a call must be right, too.
"""

import dataclasses
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

import dmlops
from dmlops import Descriptor, DiagonalMatrix1, FeatureLevel, TensorDataType, TensorDesc
from tests import reference
from tests.data import FLOATS, bits, float_from_bits
from tests.marks import exhaustive
from tests.opaque_data import COMPLEX, FLOAT8, band, is_nonzero, raw

torch = pytest.importorskip("torch")
STRUCTURED = (
    np.dtype("u1,f4"),
    np.dtype(
        [("h", "f2"), ("b", ml_dtypes.bfloat16), ("d", "f8"), ("c", "c8"), ("z", "c16"), ("p", "f4", (2,))]
    ),
)
ORDINARY = np.dtype("float32"), COMPLEX[0], STRUCTURED[0]
INDICES = np.array([[1], [-1], [0]])


@contextmanager
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        assert np.float32(1e-30) * np.float32(1e-10) == 0
        yield
    finally:
        torch.set_flush_denormal(False)


def both_ways(check):
    """Check twice while the processor flushes, and once when it does not."""
    with flushing():
        check()
        check()
    check()


def subnormal(dtype, shape):
    """Return subnormal numbers and zeros of both signs."""
    rng = np.random.default_rng(7)
    if dtype.kind == "c":
        parts = subnormal(np.dtype(f"f{dtype.itemsize // 2}"), (*shape, 2))
        return np.where(rng.random((*shape, 1)) < 0.3, parts[:1, :1] * 0, parts).view(dtype)[..., 0]
    if dtype.names is not None or dtype in FLOAT8:
        is_set = rng.random((*shape, dtype.itemsize)) < 0.6 / dtype.itemsize
        return np.where(is_set, rng.choice([1, 0x80], is_set.shape), 0).astype("u1").view(dtype)[..., 0]
    sign = 1 << (8 * dtype.itemsize - 1)
    quiet = int(bits(np.asarray(np.inf, dtype))) & -int(bits(np.asarray(np.inf, dtype)))
    patterns = [0, sign, 1, sign | 1, 2, quiet - 1, sign | (quiet - 1)]
    return float_from_bits(rng.choice(patterns, shape), dtype)


def value_of(dtype):
    """Return a value with subnormal parts, and its bytes; the value is a scalar of the type, made of bits."""
    if dtype.names is not None:
        return (value := subnormal(dtype, (99,))[98]), raw(value)
    value = np.frombuffer(b"\1" + bytes(dtype.itemsize - 1), dtype)[0]
    return value, raw(value)


@pytest.mark.parametrize(
    "dtype", [*ORDINARY, *map(exhaustive, (*FLOATS, COMPLEX[1], *FLOAT8, STRUCTURED[1]))], ids=str
)
def test_functions(dtype):
    x = subnormal(dtype, (5, 40))
    nonzero = np.argwhere(is_nonzero(x))
    value, filler = value_of(dtype)
    on_band = band(x.shape, -1, 2)[..., None]
    expected = [
        raw(x)[INDICES[:, 0]],
        np.where(on_band, filler, raw(x)),
        np.where(on_band, filler, np.uint8(0)),
        np.where(np.tri(*x.shape, dtype=bool)[..., None], raw(x), np.uint8(0)),
        np.where(np.tri(*x.shape, -1, dtype=bool)[..., None], np.uint8(0), raw(x)),
    ]
    assert 0 < len(nonzero) < x.size

    def check():
        if dtype.names is None:
            found = dmlops.nonzero_coordinates(x)
            assert np.array_equal(found.coordinates, nonzero)
            assert found.count == len(nonzero)
        results = (
            dmlops.gather_nd(x, INDICES),
            dmlops.diagonal_matrix(x, value=value, begin=-1, end=2),
            dmlops.diagonal_matrix(shape=x.shape, dtype=dtype, value=value, begin=-1, end=2),
            dmlops.tril(x),
            dmlops.triu(x),
        )
        for result, right in zip(results, expected, strict=True):
            assert np.array_equal(raw(result), right)

    both_ways(check)


@pytest.mark.parametrize("sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [ORDINARY[0], *map(exhaustive, FLOATS)], ids=str)
def test_top_k(dtype, largest, sorted):
    x, lengths = subnormal(dtype, (4, 300)), np.array([0, 5, 100, 300])
    cases = []
    for k in (1, 9, 300):
        for options in ({}, {"lengths": lengths}):
            options |= {"largest": largest, "sorted": sorted}
            cases.append((k, options, reference.top_k(x, k, **options)))

    def check():
        for k, options, (values, indices) in cases:
            found = dmlops.top_k(x, k, **options)
            assert np.array_equal(bits(found.values), bits(values))
            assert np.array_equal(found.indices, indices)

    both_ways(check)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_descriptors(dtype):
    """The value of a matrix, as a number and as text."""
    number = float(float_from_bits([1], dtype)[0])
    desc = TensorDesc(TensorDataType[dtype.name.upper()], (6, 7))
    made = DiagonalMatrix1(output_tensor=desc, value=number, diagonal_fill_begin=0, diagonal_fill_end=1)

    def check():
        for descriptor in (
            made,
            dataclasses.replace(made, value=number),
            Descriptor.from_json(made.to_json()),
        ):
            assert descriptor == made
            out = np.zeros((6, 7), dtype)
            dmlops.compile(descriptor, feature_level=FeatureLevel.EXTENDED).execute({"output_tensor": out})
            assert np.array_equal(bits(out), np.eye(6, 7, dtype=bits(out).dtype))

    both_ways(check)


@pytest.mark.parametrize("number", [1e-40, -1e-45, 1e-310, complex(1e-40, -1e-310)])
def test_numbers_of_python(number):
    """They are rounded in integer arithmetic; for times and integers they are no whole numbers."""
    types = COMPLEX if isinstance(number, complex) else (*FLOATS, *COMPLEX)
    expected = {dtype: raw(np.array([number], dtype)) for dtype in types}

    def check():
        for dtype in types:
            for value in (number, np.array(number)):
                made = dmlops.diagonal_matrix(shape=(1, 1), dtype=dtype, value=value)
                assert np.array_equal(raw(made)[0], expected[dtype])
        for other in ("int8", "bool", "datetime64[s]", "timedelta64[s]", "u1,f4"):
            with pytest.raises(dmlops.InvalidDescriptorError, match=r"diagonal_matrix\.value"):
                dmlops.diagonal_matrix(shape=(1, 1), dtype=other, value=number)

    both_ways(check)


def test_torch_and_jax():
    jax = pytest.importorskip("jax")
    integrated = pytest.importorskip("dmlops.integrations.jax").diagonal_matrix
    x, zeros = np.ones((2, 2), np.float32), torch.ones(2, 2)
    scalar = torch.tensor([71362], dtype=torch.int32).view(torch.float32)[0]
    compiled = jax.jit(lambda x: integrated(x, value=1e-40))
    asked = jax.numpy.asarray(x)

    def check():
        for value in (1e-40, scalar):
            made = dmlops.diagonal_matrix(zeros, value=value)
            assert made.view(torch.int32)[0, 0] == 71362
        for made in (
            integrated(asked, value=1e-40),
            compiled(asked),
            dmlops.diagonal_matrix(asked, value=1e-40),
        ):
            assert np.asarray(made).view(np.int32)[0, 0] == 71362

    both_ways(check)
