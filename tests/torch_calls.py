"""Calls of every function on torch tensors, for tests of what torch is told of them."""

import numpy as np
import torch

import dmlops
from dmlops import DiagonalMatrix1, GatherND1, NonzeroCoordinates, TensorDataType, TensorDesc, TopK1

SHAPE = (3, 5)


def values(seed=0, device="cpu"):
    """Return numbers of which some are zero and some are equal."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return (x.mul(2).round() / 2).to(device)


def _new(shape, dtype=torch.float32):
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


def rows(x, *numbers):
    """Return indices of rows: an array of NumPy if x is, or a tensor on the device of x."""
    indices = torch.tensor(numbers)[:, None]
    if isinstance(x, np.ndarray):
        return indices.numpy()
    return indices.to(x.device if isinstance(x, torch.Tensor) else "cuda")


# What is called, and what makes the tensors that it writes to.
WRITES = {
    "top_k": (
        lambda x, *out: dmlops.top_k(x, 2, out=out),
        (_new((3, 2)), _new((3, 2), torch.int64)),
    ),
    "nonzero_coordinates": (
        lambda x, *out: dmlops.nonzero_coordinates(x, fill_value=-1, out=out),
        (_new((15, 2), torch.int64), _new((), torch.int64)),
    ),
    "gather_nd": (lambda x, out: dmlops.gather_nd(x, rows(x, 2, 0), out=out), (_new((2, 5)),)),
    "gather_nd_clipped": (
        lambda x, out: dmlops.gather_nd(x, rows(x, 9, 0), mode="clip", out=out),
        (_new((2, 5)),),
    ),
    "diagonal_matrix": (lambda x, out: dmlops.diagonal_matrix(x, value=7, out=out), (_new(SHAPE),)),
    "matrix_without_input": (lambda x, out: dmlops.diagonal_matrix(end=2, out=out), (_new(SHAPE),)),
    "tril": (lambda x, out: dmlops.tril(x, 1, out=out), (_new(SHAPE),)),
    "triu": (lambda x, out: dmlops.triu(x, 1, out=out), (_new(SHAPE),)),
    "eye": (lambda x, out: dmlops.eye(3, 5, dtype=None, out=out), (_new(SHAPE),)),
}


def _executed(descriptor, inputs=lambda x, out: (x,), workspace_bytes=0):
    """Return an entry of `WRITES` for a compiled operator, with a workspace or without one."""

    def call(x, *written):
        operator = dmlops.compile(descriptor, device=str(written[0].device), feature_level="EXTENDED")
        tensors = dict(zip(operator.inputs, inputs(x, written[0]), strict=True))
        tensors.update(zip(operator.outputs, written, strict=False))
        operator.execute(tensors, workspace=written[len(operator.outputs)] if workspace_bytes else None)

    outputs = [
        _new(desc.sizes, getattr(torch, desc.data_type.name.lower())) for desc in descriptor.outputs.values()
    ]
    return call, (*outputs, *([_new(workspace_bytes, torch.uint8)] if workspace_bytes else []))


_X = TensorDesc(TensorDataType.FLOAT32, SHAPE)
_TOP_K = TopK1(input_tensor=_X, axis=1, k=2, axis_direction="DECREASING")
WRITES |= {
    "TopK1": _executed(_TOP_K),
    "TopK1_with_workspace": _executed(_TOP_K, workspace_bytes=1 << 20),
    "NonzeroCoordinates": _executed(NonzeroCoordinates(input_tensor=_X)),
    "GatherND1": _executed(
        GatherND1(
            input_tensor=_X,
            indices_tensor=TensorDesc(TensorDataType.INT64, (2, 1)),
            input_dimension_count=2,
            indices_dimension_count=2,
            batch_dimension_count=0,
        ),
        lambda x, out: (x, rows(x, 2, 0)),
    ),
    "DiagonalMatrix1": _executed(
        DiagonalMatrix1(output_tensor=_X, value=1, diagonal_fill_begin=0, diagonal_fill_end=1),
        lambda x, out: (),
    ),
}
