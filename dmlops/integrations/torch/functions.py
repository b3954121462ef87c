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
    outputs = _Outputs(spec, out if len(spec.results) > 1 else (out,), read)
    return outputs.write(compute())


class _Outputs:
    """The tensors of an ``out`` argument, which must have memory of their own.

    Parameters
    ----------
    spec : Spec
        The function.
    out : sequence of Tensor
        What the caller gave.
    read : dict of str to Tensor
        The inputs by their names in texts.
    """

    def __init__(self, spec: Spec, out: Sequence[Tensor], read: dict[str, Tensor]) -> None:
        self._out, self._names = out, spec.results
        self._written = {where: tensor(array, where) for where, array in zip(spec.outputs, out, strict=True)}
        self._differentiates = spec.has_derivative and any(map(is_tracked, read.values()))
        check = CHECK_MEMORY
        if is_only_seen([*read.values()], out):
            check = check_memory
            for where, array in self._written.items():
                library: Any = find_library(array, where)
                library.writable(array, where)
        inputs, outputs = ([_local(x) for x in each.values()] for each in (read, self._written))
        check(inputs, outputs, ",".join([*read, *self._written]))
        (place, first), *others = self._written.items()
        for where, array in others:  # a graph does not tell whether other tensors share memory
            if array is first:
                got, reason = "an overlapping array", f"it shares memory with {place}"
                refuse(where, got, reason, "an output must have memory of its own")

    def write(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Copy results to the tensors, which must fit exactly, and return those."""
        for result, name, (where, array) in zip(results, self._names, self._written.items(), strict=True):
            _check_output(array, result, name, self._differentiates, where)
        for result, array in zip(results, self._out, strict=True):
            array.copy_(result)
        return self._out


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
