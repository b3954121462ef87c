"""The operators as torch operators, ``torch.ops.dmlops``, with their derivatives: a module for each."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from dmlops.functions import SPECS
from dmlops.integrations.torch.memory import check_known_strides, check_memory
from dmlops.integrations.torch.operators.registration import implement_vmap, operator
from dmlops.types.errors import refuse

MODULES = {name: import_module(f"{__name__}.{name}") for name in SPECS}
"""The module of each function by its name: its operators, and `front`, which prepares a call of them."""

OPERATORS = tuple([overload for module in MODULES.values() for overload in module.OPERATORS])
"""The operators of ``torch.ops.dmlops`` that compute something."""


class _MemoryCall(NamedTuple):
    read: Sequence[Tensor]
    written: Sequence[Tensor]
    names: str


def _fake_check(call: _MemoryCall) -> Tensor:
    return check_known_strides(*call)


def _check_batch(
    info: object, in_dims: Any, read: Sequence[Tensor], written: Sequence[Tensor], names: str
) -> tuple[Tensor, None]:
    for array, d, name in zip(written, in_dims[1], names.split(",")[len(read) :], strict=True):
        if d is None:
            got, reason = f"shape {tuple(array.shape)}", "all examples of torch.func.vmap would write to it"
            refuse(name, got, reason, "out must have a part for each example")
    return CHECK_MEMORY(read, written, names), None


CHECK_MEMORY = operator("check_memory", _MemoryCall, check_memory, _fake_check)
"""Checks the memory of outputs before anything is written to them; graphs leave it out, once it is traced."""
implement_vmap(CHECK_MEMORY, _check_batch)
