"""How operators reach their kernels: by a problem of plain integers (`kernels_cpu.problems`)."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dmlops.types.enums import TensorDataType
from dmlops.types.opaque_types import ElementType, OpaqueType
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import KeyMasks, Problem

if TYPE_CHECKING:
    from dmlops.operators.descriptor import Descriptor


class Options(NamedTuple):
    """Options of the functions that DirectML's descriptors do not have."""

    mode: str = "clip"
    """What gather does with indices out of range: ``"clip"`` or ``"fill"``."""
    element: bytes = b""
    """The element that gather fills with; empty for zeros."""
    wraps: bool = True
    """Whether gather's negative indices count from the end; they are out of range otherwise."""
    coordinates: TensorDesc | None = None
    """The coordinates in memory, with as many rows as may be written; None for one per element."""
    fill: int | tuple[int, ...] | None = None
    """Value of coordinate rows from the count on, or one for each column; None leaves them as they are."""
    is_sorted: bool = True
    """Whether top-k's results are in order of value; in ascending order of index otherwise."""
    lengths: TensorDesc | None = None
    starts: TensorDesc | None = None
    """Integers that say how many elements each row of top-k's input has, and from which position on; None for
    all."""
    numbers: TensorDesc | None = None
    """The caller's numbers of the elements of top-k's input, in its shape."""
    max_length: int | None = None
    """The most elements of a row of top-k that take part; None for all."""
    nan_last: bool = False
    """Whether a NaN of top-k's input loses to all other elements."""


class Operator(NamedTuple):
    """An operator in all its forms, and how it reaches its kernels."""

    name: str
    """The module's name in ``kernels_cpu`` and ``kernels_cuda``."""
    forms: "tuple[type[Descriptor], ...]"
    """The descriptors, oldest first; those lower to the newest."""
    problem: Callable[[Any, Options], Problem]
    """Makes the problem of a descriptor of the newest form, which the kernels of both devices take."""
    operands: tuple[str, ...]
    """The tensors by field name, in the order in which the kernels take them."""
    gathered: int = -1
    """The operand of which only what is selected is read; -1 if there is none."""

    def tensors(self, descriptor: "Descriptor", options: Options) -> dict[str, TensorDesc]:
        """Return the operands that are present, as they lie in memory."""
        tensors = descriptor.tensors
        if options.coordinates is not None:
            tensors["output_coordinates_tensor"] = options.coordinates
        for field in ("lengths", "starts", "numbers"):
            tensor = getattr(options, field)
            if tensor is not None:
                tensors[field] = tensor
        return {field: tensors[field] for field in self.operands if field in tensors}


@functools.cache
def key_masks(data_type: ElementType, *, nat_last: bool = False) -> KeyMasks:
    """Return the masks of a type; `nat_last`: dates are in descending order, and NaT comes last."""
    if isinstance(data_type, OpaqueType):
        # Kernels of the CPU add the sign. If that is one less, NaT wraps around to the end of all dates.
        sign = 1 << (data_type.bits - 1) if nat_last else data_type.highest_bits
        return KeyMasks(sign, 0, (1 << data_type.bits) - 1)
    if data_type is TensorDataType.BOOL:
        # A byte is a magnitude, and all that are set lie beyond infinity: they tie, as NaNs do.
        return KeyMasks(0, 0xFF, 0)
    sign = 1 << (data_type.bits - 1) if data_type.is_signed else 0
    return KeyMasks(sign, sign - 1 if data_type.is_float else 0, data_type.infinity)
