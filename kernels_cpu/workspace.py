"""Divide a workspace into the areas that kernels use."""

from collections.abc import Mapping

from kernels_cpu.processor import LINE_BYTES


def lay_out(areas: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return where each area begins, in bytes from the start of the workspace, and the size of all of them.

    Parameters
    ----------
    areas : mapping of str to int
        The bytes that each area needs. Kernels write to no byte outside of them.

    Examples
    --------
    >>> lay_out({"words": 8, "counts": 72})
    ({'words': 0, 'counts': 64}, 192)
    """
    offsets, size = {}, 0
    for name, n_bytes in areas.items():
        offsets[name] = size
        size += n_bytes + -n_bytes % LINE_BYTES
    return offsets, size
