"""The functions of `dmlops` for tensors, and the operators ``torch.ops.dmlops`` behind them.

All but `diagonal_matrix` are the functions of `dmlops`, which differentiate and compile by themselves. Import
this module before you load a program that was exported with them: it registers the operators.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import dmlops
from dmlops import gather_nd, nonzero_coordinates, sample, top_k
from dmlops.integrations.torch.operators import OPERATORS
from dmlops.integrations.torch.topk_mode import stable_topk

__all__ = [
    "OPERATORS",
    "diagonal_matrix",
    "gather_nd",
    "nonzero_coordinates",
    "sample",
    "stable_topk",
    "top_k",
]


def diagonal_matrix(
    x: Tensor | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    device: object = None,
    **options: Any,
) -> Tensor:
    """Return the matrix of `dmlops.diagonal_matrix`, as a tensor even without `x`.

    `shape`, `dtype` and `device` then mean the same as for `torch.zeros`.
    """
    if x is None:
        like = torch.empty((), dtype=dtype, device=device)
        return dmlops.diagonal_matrix(shape=shape, like=like, **options)
    return dmlops.diagonal_matrix(x, shape=shape, dtype=dtype, **options)
