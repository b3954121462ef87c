"""The functions of `dmlops` under names of their own, and the operators ``torch.ops.dmlops`` behind them.

`dmlops.top_k`, `nonzero_coordinates` and `gather_nd` differentiate, and can be compiled and exported; here they
are again. Import this module to register the operators before an exported program is loaded.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import dmlops
from dmlops import gather_nd, nonzero_coordinates, top_k, torch_operators

__all__ = ["diagonal_matrix", "gather_nd", "nonzero_coordinates", "top_k"]


def diagonal_matrix(
    x: Tensor | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
    **options: Any,
) -> Tensor:
    """Return the matrix of `dmlops.diagonal_matrix` as a tensor, without an array that it is like.

    Without `x`, `shape`, `dtype` and `device` mean what they do to `torch.zeros`.
    """
    if x is not None:
        return dmlops.diagonal_matrix(x, shape=shape, dtype=dtype, **options)  # type: ignore[call-overload, no-any-return]
    like = torch.empty((), dtype=dtype, device=device)
    return dmlops.diagonal_matrix(shape=shape, like=like, **options)
