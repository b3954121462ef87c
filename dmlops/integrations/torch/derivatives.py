"""Derivatives of what a kernel selects: whether torch asks for one, and how gradients go back."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Stands for a position or a length, and is larger than any.
_LARGEST = 2**63 - 1


def is_known(condition: object) -> bool:
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
    def forward(
        ctx: Any, x: Tensor, values: tuple[Tensor], indices: Tensor, spread: Callable[..., Tensor]
    ) -> Tensor:
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
    x: Tensor, values: Tensor, indices: Tensor, spread: Callable[..., object], select: Callable[..., object]
) -> Tensor:
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
    if places.dim() != zeros.dim():  # of zeros that are a single row
        gradient, places = gradient.reshape(-1), places.reshape(-1)
    is_there, places = within(zeros, axis, places)
    return zeros.scatter_add_(axis, places, torch.where(is_there, gradient, 0))


def flattened(x: Tensor, axis: int, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return `x` as a single row, and the places in it of elements of rows to which `x` broadcasts."""
    size, axis_of_places = x.shape[axis], axis + places.dim() - x.dim()
    rows = x.movedim(axis, -1)
    numbers = torch.arange(math.prod(rows.shape[:-1]), device=x.device).reshape(rows.shape[:-1])
    shape = [*places.shape[:axis_of_places], *places.shape[axis_of_places + 1 :]]
    first = (numbers * size).expand(shape).unsqueeze(axis_of_places)
    is_there = (places >= 0) & (places < size)
    return rows.reshape(-1), torch.where(is_there, first + places, -1)


def order_of_numbers(numbers: Tensor, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the positions of elements in the order of their numbers, and the place of each in this order.

    The place of an element that takes no part is -1. `numbers` is broadcast along the axis alone.
    """
    rank = max(x.dim(), 1)
    axis = axis % rank
    d = -1 if numbers.dim() <= 1 else axis - rank
    size = x.shape[axis] if x.dim() else 1
    numbers = numbers.reshape(1) if numbers.dim() == 0 else numbers
    if numbers.dim() < -d:  # it has the same number along the axis
        numbers = numbers.reshape((1,) * (-d - numbers.dim()) + tuple(numbers.shape))
    shape = [*numbers.shape]
    shape[d] = size
    numbers = numbers.expand(shape)
    ordered = numbers.to(torch.int64)
    if numbers.dtype == torch.uint64:
        ordered = numbers.view(torch.int64) ^ torch.iinfo(torch.int64).min
    order = torch.argsort(ordered, dim=d, stable=True)
    ranks = torch.argsort(order, dim=d)
    return order, torch.where(_signed(numbers) == -1, -1, ranks)


def _signed(numbers: Tensor) -> Tensor:
    """Return numbers as integers with a sign, of the same bits: -1 takes no part."""
    return numbers.view(torch.int32 if numbers.element_size() == 4 else torch.int64)


def numbered(numbers: Tensor, order: Tensor, ranks: Tensor, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the positions and the numbers of elements that were selected by their places in the order."""
    rank = max(x.dim(), 1)
    axis = axis % rank - rank
    along = (1,) * (-axis - 1)
    size = x.shape[axis] if x.dim() else 1
    shape = [*ranks.shape]
    shape[axis] = size
    parts = [each.reshape(-1, *along) if each.dim() == 1 else each for each in (order, _signed(numbers))]
    places, chosen = ranks.clamp(0), ranks >= 0
    positions = parts[0].expand(shape).gather(axis, places)
    found = parts[1].expand(shape).gather(axis, positions)
    found = torch.where(chosen, found, -1).view(numbers.dtype)
    return torch.where(chosen, positions, -1), found
