"""How operators of torch are made: their schema, their code by purpose, and sizes that are symbols.

While a graph is traced, the descriptors infer what an operator returns. With a derivative, the kernels still
do the work, and torch's own operators take gradients back, whose derivatives torch knows. In forward mode and
within a transformation of ``torch.func``, torch's own operators move the elements as well.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, get_type_hints

import torch
from torch import Tensor

from dmlops.integrations.torch.arguments import distributed_rules, is_distributed, torch_dtype
from dmlops.integrations.torch.derivatives import is_known, is_tracked
from dmlops.operators.batching import BATCH, BatchingRule, Layout
from dmlops.store.once import registered
from dmlops.types.arguments import check_dimensions
from dmlops.types.data_types import data_type_of, dtype_name
from dmlops.types.tensor import TensorDesc

# No tensor has as many elements along a dimension.
_FIRST_STAND_IN = 2**60
# Torch's calls look up their functions here, by purpose and operator: another import of dmlops registers
# nothing, and writes its own functions here.
_code: dict[tuple[str, str], Callable[..., Any]] = registered("torch", "code", dict)
_LIBRARY = registered("torch", "library", partial(torch.library.Library, "dmlops", "FRAGMENT"))
_DISPATCH_KEYS = "CompositeExplicitAutograd", "Autograd"


class Symbols:
    """Numbers for the sizes that are unknown while tracing: descriptors get these, results the symbols."""

    def __init__(self) -> None:
        self._sizes: dict[int, object] = {}

    def number(self, size: int | torch.SymInt) -> int:
        """Return a size, or the number that stands for it."""
        if isinstance(size, int):
            return size
        stand_in = _FIRST_STAND_IN + len(self._sizes)
        self._sizes[stand_in] = size
        return stand_in

    def describe(self, x: Tensor, where: str) -> TensorDesc:
        """Return the description of a tensor, with numbers for the sizes that are unknown."""
        check_dimensions(where, x.dim())
        return TensorDesc(data_type_of(x.dtype, where), tuple(self.number(size) for size in x.shape))

    def resized(self, desc: TensorDesc, axis: int, size: int | torch.SymInt) -> TensorDesc:
        """Return a description with another size along an axis, which may be unknown."""
        sizes = [*desc.sizes]
        sizes[axis] = self.number(size)
        return TensorDesc(desc.data_type, tuple(sizes))

    def empty(self, x: Tensor, desc: TensorDesc, batch: Sequence[int] = ()) -> Tensor:
        """Return a new tensor beside `x`, with symbols for the sizes that are unknown."""
        sizes = [self._sizes.get(size, size) for size in desc.sizes]
        return x.new_empty((*batch, *sizes), dtype=torch_dtype(desc.data_type))


def equated(
    where: str,
    desc: TensorDesc,
    shape: Sequence[int | torch.SymInt],
    other: Sequence[int],
    other_shape: Sequence[int | torch.SymInt],
) -> TensorDesc:
    """Return the description of a tensor with the unknown ones of its leading sizes replaced by another's."""
    sizes_differ = f"{where}: got shape {tuple(shape)}, but x has sizes {tuple(other_shape)} there"
    sizes = [*desc.sizes]
    for d, (ours, theirs) in enumerate(zip(shape, other_shape, strict=False)):
        if not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs, lambda: sizes_differ)
            sizes[d] = other[d]
    return TensorDesc(desc.data_type, tuple(sizes))


def broadcast(
    where: str,
    desc: TensorDesc,
    shape: Sequence[object],
    others: list[int],
    other_shape: list[object],
    other: str = "x",
) -> TensorDesc:
    """Return the description of a tensor with the unknown ones of its last sizes replaced by another's.

    Sizes that are not known to be 1 are taken to be equal. `others` and `other_shape` become those to which
    both tensors broadcast; errors name the other one `other`.
    """
    sizes_differ = f"{where}: got shape {tuple(shape)}, but {other} has sizes {tuple(other_shape)} there"
    sizes = [*desc.sizes]
    for d in range(1, len(shape) + 1):
        ours = shape[-d]
        if d > len(others):
            others.insert(0, sizes[-d])
            other_shape.insert(0, ours)
            continue
        theirs = other_shape[-d]
        if is_known(ours == 1):
            sizes[-d] = 1
        elif is_known(theirs == 1):
            others[-d], other_shape[-d] = sizes[-d], ours
        elif not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs, lambda: sizes_differ)
            sizes[-d] = others[-d]
    return TensorDesc(desc.data_type, tuple(sizes))


