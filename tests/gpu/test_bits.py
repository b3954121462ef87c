"""Subnormal numbers on a GPU."""

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
