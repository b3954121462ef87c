"""Derivatives of what a kernel selects: whether torch asks for one, and how gradients go back."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Stands for a position or a length, and is larger than any.
_LARGEST = 2**63 - 1


def is_known(condition: Any) -> bool:
    """Return whether a condition is true, whatever its symbols stand for."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    # This import takes long, but tracing has done it already.
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # noqa: PLC0415

    return statically_known_true(condition)  # type: ignore[no-any-return]


def is_tracked(x: Tensor) -> bool:
    """Return whether a derivative with respect to `x` is requested, in reverse or forward mode."""
    if not (x.is_floating_point() or x.is_complex()) or x.layout is not torch.strided:
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or has_tangent(x)


def has_tangent(x: Tensor) -> bool:
    """Return whether `x` has a tangent, for a derivative in forward mode."""
    try:
        # torch has only one level of forward mode. Compiled graphs enter it without telling Python.
        return forward_ad.unpack_dual(x, level=0).tangent is not None
    except RuntimeError:  # a batch in vmap: torch asks again for the tensor that it wraps
        return False


class Selected(torch.autograd.Function):  # type: ignore[misc]
    """Elements that a kernel selected from `x`, as a function of `x`; `spread` takes gradients back.

    The backward pass keeps the indices only, not `x`. The elements come in a tuple: torch would take an
    output that is also an input for a view, which cannot be changed in place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: tuple[Tensor], indices: Tensor, spread: Any) -> Tensor:
        """Return the elements."""
        ctx.save_for_backward(indices)
        ctx.shape, ctx.spread = x.shape, spread
        return values[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`."""
        zeros = gradient.new_zeros(ctx.shape)
        return ctx.spread(zeros, gradient, *ctx.saved_tensors), None, None, None


def selected(
    x: Tensor, values: Tensor, indices: Tensor, spread: Callable[..., Any], select: Callable[..., Any]
) -> Any:
    """Return selected elements as a function of `x`; `select` computes them by torch's own operators."""
    if is_known(x.numel() == 0):
        # The sum of no elements is zero, and connects the result to x.
        return values + x.sum()
    if not has_tangent(x):
        try:
            return Selected.apply(x, (values,), indices, spread)
        except RuntimeError:  # within torch.func, which transforms no such function in an operator
            pass
    return select(x, indices)


def as_int64(integers: Tensor) -> Tensor:
    """Return integers as int64, and its largest number for larger ones."""
    converted = integers.to(torch.int64)
    return torch.where(converted < 0, _LARGEST, converted) if integers.dtype == torch.uint64 else converted


def within(x: Tensor, axis: int, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return which places are positions along an axis, and the nearest ones that are."""
    # In unsigned types, the index of padding is the highest number.
    size = x.shape[axis]
    return (places >= 0) & (places < size), places.clamp(0, size - 1)


def spread_along(axis: int, zeros: Tensor, gradient: Tensor, places: Tensor) -> Tensor:
    """Return zeros plus the elements of a gradient whose places are positions along an axis."""
    is_there, places = within(zeros, axis, places)
    return zeros.scatter_add_(axis, places, torch.where(is_there, gradient, 0))