def _let_run(
    what: str, name: str, function: Callable[..., object], register: Callable[[Callable[..., object]], object]
) -> None:
    """Let torch call a function, in the place of that of an earlier import of dmlops."""

    def run(*arguments: object) -> Any:
        return _code[what, name](*arguments)

    _code[what, name] = function
    registered("torch", (what, name), lambda: register(run))


def _implement(name: str, function: Callable[..., object], key: str) -> None:
    with_keyset = key == "Autograd"
    _let_run(key, name, function, lambda run: _LIBRARY.impl(name, run, key, with_keyset=with_keyset))


@cache
def hide_from_compiler() -> None:
    """Make torch's compiler see calls of the operators rather than the code that runs them.

    It would trace that code where a graph breaks at such a call, and find a call of the same operator there.
    """
    for place, function in _code.items():
        if place[0] in _DISPATCH_KEYS:
            _code[place] = torch.compiler.disable(function)
    torch.compiler.assume_constant_result(dtype_name)  # it could not trace NumPy's error


def save_as_part(result: type[Any]) -> None:
    """Let exported programs that return a result of this type be saved."""
    register = getattr(torch.utils._pytree, "_register_namedtuple", None)
    if register is not None:
        register(result, serialized_type_name=f"dmlops.{result.__name__}")


def operator(
    name: str,
    arguments: type[Any],
    function: Callable[..., Any],
    fake: Callable[[Any], Any],
    *,
    tags: Sequence[torch.Tag] = (),
    differentiate: Callable[[Any], Any] | None = None,
    batch: BatchingRule | None = None,
) -> Any:
    """Register an operator, which takes tensors of any strides.

    Parameters
    ----------
    name : str
        Its name in ``torch.ops.dmlops``.
    arguments : type
        A named tuple: the parameters with their types and defaults, by the names that `function` has.
    function : callable
        Runs the operator on plain tensors.
    fake : callable
        Returns stand-ins for the results of a call, which is a tuple of that type.
    tags : sequence of torch.Tag
        What torch must know besides.
    differentiate : callable, optional
        Runs a call of which a derivative is requested.
    batch : callable, optional
        Says how a call on a batch of examples is one call.
    """
    names = arguments._fields
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    n_leading = kinds.count(inspect.Parameter.POSITIONAL_ONLY)

    def run(*given: Any) -> Any:
        plain = [
            value.detach().as_subclass(Tensor) if isinstance(value, Tensor) else value for value in given
        ]
        options = dict(zip(names[n_leading:], plain[n_leading:], strict=False))
        if "index_dtype" in names and (n_leading == 0 or options.get("indices") is None):
            options["index_dtype"] = options.get("index_dtype") or torch.int64
        results = function(*plain[:n_leading], **options)
        return results if isinstance(results, Tensor) else tuple(results)

    def prototype() -> None: ...

    prototype.__signature__ = signature_of(arguments, fake)  # type: ignore[attr-defined]
    schema = torch.library.infer_schema(prototype, mutates_args=(), op_name=name)
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, *tags)
    registered("torch", schema, lambda: _LIBRARY.define(schema, tags=tags))
    _implement(name, run, "CompositeExplicitAutograd")
    described = partial(torch.library.register_fake, f"dmlops::{name}", lib=_LIBRARY)
    _let_run("fake", name, lambda *given: fake(arguments(*given)), described)
    overload = getattr(torch.ops.dmlops, name).default
    if differentiate is not None:
        _register_derivatives(overload, arguments, differentiate)
    if batch is not None:
        _register_vmap(overload, arguments, fake, batch)
    return overload


def signature_of(arguments: type[Any], fake: Callable[..., object] | None = None) -> inspect.Signature:
    """Return the signature of a function of these parameters, which returns what `fake` does."""
    hints, defaults = get_type_hints(arguments), arguments._field_defaults
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=hints[name],
        )
        for name in arguments._fields
    ]
    result = inspect.Signature.empty if fake is None else get_type_hints(fake)["return"]
    return inspect.Signature(parameters, return_annotation=result)


