"""Inferred results of functions, traced and lazy arrays: descriptors of such calls pass their own checks."""

from dataclasses import replace

import numpy as np
import pytest

from dmlops import (
    DiagonalMatrix1,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from dmlops.operators.diagonal_matrix import diagonal_matrix_descriptor, infer_diagonal_matrix
from dmlops.operators.gather_nd import gather_nd_descriptor, infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates, nonzero_coordinates_descriptor
from dmlops.operators.top_k import infer_top_k, top_k_descriptor

F32, U8, I64, U32 = (TensorDataType[name] for name in ("FLOAT32", "UINT8", "INT64", "UINT32"))
SHAPES = [(), (5,), (3, 4), (2, 1, 3), (0, 4), (2, 3, 4, 5)]


def check(descriptor):
    """Check that a descriptor which was inferred is one that also checks itself."""
    checked = replace(descriptor)
    assert checked == descriptor
    assert checked.tensors == descriptor.tensors
    assert type(descriptor).from_json(descriptor.to_json()) == descriptor


@pytest.mark.parametrize("shape", SHAPES)
def test_top_k(shape):
    data = TensorDesc(F32, shape)
    rank = max(len(shape), 1)
    for axis in range(-rank, rank):
        size = (shape or (1,))[axis]
        for k in sorted({0, min(1, size), size}):
            values, indices = infer_top_k(TopK1.words, data, k, axis, I64)
            whole = np.empty(shape or (1,)).take(np.zeros(k, int), axis) if size else np.empty(values.sizes)
            assert values.sizes == indices.sizes == whole.shape
            assert (values.data_type, indices.data_type) == (F32, I64)
            if k:
                check(top_k_descriptor(data, axis, k, True, values, indices))
        with pytest.raises(InvalidDescriptorError, match=rf"k must be in \[0, {size}\]"):
            infer_top_k(TopK1.words, data, size + 1, axis, I64)


@pytest.mark.parametrize("shape", SHAPES)
def test_nonzero_coordinates(shape):
    data = TensorDesc(U8, shape)
    for capacity in (data.element_count, 7):
        coordinates, count = infer_nonzero_coordinates(NonzeroCoordinates.words, data, capacity, U32)
        assert coordinates.sizes == (capacity, len(shape))
        assert count.sizes == ()
        check(nonzero_coordinates_descriptor(data, coordinates, count))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape])
def test_gather_nd(shape):
    data = TensorDesc(F32, shape)
    for batch in range(len(shape)):
        for tuple_size in range(len(shape) - batch + 1):
            for more in ((), (6,), (1, 2, 3)):
                indices = TensorDesc(I64, (*shape[:batch], *more, tuple_size))
                output = infer_gather_nd(GatherND1.words, data, indices, batch)
                assert output.sizes == (*shape[:batch], *more, *shape[batch + tuple_size :])
                check(gather_nd_descriptor(data, indices, batch, output))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 1])
def test_diagonal_matrix(shape):
    data = TensorDesc(U8, shape)
    output = infer_diagonal_matrix(DiagonalMatrix1.words, U8, shape, 3)
    assert output == data
    for given in (data, None):
        check(diagonal_matrix_descriptor(given, output, 3, -1, 2**40))
    with pytest.raises(InvalidDescriptorError, match=r"value must be an integer in \[0, 255\]"):
        infer_diagonal_matrix(DiagonalMatrix1.words, U8, shape, 256)
