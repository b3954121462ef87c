"""Strided layouts for kernels: contiguous dimensions are merged, and wide elements taken apart."""

from collections.abc import Sequence

from dmlops.types.enums import TensorDataType
from dmlops.types.opaque_types import part_bytes
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import Dims


def merge(sizes: Sequence[int], *strides: Sequence[int]) -> Dims:
    """Return (size, stride, ...) a dimension, slowest first, with neighbours merged where all tensors allow.

    `strides` are those of each tensor that is walked along with these sizes. Of the dimensions, as few as the
    strides allow, none has size 1; there is one of size 0 if there are no elements.

    Examples
    --------
    >>> merge((2, 3, 4), (12, 4, 1), (24, 8, 2))
    ((24, 1, 2),)
    >>> merge((2, 3, 4), (12, 4, 1), (24, 4, 1))
    ((2, 12, 24), (12, 1, 1))
    """
    if 0 in sizes:
        return ((0, *(0 for _ in strides)),)
    merged: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if merged:
            outer_size, *outer_steps = merged[-1]
            if all(outer == step * size for outer, step in zip(outer_steps, steps, strict=True)):
                merged[-1] = (outer_size * size, *steps)
                continue
        merged.append((size, *steps))
    return tuple(merged)


def in_parts(desc: TensorDesc) -> TensorDesc:
    """Return a tensor of the unsigned integers that kernels take in the place of elements too wide for them.

    Those of an element are adjacent: they are the last dimension.

    Examples
    --------
    >>> from dmlops.types.data_types import data_type_of
    >>> in_parts(TensorDesc(data_type_of("complex128", "x"), (3, 4), (8, 2)))
    TensorDesc(data_type=<TensorDataType.UINT64: 10>, sizes=(3, 4, 2), strides=(16, 4, 1))
    """
    size = part_bytes(desc.data_type)
    n_parts = desc.data_type.bytes // size
    strides = [n_parts * stride for stride in desc.effective_strides]
    return TensorDesc(TensorDataType[f"UINT{8 * size}"], (*desc.sizes, n_parts), (*strides, 1))


def parts_as_batch(desc: TensorDesc) -> TensorDesc:
    """Return matrices with the dimension for the parts before rows and columns."""
    parts = in_parts(desc)
    moved = [(*each[:-3], each[-1], *each[-3:-1]) for each in (parts.sizes, parts.effective_strides)]
    return TensorDesc(parts.data_type, *moved)


def part_of(desc: TensorDesc) -> TensorDesc:
    """Return one part of each element."""
    parts = in_parts(desc)
    return TensorDesc(parts.data_type, parts.sizes[:-1], parts.effective_strides[:-1])
