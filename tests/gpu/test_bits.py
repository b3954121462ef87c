"""Subnormal numbers, scalars at the limits of their types, and bools of any byte, on a GPU."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import FLOATS, assert_same, bits, float_from_bits, random
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.sampled_rows import equal_elements
from tests.test_flushing import both_ways, subnormal


def patterns_of(tensor, torch):
    """Return the bits of a tensor on the GPU."""
    return tensor.view(getattr(torch, f"int{8 * tensor.element_size()}")).cpu().numpy()


def on_gpu(x, torch):
    """Return a tensor of the same bits on the GPU."""
    size = x.dtype.itemsize
    return torch.tensor(x.view(f"i{size}"), device="cuda").view(getattr(torch, x.dtype.name))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormal_numbers(dtype, torch):
    x = subnormal(dtype, (6, 3000))
    tensor = on_gpu(x, torch)
    number = float(float_from_bits([1], dtype)[0])
    coordinates, count = reference.nonzero_coordinates(x)
    selected = {
        (k, largest): reference.top_k(x, k, largest=largest)
        for k in (1, 70, 3000)
        for largest in (True, False)
    }
    filled = np.where(np.eye(*x.shape, dtype=bool), 1, bits(x))

    def check():
        found = dmlops.nonzero_coordinates(tensor)
        assert np.array_equal(found.coordinates.cpu().numpy(), coordinates)
        assert found.count == count
        for (k, largest), (values, indices) in selected.items():
            found = dmlops.top_k(tensor, k, largest=largest)
            assert np.array_equal(found.indices.cpu().numpy(), indices)
            assert np.array_equal(patterns_of(found.values, torch), bits(values).astype(f"i{dtype.itemsize}"))
        made = dmlops.diagonal_matrix(tensor, value=number)
        assert np.array_equal(patterns_of(made, torch), filled.astype(f"i{dtype.itemsize}"))

    both_ways(check)


@pytest.mark.parametrize(
    ("name", "held", "pattern", "refused"),
    [
        ("float16", 65519.99, 0x7BFF, 65520),
        ("bfloat16", 3.3961775292304957e38 - 2**110, 0x7F7F, 3.4e38),
        ("float32", 2**128 - 2**103 - 1, 0x7F7FFFFF, 1e39),
        ("float64", 2**1024 - 2**970 - 1, 0x7FEFFFFFFFFFFFFF, 10**400),
    ],
)
def test_limits(name, held, pattern, refused, torch):
    x = torch.zeros(2, 3, dtype=getattr(torch, name), device="cuda")
    for _ in range(3):
        assert patterns_of(dmlops.diagonal_matrix(x, value=held), torch)[0, 0] == pattern
        with pytest.raises(
            dmlops.InvalidDescriptorError, match=r"diagonal_matrix\.value: got .* once rounded"
        ):
            dmlops.diagonal_matrix(x, value=refused)


@pytest.mark.parametrize("choice", [None, *ALGORITHMS["top_k"]], ids=str)
@pytest.mark.parametrize("shape", [(70, 100), (5, 3000), (2, 70_001), (1, 500_000)], ids=str)
def test_set_bytes_tie(shape, choice, torch):
    rng = random(("set bytes", shape))
    with forced(choice):
        for share in (0.001, 0.5, 0.999):
            x = np.where(rng.random(shape) < share, rng.integers(1, 256, shape), 0).astype(np.uint8)
            tensor = torch.tensor(x, device="cuda").view(torch.bool)
            for k in sorted({1, 8, 64, 1000, 2048, shape[1]}):
                for largest in (True, False):
                    for is_sorted in (True, False):
                        if k > shape[1]:
                            continue
                        right = reference.top_k(x.view(bool), k, largest=largest, sorted=is_sorted)
                        try:
                            found = dmlops.top_k(tensor, k, largest=largest, sorted=is_sorted)
                        except CannotServeError:
                            continue
                        assert_same(found.indices.cpu().numpy(), right[1])
                        assert np.array_equal(
                            found.values.view(torch.uint8).cpu().numpy(), right[0].view("u1")
                        )


@pytest.mark.parametrize("choice", [None, *ALGORITHMS["top_k"]], ids=str)
@pytest.mark.parametrize("shape", [(70, 100), (5, 3000), (2, 70_001), (1, 500_000)], ids=str)
@pytest.mark.parametrize("kind", ["zeros", "NaNs"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda dtype: dtype.__name__)
def test_equal_elements_of_other_bits(dtype, kind, shape, choice, torch):
    x = equal_elements(dtype, kind, shape)
    tensor = on_gpu(x, torch)
    with forced(choice):
        for k in (1, 2, 50):
            for largest in (True, False):
                for is_sorted in (True, False):
                    right = reference.top_k(x, k, largest=largest, sorted=is_sorted)
                    try:
                        found = dmlops.top_k(tensor, k, largest=largest, sorted=is_sorted)
                    except CannotServeError:
                        continue
                    assert_same(found.indices.cpu().numpy(), right[1])
                    size = x.dtype.itemsize
                    assert np.array_equal(patterns_of(found.values, torch), right[0].view(f"i{size}"))


def test_set_bytes_along_the_first_axis(torch):
    x = random("set bytes").choice(np.array([0, 0, 1, 2, 128, 255], np.uint8), (5000, 70))
    tensor = torch.tensor(x, device="cuda").view(torch.bool)
    for k in (1, 16, 1000, 5000):
        for largest in (True, False):
            right = reference.top_k(x.view(bool), k, axis=0, largest=largest)
            found = dmlops.top_k(tensor, k, axis=0, largest=largest)
            assert_same(found.indices.cpu().numpy(), right[1])
            assert np.array_equal(found.values.view(torch.uint8).cpu().numpy(), right[0].view("u1"))
