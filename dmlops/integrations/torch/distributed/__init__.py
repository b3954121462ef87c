"""The operators of ``torch.ops.dmlops`` on DTensors: sharded over several devices, with the answer of one.

Every rank of the mesh makes the same call, and runs the kernels on its own shard. Three calls communicate:

- `top_k` along a sharded dimension sends each rank's candidates, at most k per row, and never the shard;
- `sample` of a sharded vocabulary does the same with a small k. Without k and top_p, it sends three numbers
  per row, and otherwise the logits;
- `gather_nd` with ``mode="raise"`` sends one number, so that an error on one rank is raised on all of them.

In addition, the arrays beside `x` or `logits` are redistributed to match it. `x` itself is never sent: a
layout that would require it is refused.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dmlops.integrations.torch.operators import MODULES
from dmlops.store.once import registered


def _rule(run: Callable[[object], object], arguments: type) -> Callable[..., object]:
    return lambda *given, **named: run(arguments(*given, **named))


RULES: dict[str, Callable[..., object]] = {
    overload.name(): _rule(import_module(f"{__name__}.{name}").run, arguments)
    for name, module in MODULES.items()
    for overload, arguments in module.OPERATORS.items()
}
"""The function that runs each operator, by its name; registered in the place of DTensor's own dispatch."""


def _register() -> dict[str, Callable[..., Any]]:
    def dispatch(cls: object, operator: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        return rules[operator.name()](*args, **(kwargs or {}))

    rules = dict(RULES)
    for name in rules:
        torch.library.register_torch_dispatch(name, DTensor, dispatch)
    return rules


# These rules replace those of an earlier import of dmlops.
registered("torch", "rules of DTensor", _register).update(RULES)
