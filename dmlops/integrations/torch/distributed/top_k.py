"""`dmlops.top_k` of DTensors."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from dmlops import functions
from dmlops.functions.top_k import SPEC
from dmlops.integrations.torch.derivatives import (
    Selected,
    as_int64,
    is_tracked,
    numbered,
    order_of_numbers,
    spread_along,
)
from dmlops.integrations.torch.distributed import shards
from dmlops.integrations.torch.operators.top_k import TopKCall
from dmlops.operators.top_k import broadcast_rows, infer_top_k
from dmlops.types.data_types import index_data_type
from dmlops.types.errors import refuse

# The origin of an element: its rank, above so many bits for its position there.
_POSITION_BITS = 40


def run(call: TopKCall) -> tuple[DTensor, DTensor]:
    """Place the results like `x`, but replicate them where `x` shards the axis.

    With numbers and without windows, no positions are needed, so the axis may be sharded in any way. Results
    of segments of a one-dimensional `x` are placed like the windows, but replicated where `x` is sharded.
    """
    is_windowed = call.lengths is not None or call.starts is not None
    x = shards.distributed(call.x, "top_k.x", any_shards=call.indices is not None and not is_windowed)
    k, axis, max_length, index_dtype = call.k, call.axis, call.max_length, call.index_dtype
    given = {
        name: shards.distributed(array, f"top_k.{name}", x.device_mesh, any_shards=name == "indices")
        for name, array in call.given().items()
    }
    described = {name: shards.describe(array, f"top_k.{name}") for name, array in given.items()}
    rows = broadcast_rows(shards.describe(x, "top_k.x"), axis, described)
    if rows.numbers is not None:
        index_dtype = given["indices"].dtype
    index_dtype = index_dtype or torch.int64
    index_type = index_data_type(index_dtype, "top_k.index_dtype")
    desc, _ = infer_top_k(SPEC.words, rows, k, index_type)
    axis %= max(x.ndim, 1)
    options: dict[str, Any] = {"largest": call.largest, "sorted": call.sorted, "nan_last": call.nan_last}
    placements = [Replicate() if shards.is_cut(p, axis) else p for p in x.placements]
    windows = [given[name] for name in ("starts", "lengths") if name in given and given[name].ndim]
    segments = windows[0] if windows and x.ndim == 1 else None
    if segments is not None:
        pairs = zip(x.placements, segments.placements, strict=True)
        placements = [Replicate() if shards.is_cut(p, axis) else own for p, own in pairs]
    local = {}
    for name, array in given.items():
        is_of_segments = segments is not None and name != "indices"
        local[name] = _local_rows(array, name, x, axis, placements if is_of_segments else None)
    if not shards.cut_by(x, axis):
        options |= {"axis": axis, "max_length": max_length, **local}
        if rows.numbers is None:
            options["index_dtype"] = index_dtype
        values, found = functions.top_k(shards.local_of(x, placements), k, **options)
    else:
        values, found = top_k_across(x, k, axis, local, max_length, options, placements)
    return tuple(
        shards.whole(part, x.device_mesh, placements, desc.sizes) for part in (values, found.to(index_dtype))
    )


def _local_rows(
    array: DTensor, name: str, x: DTensor, axis: int, of_segments: Sequence[Placement] | None
) -> Tensor:
    """Return this rank's part of lengths, starts or numbers, as it has that of `x`, or of the segments."""
    where, shape = f"top_k.{name}", tuple(array.shape)
    if name == "indices":
        if shape == tuple(x.shape):
            return shards.redistributed(array, x.placements)
        if array.ndim == 1:
            pairs = zip(array.placements, x.placements, strict=True)
            if all(shards.is_cut(own, 0) == shards.is_cut(other, axis) for own, other in pairs):
                return array.to_local()
            placements = [Shard(0) if p.is_shard(axis) else Replicate() for p in x.placements]
            return shards.redistributed(array, placements)
        reason = f"x has shape {tuple(x.shape)}, and is a DTensor"
        refuse(where, f"shape {shape}", reason, "numbers must have its shape, or lie along the axis")
    if array.ndim == 0:
        return shards.redistributed(array, [Replicate()] * len(x.placements))
    if of_segments is not None:
        return shards.redistributed(array, of_segments)
    rows = tuple(x.shape[:axis] + x.shape[axis + 1 :])
    if shape != rows:
        reason = f"x is a DTensor, and has shape {rows} without axis {axis}"
        refuse(where, f"shape {shape}", reason, "shapes must be equal")
    return shards.redistributed(array, [shards.of_rows(p, axis) for p in x.placements])


