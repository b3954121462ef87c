"""The operators in ONNX: the argument ``custom_translation_table`` of ``torch.onnx.export``.

TopK, NonZero, GatherND and Trilu of opset 18 do the work, so the model runs without dmlops. ONNX does not say
where TopK puts NaN. The translations are in the modules of the operators, which take this module as `onnx`.
"""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from onnxscript import ir
from onnxscript import opset18 as op

from dmlops.integrations.torch.operators import MODULES
from dmlops.integrations.torch.operators.registration import signature_of
from dmlops.types.errors import UnsupportedFeatureError, error_text

__all__ = ["FAR", "TRANSLATIONS", "DataType", "op"]

FAR = 2**31
"""Bounds of bands become so large at most: runtimes add them to positions."""
DataType = ir.DataType


def refuse(where: str, got: str, allowed: str) -> NoReturn:
    raise UnsupportedFeatureError(error_text(where, got, "ONNX has no operator for it", allowed))


def constant(value: float | ir.Value) -> ir.Value:
    """Return a number, unless it is computed in the graph, as a constant."""
    if not isinstance(value, (bool, int, float)):
        return value
    return op.Constant(value=ir.tensor(np.array(value, "float64" if isinstance(value, float) else "int64")))


def ints(numbers: list[int]) -> ir.Value:
    return op.Constant(value_ints=numbers)


def vector(number: int | ir.Value) -> ir.Value:
    """Return a number, which may be computed in the graph, as a vector."""
    return ints([number]) if isinstance(number, int) else op.Reshape(number, ints([1]))


def as_type(indices: ir.Value, dtype: int | None) -> ir.Value:
    return indices if dtype is None else op.Cast(indices, to=dtype)


def _translation(to_onnx: Callable[..., object], arguments: type[Any]) -> Callable[..., object]:
    def translate(*given: object, **named: object) -> object:
        return to_onnx(sys.modules[__name__], arguments(*given, **named))

    translate.__signature__ = signature_of(arguments)  # type: ignore[attr-defined]
    return translate


TRANSLATIONS = {
    overload: _translation(module.to_onnx, arguments)
    for module in MODULES.values()
    if hasattr(module, "to_onnx")
    for overload, arguments in module.OPERATORS.items()
}
"""By operator of ``torch.ops.dmlops``."""
