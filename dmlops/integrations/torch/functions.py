"""Calls that torch differentiates or traces: from their arguments to ``torch.ops.dmlops``.

The functions of `dmlops` call `run` if kernels alone are not enough: because a derivative is requested, or
because the tensors stand for others in a graph or a transformation (see `ArrayLibrary.takes_over`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmlops.array_libraries.detect import find_library
from dmlops.array_libraries.torch import check_inference
from dmlops.calls.binding import Spec, check_device
from dmlops.integrations.torch.arguments import is_distributed, tensor
from dmlops.integrations.torch.derivatives import has_tangent, is_tracked
from dmlops.integrations.torch.memory import check_memory, is_only_seen
from dmlops.integrations.torch.operators import CHECK_MEMORY, MODULES
from dmlops.types.errors import argument_of, error_text, refuse, shown


def run(spec: Spec, inputs: Sequence[object], out: Any, stream: object, *others: object) -> Sequence[Tensor]:
    """Run a function; `others` are its arguments that are no arrays."""
    if stream is not None:
        reason = "torch chooses the stream of calls that it differentiates or traces"
        remedy = "call it within torch.cuda.stream(stream)"
        raise TypeError(error_text(f"{spec.name}.stream", shown(stream), reason, remedy))
    read, compute = MODULES[spec.operator].front(spec, inputs, out, *others)
    if out is None:
        return compute()  # type: ignore[no-any-return]
    out = out if len(spec.results) > 1 else (out,)
    written = {where: tensor(array, where) for where, array in zip(spec.outputs, out, strict=True)}
    differentiates = spec.has_derivative and any(map(is_tracked, read.values()))
    _check_memory_of(written, read)
    results = compute()
    for result, name, (where, array) in zip(results, spec.results, written.items(), strict=True):
        _check_output(array, result, name, differentiates, where)
    for result, array in zip(results, out, strict=True):
        array.copy_(result)
    return out  # type: ignore[no-any-return]


def _check_memory_of(written: dict[str, Tensor], read: dict[str, Tensor]) -> None:
    """Refuse outputs without memory of their own; both are given by their names in texts."""
    check = CHECK_MEMORY
    if is_only_seen([*read.values()], [*written.values()]):
        check = check_memory
        for where, array in written.items():
            library: Any = find_library(array, where)
            library.writable(array, where)
    inputs, outputs = ([_local(x) for x in each.values()] for each in (read, written))
    check(inputs, outputs, ",".join([*read, *written]))
    (place, first), *others = written.items()
    for where, array in others:  # a graph does not tell whether other tensors share memory
        if array is first:
            got, reason = "an overlapping array", f"it shares memory with {place}"
            refuse(where, got, reason, "an output must have memory of its own")


def _local(x: Tensor) -> Tensor:
    """Return the tensor, or the part of a DTensor, that is on this rank."""
    return x.to_local() if is_distributed(x) else x.detach()


def _check_output(array: Tensor, result: Tensor, name: str, differentiates: bool, where: str) -> None:
    if differentiates or (torch.is_grad_enabled() and array.requires_grad) or has_tangent(array):
        reason = "an output that is written in place has no derivative"
        remedy = f"leave it out, pass {argument_of(where)}.detach(), or use torch.no_grad()"
        raise TypeError(error_text(where, "a tensor", reason, remedy))
    if not torch.compiler.is_compiling():
        check_inference(array, where)
    check_device(where, array.device, result.device)
    shape = () if name == "count" and tuple(array.shape) == (1,) else array.shape
    verbs = ("have", "are") if name.endswith("s") else ("has", "is")
    if shape != result.shape:
        reason = f"the {name} {verbs[0]} shape {tuple(result.shape)}"
        refuse(where, f"shape {tuple(array.shape)}", reason, "shapes must be equal")
    if array.dtype != result.dtype:
        got, expected = (str(kind).removeprefix("torch.") for kind in (array.dtype, result.dtype))
        refuse(where, got, f"the {name} {verbs[1]} {expected}", "types must be equal")
