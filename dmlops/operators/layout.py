"""Strided layouts as plain integers: dimensions that are contiguous with each other are merged."""

from collections.abc import Sequence

Dims = tuple[tuple[int, ...], ...]


def merge(sizes: Sequence[int], *strides: Sequence[int]) -> Dims:
    """Return (size, stride, ...) a dimension, slowest first, with neighbours merged where all tensors allow.

    Parameters
    ----------
    sizes : sequence of int
        Elements along each dimension.
    *strides : sequence of int
        The strides of each tensor that is walked along with these sizes.

    Returns
    -------
    tuple of tuple of int
        As few dimensions as the strides allow, none of size 1; one of size 0 where there are no elements.

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
