"""Arguments of calls that torch differentiates or traces: tensors, and numbers that may be symbols."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dmlops.array_libraries import frameworks
from dmlops.array_libraries.numpy import NUMPY, refuse_object
from dmlops.array_libraries.torch import check_kind, refuse_as_scalar
from dmlops.calls.binding import check_is_pair
from dmlops.calls.dispatch import level_or
from dmlops.integrations.torch.derivatives import is_known
from dmlops.operators.descriptor import check_index_type
from dmlops.types import arguments, scalars
from dmlops.types.data_types import data_type_of, index_data_type
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import argument_of, error_text, instance_of, refuse, shown
from dmlops.types.opaque_types import ElementType, type_name


def is_distributed(x: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return type(x).__name__ == "DTensor"


def distributed_rules() -> dict[str, Callable[..., object]]:
    """Return what runs the operators on DTensors; the first call registers it with torch."""
    return frameworks.torch_distributed.RULES  # type: ignore[no-any-return]


def torch_dtype(data_type: ElementType) -> torch.dtype:
    """Return torch's name of an element type."""
    return getattr(torch, type_name(data_type))


def tensor(x: object, where: str) -> Tensor:
    """Return an array that must be a tensor here."""
    if not isinstance(x, Tensor):
        if not _is_array(x):
            refuse_object(x, where)
        reason = "torch differentiates or traces this call"
        raise TypeError(error_text(where, instance_of(x), reason, "it must be a tensor"))
    check_kind(x, where)
    if is_distributed(x):
        distributed_rules()
    return x


def as_tensor(array: object, where: str, beside: Tensor | None = None) -> Tensor:
    """Return an input of integers, which may be of another library, as a tensor; an int lies on a device."""
    if beside is not None and isinstance(array, (int, torch.SymInt)) and not isinstance(array, bool):
        _check_fits(array, where)
        return beside.new_full((), array, dtype=torch.int64)
    if not isinstance(array, Tensor) and _is_array(array):
        # Not on torch's default device, if that is another one.
        device = "cpu" if isinstance(array, (np.ndarray, Sequence)) else None
        # A copy, because torch does not see what is written to the array before a backward pass.
        if not torch.compiler.is_compiling() and isinstance(array, (Sequence, np.ndarray)):
            array = NUMPY.as_plain(array, where)
            data_type_of(array.dtype, where)  # torch has no words for others
        array = np.asarray(array) if isinstance(array, Sequence) else array
        array = torch.as_tensor(array, device=device).clone()
    return tensor(array, where)


def _is_array(x: object) -> bool:
    return isinstance(x, (Sequence, int, float, complex)) or hasattr(x, "shape")


def _check_fits(value: object, where: str) -> None:
    """Refuse an integer that torch's operators cannot pass."""
    if type(value) is int and (is_known(value < -(2**63)) or is_known(value >= 2**63)):
        reason = "torch passes integers to its operators in 64 bits with a sign"
        refuse(where, value, reason, "it must be in [-2**63, 2**63 - 1] in a graph, and with a derivative")


def scalar(value: object, where: str) -> Any:
    """Return a scalar that fills elements, which may be a symbol."""
    if isinstance(value, Tensor):
        refuse_as_scalar(where)
    value = number(value)
    if type(value) not in (int, float, torch.SymInt, torch.SymFloat):
        value = scalars.fill_scalar(value, where)
    if isinstance(value, (str, np.generic)):
        allowed = f"{argument_of(where)} must be a number"
        raise TypeError(error_text(where, shown(value), "torch has no such elements", allowed))
    _check_fits(value, where)
    return value


def number(value: object) -> Any:
    """Return a scalar of NumPy, which torch's compiler takes for an array, as Python's."""
    if not isinstance(value, np.ndarray) or value.ndim:
        return value
    converted = torch.as_tensor(value)
    return (converted.long() if converted.dtype is torch.bool else converted).item()


def integer(value: object, where: str) -> int:
    """Return an integer unchanged; it may be a symbol."""
    plain = arguments.integer(number(value), where)
    _check_fits(plain, where)
    return plain


def real(value: object, where: str) -> float:
    """Return a real number unchanged; it may be a symbol."""
    plain = number(value)
    if arguments.is_symbol(plain) or type(plain) is float:
        return plain  # type: ignore[no-any-return]
    found = scalars.as_real(plain)
    if found is None:
        allowed = f"{argument_of(where)} must be a real number"
        raise TypeError(error_text(where, shown(value), "it is not a number", allowed))
    return float(found)


def index_dtype(dtype: object, out: Any, function: str) -> torch.dtype | None:
    """Return the type of the indices of a call; None for int64."""
    if dtype is not None:
        return torch_dtype(index_data_type(dtype, f"{function}.index_dtype"))
    if out is not None:
        check_is_pair(out, f"{function}.out")
        dtype, where = tensor(out[1], f"{function}.out[1]").dtype, f"{function}.out[1]"
        return torch_dtype(check_index_type(where, data_type_of(dtype, where)))
    # The compiler cannot trace the look-up of the level; a compiled call checks it when it runs.
    if torch.compiler.is_dynamo_compiling() or level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED:
        return None
    return torch.uint32