def _register_derivatives(
    overload: torch._ops.OpOverload, arguments: type[Any], differentiate: Callable[[Any], Any]
) -> None:
    """Let `differentiate` run an operator if a derivative is requested.

    torch calls it once for each transformation, from the innermost on: only the tensors that this one tracks
    are tracked in the call.
    """

    def run_or_differentiate(keys: Any, x: Tensor, *others: object) -> object:
        if is_tracked(x):
            if is_distributed(x):
                return distributed_rules()[overload.name()](x, *others)
            return differentiate(arguments(x, *others))
        return overload.redispatch(keys.remove(keys.highestPriorityTypeId()), x, *others)

    _implement(overload.name(), run_or_differentiate, "Autograd")


def _register_vmap(
    overload: torch._ops.OpOverload,
    arguments: type[Any],
    fake: Callable[[object], object],
    batch: BatchingRule,
) -> None:
    """Let vmap make one call of an operator for all examples."""

    def run_batch(info: Any, in_dims: Sequence[object], *given: object) -> object:
        call = arguments(*given)
        tensors = _tensors(call, in_dims)
        examples = {name: x if d is None else _example(x, d) for name, (x, d) in tensors.items()}
        # Arguments that do not fit are refused in terms of one example. A batch may have none.
        fake(_with_tensors(call, examples))
        batched = {name for name, (_, d) in tensors.items() if d is not None}
        rule = batch({name: x.shape for name, x in examples.items()}, batched, call)
        moved = {name: x for name, (x, _) in tensors.items()}
        for name, layout in rule.layouts.items():
            moved[name] = _laid_out(*tensors[name], layout, info.batch_size)
        results = overload(*_with_tensors(call, moved)._replace(**rule.changes))
        d = rule.batch_dim
        return results, d if isinstance(results, Tensor) else (d,) * len(results)

    implement_vmap(overload, run_batch)


def implement_vmap(overload: torch._ops.OpOverload, run_batch: Callable[..., object]) -> None:
    """Let `run_batch` run an operator in vmap, in torch's own terms."""
    register = partial(torch.library.register_vmap, overload, lib=_LIBRARY)
    _let_run("vmap", overload.name(), run_batch, register)


def _tensors(call: Any, in_dims: Sequence[Any]) -> dict[str, tuple[Tensor, int | None]]:
    """Return the tensors of a call by name, those in a list by name and place, and the batch's dimensions."""
    found = {}
    for name, value, d in zip(call._fields, call, (*in_dims, *[None] * len(call)), strict=False):
        if isinstance(value, Tensor):
            found[name] = value, d
        elif isinstance(value, (list, tuple)):
            dims = d or [None] * len(value)
            pairs = enumerate(zip(value, dims, strict=True))
            found |= {f"{name}.{i}": pair for i, pair in pairs if isinstance(pair[0], Tensor)}
    return found


def _with_tensors(call: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a call with other tensors, named as `_tensors` does."""
    changes: dict[str, object] = {}
    for name, value in zip(call._fields, call, strict=True):
        if isinstance(value, (list, tuple)):
            changes[name] = [tensors.get(f"{name}.{i}", each) for i, each in enumerate(value)]
        elif name in tensors:
            changes[name] = tensors[name]
    return call._replace(**changes)


def _laid_out(x: Tensor, d: int | None, layout: Layout, batch_size: int) -> Tensor:
    """Return a tensor whose batch is dimension `d`, or that has none, in a layout."""
    x = x.expand(batch_size, *x.shape) if d is None else x.movedim(d, 0)
    x = x.permute([0 if own == BATCH else own + 1 for own in layout if own is not None])
    for place, own in enumerate(layout):
        if own is None:
            x = x.unsqueeze(place)
    return x


def _example(batch: Tensor, d: int) -> Tensor:
    """Return a stand-in for one example of a batch along dimension `d`."""
    return batch.new_empty(()).expand(batch.shape[:d] + batch.shape[d + 1 :])
