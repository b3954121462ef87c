"""Which way serves a shape, and the plan that launches it."""

import math
from collections.abc import Sequence

from kernels_cuda.runtime.launch import Launch, LaunchList, load
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k.elements import key_masks, last_element, raw_numbers
from kernels_cuda.top_k.optional_launches import (
    RowLengths,
    layout_with_lengths,
    packed_rows,
    with_optional_launches,
)
from kernels_cuda.top_k.plan_blocks import block_steps, fitting_shape
from kernels_cuda.top_k.plan_columns import are_columns, columns_steps
from kernels_cuda.top_k.plan_grid import grid_steps, is_long, is_turned
from kernels_cuda.top_k.plan_sort import is_tile, sort_steps, tile_steps
from kernels_cuda.top_k.plan_warp import is_warp, warp_steps
from kernels_cuda.top_k.rows import RowDimension, columns_last, row_layout
from kernels_cuda.top_k.steps import Problem, Step, Workspace


class Plan:
    """A top-k of one shape on one device; may be launched from any thread.

    Attributes
    ----------
    variant : str
        What runs and why.
    workspace_size : int
        Bytes of scratch memory that one launch needs.
    """

    __slots__ = ("_launches", "variant", "workspace_size")

    def __init__(self, variant: str, workspace_size: int, steps: Sequence[Step], target: Target) -> None:
        self.variant = variant
        self.workspace_size = workspace_size
        launches = [
            Launch(load(variant, target), grid, block, shared_bytes, pointers, integers)
            for variant, grid, block, pointers, integers, shared_bytes in steps
        ]
        self._launches = LaunchList(launches) if launches else None

    def launches(self, x: int, values: int, indices: int) -> LaunchList | None:
        """Return what `launch` launches for any addresses."""
        return self._launches

    def launch(self, stream: int, x: int, values: int, indices: int, workspace: int) -> None:
        """Put the kernels on `stream`; addresses are those of the first elements.

        Parameters
        ----------
        stream : int
            Where they run, a ``cudaStream_t``.
        x, values, indices : int
            Addresses of element [0, ..., 0].
        workspace : int
            Address of `workspace_size` bytes, a multiple of 256.
        """
        if self._launches is not None:
            self._launches(stream, x, values, indices, workspace)


def plan(
    *,
    element_size: int,
    index_size: int,
    sign: int,
    flip: int,
    infinity: int,
    largest: bool,
    k: int,
    axis_size: int,
    rows: Sequence[RowDimension],
    axis_strides: tuple[int, int, int],
    x_offset: int = 0,
    value_offset: int = 0,
    index_offset: int = 0,
    is_sorted: bool = True,
    length_size: int = 0,
    length_signed: bool = True,
    length_strides: Sequence[int] = (),
    padding: int = 0,
    target: Target,
    variant: str | None = None,
) -> Plan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    sign, flip, infinity : int
        The format: the sign bit, the bits that a set sign bit inverts, and the bits of infinity; 0, 0 and
        all ones for unsigned integers.
    largest : bool
        Whether large elements come first.
    k, axis_size : int
        How many elements of how many, with ``0 <= k <= axis_size``.
    rows : sequence of (size, x_stride, value_stride, index_stride)
        The other dimensions, slowest first; strides in elements.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    x_offset, value_offset, index_offset : int
        Not needed: addresses are those of the first elements.
    is_sorted : bool
        Whether the elements are wanted in order; otherwise the same ones by ascending position.
    length_size, length_signed : int, bool
        Bytes of a row's length (4, 8), or 0 where all rows have `axis_size` elements; whether it is signed.
    length_strides : sequence of int
        Strides of the lengths along the dimensions of `rows`.
    padding : int
        Bits of the value that positions from a row's length on hold; their indices have all bits set.
    target : Target
        The device.
    variant : {"warp", "block", "grid", "columns", "tile", "sort"}, optional
        Force one way, if it can serve the problem.

    Returns
    -------
    Plan
        To be launched any number of times.

    Raises
    ------
    ValueError
        If the forced variant cannot serve the problem.

    Notes
    -----
    Kernels that no process has compiled before are compiled here.
    """
    del x_offset, value_offset, index_offset
    n_rows = math.prod(size for size, *_ in rows)
    lengths = None
    if length_size:
        lengths = RowLengths(
            size=length_size,
            is_signed=length_signed,
            layout=layout_with_lengths(rows, length_strides),
            x_stride=axis_strides[0],
            filler=last_element(element_size, sign, flip, infinity, largest),
            padding=padding,
        )
        rows, axis_strides = packed_rows(rows, axis_size), (1, *axis_strides[1:])
    rows, n_neighbours = columns_last(rows, axis_strides[0])
    if n_rows == 0 or k == 0:
        return Plan("nothing to do", 0, (), target)
    problem = Problem(
        element_size=element_size,
        index_size=index_size,
        masks=key_masks(element_size, sign, flip, infinity, largest),
        numbers=raw_numbers(element_size, sign, flip, infinity, largest),
        k=k,
        axis_size=axis_size,
        n_rows=n_rows,
        n_neighbours=n_neighbours,
        layout=row_layout(rows),
        axis_strides=axis_strides,
        multiprocessors=target.multiprocessors,
        block_shared_bytes=target.block_shared_bytes,
    )
    name = variant or _choose(problem)
    if name not in _STEPS:
        msg = f"top_k has no variant {name!r}; there are {', '.join(_STEPS)}"
        raise ValueError(msg)
    workspace = Workspace()
    steps = with_optional_launches(problem, _STEPS[name](problem, workspace), is_sorted, lengths, workspace)
    shape = f"{n_rows} rows of {axis_size}, k {k}, {element_size}-byte elements, launches: {len(steps)}"
    return Plan(f"{name} ({shape})", workspace.size, steps, target)


def _choose(problem: Problem) -> str:
    if are_columns(problem):
        return "columns"
    if is_warp(problem):
        return "warp"
    if is_tile(problem):
        return "tile"
    if is_long(problem) or is_turned(problem):
        return "grid"
    return "sort" if fitting_shape(problem) is None else "block"


_STEPS = {
    "warp": warp_steps,
    "block": block_steps,
    "grid": grid_steps,
    "columns": columns_steps,
    "tile": tile_steps,
    "sort": sort_steps,
}
