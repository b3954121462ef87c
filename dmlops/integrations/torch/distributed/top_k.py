"""`dmlops.top_k` of DTensors."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from dmlops import functions
from dmlops.functions.top_k import SPEC
from dmlops.integrations.torch.derivatives import Selected, as_int64, is_tracked, spread_along
from dmlops.integrations.torch.distributed import shards
from dmlops.integrations.torch.operators.top_k import TopKCall
from dmlops.operators.top_k import broadcast_rows, infer_top_k
from dmlops.types.data_types import index_data_type
from dmlops.types.errors import error_text, refuse


def run(call: TopKCall) -> tuple[DTensor, DTensor]:
    """Place the results like `x`, but replicate them where `x` shards the axis.

    With numbers, but without windows, nobody asks for positions: shards of the axis may be any.
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
    local = {name: _local_rows(array, name, x, axis) for name, array in given.items()}
    if not shards.cut_by(x, axis):
        options |= {"axis": axis, "max_length": max_length, **local}
        if rows.numbers is None:
            options["index_dtype"] = index_dtype
        values, found = functions.top_k(x.to_local(), k, **options)
    else:
        values, found = top_k_across(x, k, axis, local, max_length, options)
    placements = [Replicate() if shards.is_cut(p, axis) else p for p in x.placements]
    return tuple(
        shards.whole(part, x.device_mesh, placements, desc.sizes) for part in (values, found.to(index_dtype))
    )


def _local_rows(array: DTensor, name: str, x: DTensor, axis: int) -> Tensor:
    """Return this rank's part of lengths, starts or numbers, as it has that of `x`."""
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
) -> tuple[Tensor, Tensor]:
    """Select candidates from this rank's shard of an axis, and merge those of all ranks by their numbers.

    The numbers are the caller's, or positions in the whole axis.
    """
    local, numbers = x.to_local(), given.get("indices")
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
        found = torch.where(found < 0, found, found + start) if windows else found + start
    elif is_tracked(local):
        reason = "of shards that are merged by number it is not known where elements come from"
        raise TypeError(error_text("top_k.x", "a DTensor with a derivative", reason, "pass x.detach()"))
    else:
        own = numbers if numbers.ndim <= 1 else numbers.movedim(axis, -1)
        values, found = functions.top_k(rows, most[-1], indices=own, **windows, **unordered)
    for cut, n_merged in zip(reversed(cuts), [*most[-2::-1], k], strict=True):
        values, found = _candidates(values, found, x.device_mesh, cut)
        ordering = options if cut is cuts[0] else unordered
        values, found = functions.top_k(values, n_merged, indices=found, **ordering)
    values, found = (part.movedim(-1, axis).contiguous() for part in (values, found))
    if numbers is not None:
        return values, found
    # The caller may write to the indices before the backward pass.
    return Selected.apply(local, (values,), found - start, partial(spread_along, axis)), found


def _candidates(values: Tensor, found: Tensor, mesh: DeviceMesh, cut: shards.Cut) -> tuple[Tensor, Tensor]:
    """Return the candidates of all ranks, side by side in the last dimension."""
    parts = [part.unsqueeze(-1).view(torch.uint8) for part in (values, found)]
    widths = [part.shape[-1] for part in parts]
    received = shards.all_gather(torch.cat(parts, -1), mesh, cut).movedim(0, -3).flatten(-3, -2)
    # Every element is at a multiple of its size again.
    bytes_of_values, bytes_of_found = (
        part.clone(memory_format=torch.contiguous_format) for part in received.split(widths, -1)
    )
    return bytes_of_values.view(values.dtype).squeeze(-1), bytes_of_found.view(found.dtype).squeeze(-1)


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
