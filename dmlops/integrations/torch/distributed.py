"""The operators of ``torch.ops.dmlops`` on DTensors: sharded over several devices, with the answer of one.

Every rank of the mesh makes the same call, and runs the kernels on its own shard. Three calls communicate:

- `top_k` along a sharded dimension sends each rank's candidates, at most k per row, and never the shard;
- `sample` of a sharded vocabulary does the same with a small k, and sends the logits otherwise;
- `gather_nd` with ``mode="raise"`` sends one number, so that an error on one rank is raised on all of them.

In addition, `lengths` and `indices` are redistributed to match `x`. `x` itself is never sent: a layout that
would require it is refused.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from dmlops import functions
from dmlops.calls.binding import check_extended
from dmlops.functions.gather_nd import SPEC as GATHER_ND
from dmlops.functions.sample import SPEC as SAMPLE
from dmlops.functions.top_k import SPEC as TOP_K
from dmlops.integrations.torch.derivatives import Selected, as_int64, is_tracked, spread_along
from dmlops.operators.gather_nd import check_can_be_in_range, check_mode, infer_gather_nd
from dmlops.operators.sample import PARAMETERS, infer_sample
from dmlops.operators.top_k import broadcast_rows, infer_top_k
from dmlops.store.once import registered
from dmlops.types.array_types import Mode
from dmlops.types.data_types import data_type_of, index_data_type
from dmlops.types.errors import DmlError, IndexOutOfRangeError, error_text, instance_of, refuse
from dmlops.types.tensor import TensorDesc

# The name from torch 2.13 on, and the one before.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# More candidates of each rank are not sent, but all logits.
_MOST_CANDIDATES = 1024


def top_k(
    x: DTensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: DTensor | None,
    index_dtype: torch.dtype | None = None,
    starts: DTensor | None = None,
    indices: DTensor | None = None,
    max_length: int | None = None,
    nan_last: bool = False,
) -> tuple[DTensor, DTensor]:
    """Run `dmlops.top_k`. The results are placed like `x`, but replicated where `x` shards the axis.

    With numbers, but without windows, nobody asks for positions: shards of the axis may be any.
    """
    is_windowed = lengths is not None or starts is not None
    x = _distributed(x, "top_k.x", any_shards=indices is not None and not is_windowed)
    arrays = {"lengths": lengths, "starts": starts, "indices": indices}
    given = {
        name: _distributed(array, f"top_k.{name}", x.device_mesh, any_shards=name == "indices")
        for name, array in arrays.items()
        if array is not None
    }
    described = {name: _describe(array, f"top_k.{name}") for name, array in given.items()}
    rows = broadcast_rows(_describe(x, "top_k.x"), axis, described)
    if rows.numbers is not None:
        index_dtype = given["indices"].dtype
    index_dtype = index_dtype or torch.int64
    index_type = index_data_type(index_dtype, "top_k.index_dtype")
    desc, _ = infer_top_k(TOP_K.words, rows, k, index_type)
    axis %= max(x.ndim, 1)
    options: dict[str, Any] = {"largest": largest, "sorted": sorted, "nan_last": nan_last}
    local = {name: _local_rows(array, name, x, axis) for name, array in given.items()}
    cuts = _cuts(x, axis)
    if not _cut_by(x, axis):
        options |= {"axis": axis, "max_length": max_length, **local}
        if rows.numbers is None:
            options["index_dtype"] = index_dtype
        values, found = functions.top_k(x.to_local(), k, **options)
    elif local.keys() <= {"lengths"} and max_length is None and k <= x.shape[axis]:
        values, found = _top_k_across(x, k, axis, local.get("lengths"), cuts, options)
    else:
        values, found = _top_k_by_number(x, k, axis, local, max_length, options)
    placements = [Replicate() if _shards(p, axis) else p for p in x.placements]
    return tuple(
        _whole(part, x.device_mesh, placements, desc.sizes) for part in (values, found.to(index_dtype))
    )


def _shards(placement: Placement, axis: int) -> bool:
    """Return whether a placement divides an axis, into parts that follow each other or others."""
    return placement.is_shard(axis) or (
        not (placement.is_replicate() or placement.is_partial()) and getattr(placement, "dim", None) == axis
    )


def _cut_by(x: DTensor, axis: int) -> "list[_Cut]":
    """Return which mesh dimensions divide an axis, whatever the shards."""
    mesh = x.device_mesh
    divided = [d for d, p in enumerate(x.placements) if _shards(p, axis) and mesh.size(d) > 1]
    return [_Cut([0] * mesh.size(d), mesh.get_local_rank(d), d) for d in divided]


def _local_rows(array: DTensor, name: str, x: DTensor, axis: int) -> Tensor:
    """Return this rank's part of lengths, starts or numbers, as it has that of `x`."""
    where, shape = f"top_k.{name}", tuple(array.shape)
    if name == "indices":
        if shape == tuple(x.shape):
            return _redistributed(array, x.placements)
        if array.ndim == 1:
            pairs = zip(array.placements, x.placements, strict=True)
            if all(_shards(own, 0) == _shards(other, axis) for own, other in pairs):
                return array.to_local()
            placements = [Shard(0) if p.is_shard(axis) else Replicate() for p in x.placements]
            return _redistributed(array, placements)
        reason = f"x has shape {tuple(x.shape)}, and is a DTensor"
        refuse(where, f"shape {shape}", reason, "numbers must have its shape, or lie along the axis")
    rows = tuple(x.shape[:axis] + x.shape[axis + 1 :])
    if shape != rows:
        reason = f"x is a DTensor, and has shape {rows} without axis {axis}"
        refuse(where, f"shape {shape}", reason, "shapes must be equal")
    return _redistributed(array, [_of_rows(p, axis) for p in x.placements])


