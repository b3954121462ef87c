"""Subnormal numbers, and scalars at the limits of their types, on a GPU."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import FLOATS, bits, float_from_bits
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