def top_k_across(
    x: DTensor,
    k: int,
    axis: int,
    given: dict[str, Tensor],
    max_length: int | None,
    options: dict[str, Any],
    placements: Sequence[Placement],
) -> tuple[Tensor, Tensor]:
    """Select candidates from this rank's shard of an axis, and merge those of all ranks by their numbers.

    The numbers are the caller's, or positions in the whole axis. `placements` are those of the results.
    """
    local, numbers = shards.local_of(x, placements), given.get("indices")
    rows, start = local.detach().movedim(axis, -1), 0
    cuts, is_windowed = shards.cut_by(x, axis), bool(given.keys() & {"lengths", "starts"})
    most, windows = [k] * len(cuts), dict[str, Any]()
    if numbers is None or is_windowed:  # shards are successive parts, the first one the largest
        cuts = shards.cuts_of(x, axis)
        start, most = shards.start_of(cuts), [min(k, cut.sizes[0]) for cut in cuts]
    if is_windowed:
        windows = _windows_from(start, x.shape[axis], given, max_length, rows)
    # Candidates do not have to be in order of value.
    unordered = options | {"sorted": False}
    if numbers is None:
        if not windows and most[-1] > rows.shape[-1]:
            windows = {"lengths": rows.shape[-1]}  # with lengths, lacking candidates become padding
        values, found = functions.top_k(rows, most[-1], index_dtype="int64", **windows, **unordered)
        parts = [values, torch.where(found < 0, found, found + start) if windows else found + start]
    else:
        own = numbers if numbers.ndim <= 1 else numbers.movedim(axis, -1)
        parts = _select_by_number(rows, most[-1], own, is_tracked(local), windows | unordered)
    has_sources, own_source = len(parts) > 2, dist.get_rank() << _POSITION_BITS
    if has_sources:
        parts[2] = torch.where(parts[2] < 0, -1, parts[2] + own_source)
    for cut, n_merged in zip(reversed(cuts), [*most[-2::-1], k], strict=True):
        values, found, *sources = _candidates(parts, x.device_mesh, cut)
        ordering = options if cut is cuts[0] else unordered
        parts = _select_by_number(values, n_merged, found, has_sources, ordering)
        if has_sources:
            places = parts[2]
            parts[2] = torch.where(places < 0, -1, sources[0].gather(-1, places.clamp(0)))
    # The results of segments have more dimensions than x.
    values, found, *sources = (part.movedim(-1, axis + part.ndim - x.ndim).contiguous() for part in parts)
    if numbers is None:
        places = found - start  # a copy: the caller may write to the indices before the backward pass
    elif has_sources:
        places = torch.where(sources[0] >> _POSITION_BITS == dist.get_rank(), sources[0] - own_source, -1)
    else:
        return values, found
    return Selected.apply(local, (values,), places, partial(spread_along, axis)), found


def _select_by_number(
    rows: Tensor, k: int, numbers: Tensor, has_places: bool, options: dict[str, Any]
) -> list[Tensor]:
    """Return selected elements, their numbers and, if asked for, their places in the last dimension."""
    if not has_places:
        return [*functions.top_k(rows, k, indices=numbers, **options)]
    order, ranks = order_of_numbers(numbers, rows, -1)
    values, found = functions.top_k(rows, k, indices=ranks, **options)
    places, found = numbered(numbers, order, found, rows, -1)
    return [values, found, places]


def _candidates(parts: Sequence[Tensor], mesh: DeviceMesh, cut: shards.Cut) -> list[Tensor]:
    """Return what all ranks have of the candidates, side by side in the last dimension."""
    sent = [part.unsqueeze(-1).view(torch.uint8) for part in parts]
    widths = [part.shape[-1] for part in sent]
    received = shards.all_gather(torch.cat(sent, -1), mesh, cut).movedim(0, -3).flatten(-3, -2)
    # Every element is at a multiple of its size again.
    copies = [part.clone(memory_format=torch.contiguous_format) for part in received.split(widths, -1)]
    return [copy.view(part.dtype).squeeze(-1) for copy, part in zip(copies, parts, strict=True)]


def _windows_from(
    start: int, size: int, given: dict[str, Tensor], max_length: int | None, rows: Tensor
) -> dict[str, Tensor]:
    """Return windows of the whole axis as windows of a shard that begins at `start`."""
    none = torch.zeros(rows.shape[:-1], dtype=torch.int64, device=rows.device)
    begins = as_int64(given["starts"]).clamp(max=size) if "starts" in given else none
    ends = none + size
    if "lengths" in given:
        lengths = as_int64(given["lengths"]).clamp(0)
        # The sum of a negative number and another one does not overflow.
        lengths = torch.where(begins < 0, lengths, lengths.clamp(max=size))
        ends = torch.minimum(begins + lengths, ends)
    begins = begins.clamp(0)
    lengths = (ends - begins).clamp(0, max_length)
    return {"starts": begins - start, "lengths": lengths}