def _top_k_by_number(
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
    rows = local.detach().movedim(axis, -1)
    start = 0
    windows: dict[str, Tensor] = {}
    if given.keys() & {"lengths", "starts"}:
        start = _start(_cuts(x, axis))
        windows = _windows_from(start, x.shape[axis], given, max_length, rows)
    if numbers is None:
        own = torch.arange(start, start + rows.shape[-1], device=rows.device)
    else:
        if is_tracked(local):
            reason = "of shards that are merged by number it is not known where elements come from"
            raise TypeError(error_text("top_k.x", "a DTensor with a derivative", reason, "pass x.detach()"))
        own = numbers if numbers.ndim <= 1 else numbers.movedim(axis, -1)
    unordered = options | {"sorted": False}
    values, found = functions.top_k(rows, k, indices=own, **windows, **unordered)
    cuts = _cut_by(x, axis)
    for cut in reversed(cuts):
        sent = [part.unsqueeze(-1).view(torch.uint8) for part in (values, found)]
        widths = [part.shape[-1] for part in sent]
        received = _all_gather(torch.cat(sent, -1), x.device_mesh, cut).movedim(0, -3).flatten(-3, -2)
        bytes_of_values, bytes_of_found = (
            part.clone(memory_format=torch.contiguous_format) for part in received.split(widths, -1)
        )
        values, found = bytes_of_values.view(values.dtype), bytes_of_found.view(found.dtype)
        ordering = options if cut is cuts[0] else unordered
        values, found = functions.top_k(values.squeeze(-1), k, indices=found.squeeze(-1), **ordering)
    values, found = (part.movedim(-1, axis).contiguous() for part in (values, found))
    if numbers is not None:
        return values, found
    return Selected.apply(local, (values,), found - start, partial(spread_along, axis)), found


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


def nonzero_coordinates(x: DTensor, *others: Any) -> NoReturn:
    """Refuse `dmlops.nonzero_coordinates`, whose rows depend on the elements of all shards."""
    reason, remedy = "its rows depend on the elements of all shards", "pass x.full_tensor()"
    raise TypeError(error_text("nonzero_coordinates.x", "a DTensor", reason, remedy))


def gather_nd(
    x: DTensor,
    indices: DTensor,
    batch_dims: int,
    mode: str,
    fill_value: torch.types.Number,
    wrap_negative: bool,
) -> DTensor:
    """Run `dmlops.gather_nd`. The result is sharded along the dimensions of `x` and `indices` that are."""
    x = _distributed(x, "gather_nd.x")
    indices = _distributed(indices, "gather_nd.indices", x.device_mesh)
    tuples = _describe(indices, "gather_nd.indices")
    data = _describe(x, "gather_nd.x")
    check_mode(mode)
    desc = infer_gather_nd(GATHER_ND.words, data, tuples, batch_dims)
    # The kernels would refuse them only on ranks that have some of the tuples.
    check_can_be_in_range(data, tuples, batch_dims, mode)
    layouts = [
        _gather_layout(x, mesh_dim, of_indices, batch_dims, tuples.sizes[-1], indices.ndim)
        for mesh_dim, of_indices in enumerate(indices.placements)
    ]
    of_x, of_indices, placements = zip(*layouts, strict=True)
    # Each rank has the gradients of its own tuples.
    of_gradient = [
        Partial() if p.is_replicate() and q.is_shard() else p for p, q in zip(of_x, placements, strict=True)
    ]
    local = x.redistribute(placements=of_x).to_local(grad_placements=of_gradient)
    rows = _redistributed(indices, of_indices)
    # Other modes raise no error that depends on the rank, and a graph cannot branch on what ranks find.
    is_shared = mode == "raise" and not _is_compiled()
    options: dict[str, Any] = {"fill_value": fill_value, "wrap_negative": wrap_negative}
    with _error_on_all_ranks(x.device_mesh, placements) if is_shared else nullcontext():
        gathered = functions.gather_nd(local, rows, batch_dims=batch_dims, mode=cast("Mode", mode), **options)
    return _whole(gathered, x.device_mesh, placements, desc.sizes)


def sample(
    logits: DTensor,
    given: Sequence[DTensor | None],
    seed: int,
    step: int,
    temperature: float,
    k: int,
    top_p: float,
    min_p: float,
    index_dtype: torch.dtype | None = None,
) -> DTensor:
    """Run `dmlops.sample`. Tokens are placed like rows; ranks that share a row have the same ones."""
    x = _distributed(logits, "sample.logits")
    axis, described, local = x.ndim - 1, {}, {}
    for name, array in zip(PARAMETERS, given, strict=True):
        if array is not None:
            where = f"sample.{name}"
            whole = _distributed(array, where, x.device_mesh)
            described[name] = _describe(whole, where)
            local[name] = _redistributed(whole, [_of_parameter(p, x.ndim, whole) for p in x.placements])
    numbers = seed, step, temperature, k, top_p, min_p
    options = dict(zip(PARAMETERS, numbers, strict=True)) | local
    index_type = index_data_type(index_dtype or torch.int64, "sample.index_dtype")
    desc = infer_sample(SAMPLE.words, _describe(x, "sample.logits"), index_type, described)
    options["index_dtype"] = index_dtype or torch.int64
    cuts = _cuts(x, axis)
    placements = [Replicate() if p.is_shard(axis) else p for p in x.placements]
    if cuts and "k" not in local and 0 < k <= _MOST_CANDIDATES and k < x.shape[axis]:
        # NaN would be the first candidate, and weighs as much as minus infinity.
        rows = torch.where(x.to_local().isnan(), -math.inf, x.to_local().detach())
        known = _whole(rows, x.device_mesh, x.placements, x.shape)
        # The candidates are in the order of their indices, by which tokens are drawn.
        values, indices = _top_k_across(known, k, axis, None, cuts, {"largest": True, "sorted": False})
        places = functions.sample(values, **options | {"k": None, "index_dtype": torch.int64})
        found = indices.gather(-1, places.clamp(0).unsqueeze(-1)).squeeze(-1)
        tokens = torch.where(places < 0, places, found).to(options["index_dtype"])
    else:
        tokens = functions.sample(x.redistribute(placements=placements).to_local(), **options)
    return _whole(tokens, x.device_mesh, placements, desc.sizes)


def _of_parameter(placement: Placement, n_dims: int, array: DTensor) -> Placement:
    """Return the placement of a parameter of `sample` beside one of logits of `n_dims` dimensions."""
    if not isinstance(placement, Shard):
        return Replicate()
    d = placement.dim - (n_dims - 1 - array.ndim)
    is_shared = d < 0 or placement.dim == n_dims - 1 or array.shape[d] == 1
    return Replicate() if is_shared else Shard(d)


def diagonal_matrix(x: DTensor, value: torch.types.Number, begin: int, end: int) -> DTensor:
    """Run `dmlops.diagonal_matrix`. The result is sharded like `x`, along any dimensions."""
    x = _distributed(x, "diagonal_matrix.x")
    # In the whole matrix, column minus row is larger by this than in the shard.
    shift = _start(_cuts(x, x.ndim - 1)) - _start(_cuts(x, x.ndim - 2))
    filled = functions.diagonal_matrix(x.to_local(), value=value, begin=begin - shift, end=end - shift)
    return _whole(filled, x.device_mesh, x.placements, x.shape)


RULES: dict[str, Callable[..., Any]] = {
    "dmlops::top_k": top_k,
    "dmlops::nonzero_coordinates": nonzero_coordinates,
    "dmlops::nonzero_coordinates_static": nonzero_coordinates,
    "dmlops::sample": sample,
    "dmlops::gather_nd": gather_nd,
    "dmlops::diagonal_matrix": diagonal_matrix,
}
"""By the names of the operators; registered with torch, in the place of DTensor's own dispatch."""


def _register() -> dict[str, Callable[..., Any]]:
    def dispatch(cls: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return rules[operator.name()](*args, **(kwargs or {}))

    rules = dict(RULES)
    for name in rules:
        torch.library.register_torch_dispatch(name, DTensor, dispatch)
    return rules


# Those of an earlier import of dmlops make way for these.
registered("torch", "rules of DTensor", _register).update(RULES)


class _Cut(NamedTuple):
    """The division of an axis, or of a part of it, by one mesh dimension.

    Attributes
    ----------
    sizes : list of int
        Of the shards, by rank.
    rank : int
        Which of them is this process's.
    mesh_dim : int
        Over which dimension of the mesh those are that have the others.
    """

    sizes: list[int]
    rank: int
    mesh_dim: int


def _cuts(x: DTensor, axis: int) -> list[_Cut]:
    """Return the divisions of an axis by mesh dimensions, one after the other, each like torch.chunk."""
    mesh = x.device_mesh
    cuts: list[_Cut] = []
    for mesh_dim, placement in enumerate(x.placements):
        if placement.is_shard(axis) and mesh.size(mesh_dim) > 1:
            size = cuts[-1].sizes[cuts[-1].rank] if cuts else x.shape[axis]
            n_ranks = mesh.size(mesh_dim)
            largest = -(-size // n_ranks)
            sizes = [min(max(size - rank * largest, 0), largest) for rank in range(n_ranks)]
            cuts.append(_Cut(sizes, mesh.get_local_rank(mesh_dim), mesh_dim))
    return cuts


def _start(cuts: Sequence[_Cut]) -> int:
    """Return the position at which this rank's shard begins in the whole axis."""
    return sum(sum(cut.sizes[: cut.rank]) for cut in cuts)


def _top_k_across(
    x: DTensor, k: int, axis: int, lengths: Tensor | None, cuts: list[_Cut], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Select candidates from this rank's shard of an axis, and the results from all ranks' candidates.

    Candidates with equal values stand in the order of their indices, within a rank and from rank to rank, and
    so the merge, which is stable, is right about ties. Padding stands behind all candidates.
    """
    start, local = _start(cuts), x.to_local()
    rows = local.detach().movedim(axis, -1)
    if lengths is not None:
        lengths = as_int64(lengths).clamp(0) - start
    # Candidates do not have to be in order of value.
    unordered = options | {"index_dtype": "int64", "sorted": False}
    values, indices = functions.top_k(rows, min(k, rows.shape[-1]), lengths=lengths, **unordered)
    indices = indices + start if lengths is None else torch.where(indices < 0, indices, indices + start)
    for cut in reversed(cuts):
        values, indices = _candidates(values, indices, k, x.device_mesh, cut)
        ordering = unordered | (options if cut is cuts[0] else {})
        counts = None if lengths is None else (indices >= 0).sum(-1)
        values, places = functions.top_k(values, min(k, sum(cut.sizes)), lengths=counts, **ordering)
        found = indices.gather(-1, places if lengths is None else places.clamp(0))
        indices = found if lengths is None else torch.where(places < 0, places, found)
    values, indices = (part.movedim(-1, axis).contiguous() for part in (values, indices))
    # The caller may write to the indices before the backward pass.
    spread = partial(spread_along, axis)
    return Selected.apply(local, (values,), indices - start, spread), indices


def _candidates(
    values: Tensor, indices: Tensor, k: int, mesh: DeviceMesh, cut: _Cut
) -> tuple[Tensor, Tensor]:
    """Return the candidates of all ranks, side by side in the last dimension."""
    parts = [part.unsqueeze(-1).view(torch.uint8) for part in (values, indices)]
    sent = torch.cat(parts, -1)
    # All ranks send equally much. Only the last ranks can lack candidates, so padding comes last.
    lacking = min(k, cut.sizes[0]) - values.shape[-1]
    sent = torch.nn.functional.pad(sent, (0, 0, 0, lacking)) if lacking else sent
    received = _all_gather(sent, mesh, cut)
    # Back to rows, each with the candidates of all ranks, and every element at a multiple of its size.
    widths = [part.shape[-1] for part in parts]
    bytes_of_values, bytes_of_indices = (
        part.clone(memory_format=torch.contiguous_format).flatten(-3, -2)
        for part in received.movedim(0, -3).split(widths, -1)
    )
    n_candidates = sum(min(k, size) for size in cut.sizes)
    values = bytes_of_values.view(values.dtype).squeeze(-1)[..., :n_candidates]
    return values, bytes_of_indices.view(indices.dtype).squeeze(-1)[..., :n_candidates]


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
        refuse("gather_nd.x", f"a DTensor of placement {of_x!r}", reason, _remedy("Replicate()"))
    if of_indices.is_shard() and of_indices.dim < batch_dims:
        # Shards of a batch dimension that is already divided would consist of other elements.
        is_divided = any(placement.is_shard(of_indices.dim) for placement in x.placements)
        of_x = of_indices = Replicate() if is_divided else of_indices
    if of_indices.is_shard(last):
        of_indices = Replicate()
    return of_x, of_indices, of_indices


def _of_rows(placement: Placement, axis: int) -> Placement:
    """Return the placement of a tensor that lacks an axis, to match one that has it."""
    if placement.is_shard(axis) or placement.is_replicate():
        return Replicate()
    return Shard(placement.dim - (placement.dim > axis))


def _is_compiled() -> bool:
    """Return whether torch compiles a graph, which torch 2.11 does not say of all that it traces."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def _all_gather(x: Tensor, mesh: DeviceMesh, cut: _Cut) -> Tensor:
    """Return the tensors of all ranks that a mesh dimension connects, stacked in their order."""
    shape = len(cut.sizes), *x.shape
    if x.numel() == 0:
        return x.new_empty(shape)
    if _is_compiled():
        # Graphs can hold DTensor's collectives, but not those of torch.distributed.
        placements = [Shard(0) if d == cut.mesh_dim else Replicate() for d in range(mesh.ndim)]
        return _whole(x.unsqueeze(0), mesh, placements, shape).full_tensor()
    received = x.new_empty(math.prod(shape))
    _all_gather_single(received, x.reshape(-1), group=mesh.get_group(cut.mesh_dim))
    return received.view(shape)


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


def _distributed(x: Any, where: str, mesh: DeviceMesh | None = None, *, any_shards: bool = False) -> DTensor:
    """Return an argument that must be a DTensor, with the shard that its placements give this rank.

    With `any_shards`, the shards need not be successive parts.
    """
    if not isinstance(x, DTensor):
        got, reason = instance_of(x), "another argument is a DTensor"
        raise TypeError(error_text(where, got, reason, "distribute_tensor(x, mesh, placements) makes it one"))
    # A level refuses empty shards, and so some ranks; and the types and sizes of what the others exchange.
    check_extended(where, "a DTensor", "DirectML computes on one device")
    got = f"a DTensor on {x.device_mesh}"
    if mesh is not None and x.device_mesh != mesh:
        refuse(where, got, f"x is on {mesh}", "all must be on one mesh")
    if x.device_mesh.get_coordinate() is None:
        refuse(where, got, "this rank is not in it", "call on the mesh's ranks only")
    for placement in x.placements:
        got = f"a DTensor of placement {placement!r}"
        if placement.is_partial():
            reason = "its elements are not known before the ranks' parts are reduced"
            refuse(where, got, reason, _remedy("Replicate()"))
        if type(placement) not in (Shard, Replicate) and not any_shards:
            refuse(where, got, "its shards are not successive parts of the tensor", _remedy("Shard(dim)"))
    if any_shards:
        return x
    cuts = [_cuts(x, axis) for axis in range(x.ndim)]
    expected = [c[-1].sizes[c[-1].rank] if c else n for n, c in zip(x.shape, cuts, strict=True)]
    if [*x.to_local().shape] != expected:
        got = f"a shard of shape {tuple(x.to_local().shape)}"
        reason = f"{x.placements} of shape {tuple(x.shape)} mean {tuple(expected)} on this rank"
        refuse(where, got, reason, "shards must be those of torch.chunk")
    return x


def _redistributed(x: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return this rank's shard of integers in other placements."""
    local = x.to_local()
    if tuple(placements) == x.placements:
        return local
    # Some back-ends cannot send unsigned integers.
    signed = local.view(getattr(torch, str(local.dtype).removeprefix("torch.").removeprefix("u")))
    whole = _whole(signed, x.device_mesh, x.placements, x.shape)
    return whole.redistribute(placements=placements).to_local().view(local.dtype)


def _remedy(placement: str) -> str:
    return f"call x.redistribute(placements=[...]) first, with {placement} in its place"


def _describe(x: DTensor, where: str) -> TensorDesc:
    return TensorDesc(data_type_of(x.dtype, where), tuple(x.shape))


def _whole(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    """Return the DTensor with this shard on this rank."""
    strides = [math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape))]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
    )
