"""`dmlops.gather_nd` of DTensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from dmlops import functions
from dmlops.functions.gather_nd import SPEC
from dmlops.integrations.torch.distributed import shards
from dmlops.integrations.torch.operators.gather_nd import GatherCall
from dmlops.operators.gather_nd import check_can_be_in_range, check_mode, infer_gather_nd
from dmlops.types.array_types import Mode
from dmlops.types.errors import DmlError, IndexOutOfRangeError, error_text, refuse


def run(call: GatherCall) -> DTensor:
    """Shard the result along the dimensions of `x` and `indices` that are sharded."""
    _, _, batch_dims, mode, fill_value, wrap_negative = call
    x = shards.distributed(call.x, "gather_nd.x")
    indices = shards.distributed(call.indices, "gather_nd.indices", x.device_mesh)
    tuples = shards.describe(indices, "gather_nd.indices")
    data = shards.describe(x, "gather_nd.x")
    check_mode(mode)
    desc = infer_gather_nd(SPEC.words, data, tuples, batch_dims)
    # The kernels would refuse them only on ranks that have some of the tuples.
    check_can_be_in_range(data, tuples, batch_dims, mode)
    layouts = [
        _gather_layout(x, mesh_dim, of_indices, batch_dims, tuples.sizes[-1], indices.ndim)
        for mesh_dim, of_indices in enumerate(indices.placements)
    ]
    of_x, of_indices, placements = zip(*layouts, strict=True)
    local = shards.local_of(x.redistribute(placements=of_x), placements)
    rows = shards.redistributed(indices, of_indices)
    # Other modes raise no error that depends on the rank, and a graph cannot branch on what ranks find.
    is_shared = mode == "raise" and not shards.is_compiled()
    options: dict[str, Any] = {"fill_value": fill_value, "wrap_negative": wrap_negative}
    with _error_on_all_ranks(x.device_mesh, placements) if is_shared else nullcontext():
        gathered = functions.gather_nd(local, rows, batch_dims=batch_dims, mode=cast("Mode", mode), **options)
    return shards.whole(gathered, x.device_mesh, placements, desc.sizes)


def _gather_layout(
    x: DTensor, mesh_dim: int, of_indices: Placement, batch_dims: int, tuple_size: int, indices_ndim: int
) -> tuple[Placement, Placement, Placement]:
    """Return placements of x, indices and result over a mesh dimension for which x need not be sent."""
    of_x, last, first_copied = x.placements[mesh_dim], indices_ndim - 1, batch_dims + tuple_size
    if of_x.is_shard():
        if of_x.dim < batch_dims:
            return of_x, of_x, of_x
        if of_x.dim >= first_copied:
            return of_x, Replicate(), Shard(of_x.dim - first_copied + last)
        reason = "it indexes that dimension, and an element may be on any rank"
        refuse("gather_nd.x", f"a DTensor of placement {of_x!r}", reason, shards.remedy("Replicate()"))
    if of_indices.is_shard() and of_indices.dim < batch_dims:
        # Shards of a batch dimension that is already divided would consist of other elements.
        is_divided = any(placement.is_shard(of_indices.dim) for placement in x.placements)
        of_x = of_indices = Replicate() if is_divided else of_indices
    if of_indices.is_shard(last):
        of_indices = Replicate()
    return of_x, of_indices, of_indices


@contextmanager
def _error_on_all_ranks(mesh: DeviceMesh, placements: Sequence[Placement]) -> Iterator[None]:
    """Make all ranks raise the error of one; otherwise the others would wait for that rank later."""
    error = None
    try:
        yield
    except Exception as found:  # whatever it is, such as a lack of memory
        error = found
    is_of_index = isinstance(error, IndexOutOfRangeError)
    kind = torch.full((), 0 if error is None else 1 if is_of_index else 2, device=mesh.device_type)
    for mesh_dim, placement in enumerate(placements):
        if placement.is_shard():
            dist.all_reduce(kind, dist.ReduceOp.MAX, group=mesh.get_group(mesh_dim))
    if error is not None:
        if is_of_index:
            error.add_note(f"The position is that in the shard of rank {dist.get_rank()}.")
        raise error
    if kind > 0:
        got, allowed = "an error of another rank", "see the error of that rank"
        if kind == 1:
            reason = "an index is out of range there"
            raise IndexOutOfRangeError(error_text("gather_nd.indices", got, reason, allowed))
        raise DmlError(error_text("gather_nd", got, "its shard could not be computed", allowed))
