"""ONNX's TopK, NonZero, GatherND, Trilu and EyeLike, run by dmlops in ONNX's reference evaluator.

Inputs that dmlops does not support, such as strings, go to onnx's own implementation.
"""

from collections.abc import Container
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

import dmlops
from dmlops.operators.support import INDEX_TYPES
from dmlops.types.data_types import SUPPORTED
from kernels_cpu.cached import cached_property

_INDEX_NAMES = frozenset(data_type.name.lower() for data_type in INDEX_TYPES)


class _LeftToOnnxError(Exception):
    """The inputs of a node have a type or form that dmlops does not support."""


class _Operator(OpRun):  # type: ignore[misc]
    """An operator that dmlops runs, or onnx if `_run` raises _LeftToOnnxError."""

    def run(self, *inputs: object, **options: Any) -> object:
        try:
            return super().run(*inputs, **options)
        except _LeftToOnnxError:
            return self._of_onnx.run(*inputs, **options)

    @cached_property
    def _of_onnx(self) -> Any:
        implementation = load_op("", self.op_type, self.run_params["opsets"][self.domain])
        return implementation(self.onnx_node, self.run_params)


def _leave_unless(is_supported: bool) -> None:
    if not is_supported:
        raise _LeftToOnnxError


def _check_type(array: np.ndarray, types: Container[str] = SUPPORTED) -> None:
    is_plain = isinstance(array, (np.ndarray, np.generic)) and not isinstance(array, np.ma.MaskedArray)
    _leave_unless(is_plain and array.dtype.isnative and array.dtype.name in types)


def _number(k: Any) -> int:
    """Return the `k` of TopK or Trilu: an attribute, or an input of one integer."""
    if isinstance(k, int):
        return k
    _check_type(k, _INDEX_NAMES)
    _leave_unless(k.size == 1)
    return int(k.item())


class TopK(_Operator):
    """TopK; ties by ascending index. If `sorted` is 0, the results are in order of index."""

    def _run(
        self, x: np.ndarray, k: object, *, axis: int = -1, largest: int = 1, sorted: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        _check_type(x)
        found = dmlops.top_k(
            x, _number(k), axis=axis, largest=bool(largest), sorted=bool(sorted), index_dtype=np.int64
        )
        return found.values, found.indices


class NonZero(_Operator):
    """NonZero: one row per dimension, one column per element."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        _check_type(x)
        return (np.ascontiguousarray(dmlops.nonzero_coordinates(x, index_dtype=np.int64).coordinates.T),)


class GatherND(_Operator):
    """GatherND; an index out of range is an IndexOutOfRangeError."""

    def _run(self, data: np.ndarray, indices: np.ndarray, *, batch_dims: int = 0) -> tuple[np.ndarray]:
        _check_type(data)
        _check_type(indices, _INDEX_NAMES)
        return (dmlops.gather_nd(data, indices, batch_dims=batch_dims),)


class Trilu(_Operator):
    """Trilu; the default is the upper triangle."""

    def _run(self, x: np.ndarray, k: object = None, *, upper: int = 1) -> tuple[np.ndarray]:
        _check_type(x)
        _leave_unless(x.ndim >= 2)
        triangle = dmlops.triu if upper else dmlops.tril
        return (triangle(x, 0 if k is None else _number(k)),)


class EyeLike(_Operator):
    """EyeLike; the default type is that of the input."""

    def _run(self, x: np.ndarray, *, dtype: int | None = None, k: int = 0) -> tuple[np.ndarray]:
        _leave_unless(x.ndim == 2)
        result_type = x.dtype if dtype is None else tensor_dtype_to_np_dtype(dtype)
        _leave_unless(result_type.isnative and result_type.name in SUPPORTED)
        return (dmlops.diagonal_matrix(shape=x.shape, dtype=result_type, begin=k),)


__all__ = ["OPERATORS"]

# A list, because onnx before 1.23 appends operators of its own.
OPERATORS: list[type] = [TopK, NonZero, GatherND, Trilu, EyeLike]
"""For the argument ``new_ops`` of `onnx.reference.ReferenceEvaluator`."""
