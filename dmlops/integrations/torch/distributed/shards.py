"""Shards of DTensors: their places in the whole tensor, and what ranks send each other."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from dmlops.calls.binding import check_extended
from dmlops.types.data_types import data_type_of
from dmlops.types.errors import error_text, instance_of, refuse
from dmlops.types.tensor import TensorDesc

# The name from torch 2.13 on, and the one before.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def is_cut(placement: Placement, axis: int) -> bool:
    """Return whether a placement divides an axis, into successive parts or in another way."""
    return placement.is_shard(axis) or (
        not (placement.is_replicate() or placement.is_partial()) and getattr(placement, "dim", None) == axis
    )


def local_of(x: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return this rank's part of `x`, with the gradients of the rank's own part of results so placed."""
    pairs = zip(x.placements, placements, strict=True)
    of_gradient = [Partial() if p.is_replicate() and q.is_shard() else p for p, q in pairs]
    return x.to_local(grad_placements=of_gradient)


def cut_by(x: DTensor, axis: int) -> "list[Cut]":
    """Return which mesh dimensions divide an axis, also into other shards than successive parts."""
    mesh = x.device_mesh
    divided = [d for d, p in enumerate(x.placements) if is_cut(p, axis) and mesh.size(d) > 1]
    return [Cut([0] * mesh.size(d), mesh.get_local_rank(d), d) for d in divided]


class Cut(NamedTuple):
    """The division of an axis, or of a part of it, by one mesh dimension."""

    sizes: list[int]
    """The sizes of the shards, by rank."""
    rank: int
    """The rank of this process."""
    mesh_dim: int
    """The dimension of the mesh along which the other shards lie."""


def cuts_of(x: DTensor, axis: int) -> list[Cut]:
    """Return the divisions of an axis by mesh dimensions, one after the other, each like torch.chunk."""
    mesh = x.device_mesh
    cuts: list[Cut] = []
    for mesh_dim, placement in enumerate(x.placements):
        if placement.is_shard(axis) and mesh.size(mesh_dim) > 1:
            size = cuts[-1].sizes[cuts[-1].rank] if cuts else x.shape[axis]
            n_ranks = mesh.size(mesh_dim)
            largest = -(-size // n_ranks)
            sizes = [min(max(size - rank * largest, 0), largest) for rank in range(n_ranks)]
            cuts.append(Cut(sizes, mesh.get_local_rank(mesh_dim), mesh_dim))
    return cuts


def start_of(cuts: Sequence[Cut]) -> int:
    """Return the position at which this rank's shard begins in the whole axis."""
    return sum(sum(cut.sizes[: cut.rank]) for cut in cuts)


def of_rows(placement: Placement, axis: int) -> Placement:
    """Return the placement of a tensor that lacks an axis, to match one that has it."""
    if placement.is_shard(axis) or placement.is_replicate():
        return Replicate()
    return Shard(placement.dim - (placement.dim > axis))


def is_compiled() -> bool:
    """Return whether torch compiles a graph, which torch 2.11 does not say of all that it traces."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def all_gather(x: Tensor, mesh: DeviceMesh, cut: Cut) -> Tensor:
    """Return the tensors of all ranks that a mesh dimension connects, stacked in their order."""
    shape = len(cut.sizes), *x.shape
    if x.numel() == 0:
        return x.new_empty(shape)
    if is_compiled():
        # Graphs can hold DTensor's collectives, but not those of torch.distributed.
        placements = [Shard(0) if d == cut.mesh_dim else Replicate() for d in range(mesh.ndim)]
        return whole(x.unsqueeze(0), mesh, placements, shape).full_tensor()
    received = x.new_empty(math.prod(shape))
    _all_gather_single(received, x.reshape(-1), group=mesh.get_group(cut.mesh_dim))
    return received.view(shape)


def distributed(
    x: object, where: str, mesh: DeviceMesh | None = None, *, any_shards: bool = False
) -> DTensor:
    """Return an argument that must be a DTensor, with the shard that its placements give this rank.

    With `any_shards`, the shards need not be successive parts.
    """
    if not isinstance(x, DTensor):
        got, reason = instance_of(x), "another argument is a DTensor"
        raise TypeError(error_text(where, got, reason, "distribute_tensor(x, mesh, placements) makes it one"))
    # At a level of DirectML, ranks with empty shards would refuse the call, and so would the exchange between
    # the others, by its types and sizes.
    check_extended(where, "a DTensor", "DirectML computes on one device")
    if mesh is not None and x.device_mesh != mesh:
        got = f"a DTensor on {x.device_mesh}"
        refuse(where, got, f"x is on {mesh}", "all must be on one mesh")
    if x.device_mesh.get_coordinate() is None:
        got = f"a DTensor on {x.device_mesh}"
        refuse(where, got, "this rank is not in it", "call on the mesh's ranks only")
    for placement in x.placements:
        if placement.is_partial():
            got = f"a DTensor of placement {placement!r}"
            reason = "its elements are not known before the ranks' parts are reduced"
            refuse(where, got, reason, remedy("Replicate()"))
        if type(placement) not in (Shard, Replicate) and not any_shards:
            got = f"a DTensor of placement {placement!r}"
            refuse(where, got, "its shards are not successive parts of the tensor", remedy("Shard(dim)"))
    if any_shards:
        return x
    cuts = [cuts_of(x, axis) for axis in range(x.ndim)]
    expected = [c[-1].sizes[c[-1].rank] if c else n for n, c in zip(x.shape, cuts, strict=True)]
    if [*x.to_local().shape] != expected:
        got = f"a shard of shape {tuple(x.to_local().shape)}"
        reason = f"{x.placements} of shape {tuple(x.shape)} mean {tuple(expected)} on this rank"
        refuse(where, got, reason, "shards must be those of torch.chunk")
    return x


def redistributed(x: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return this rank's shard of integers in other placements."""
    local = x.to_local()
    if tuple(placements) == x.placements:
        return local
    # Some back-ends cannot send unsigned integers.
    signed = local.view(getattr(torch, str(local.dtype).removeprefix("torch.").removeprefix("u")))
    moved = whole(signed, x.device_mesh, x.placements, x.shape).redistribute(placements=placements)
    return moved.to_local().view(local.dtype)


def remedy(placement: str) -> str:
    """Return what error texts recommend in the place of a layout for which `x` would have to be sent."""
    return f"call x.redistribute(placements=[...]) first, with {placement} in its place"


def describe(x: DTensor, where: str) -> TensorDesc:
    """Return the type and the shape of the whole tensor."""
    return TensorDesc(data_type_of(x.dtype, where), tuple(x.shape))


def whole(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    """Return the DTensor with this shard on this rank."""
    strides = [math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape))]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
    )
