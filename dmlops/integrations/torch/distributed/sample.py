"""`dmlops.sample` of DTensors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from dmlops import functions
from dmlops.functions.sample import SPEC, sums_of_shard, targets_in_shard, tokens_of_shard
from dmlops.integrations.torch.distributed.shards import (
    Cut,
    all_gather,
    cuts_of,
    describe,
    distributed,
    redistributed,
    start_of,
    whole,
)
from dmlops.integrations.torch.distributed.top_k import top_k_across
from dmlops.integrations.torch.operators.sample import SampleCall
from dmlops.operators.sample import infer_sample
from dmlops.types.data_types import index_data_type

# With a larger k, ranks send all their logits instead of candidates. So do they with top_p alone: each of the
# histograms by which it is found may be as large as a shard.
_MOST_CANDIDATES = 1024
FEW_BYTES = 12 << 20
"""GPUs send fewer bytes of whole rows sooner than three numbers per row, one after the other."""


def run(call: SampleCall) -> DTensor:
    """Place tokens like rows; ranks that share a row have the same ones."""
    # Tokens have no derivative, and without one DTensors give their shards sooner.
    with torch.no_grad():
        return _draw(call)


def _draw(call: SampleCall) -> DTensor:
    x, k, dtype = distributed(call.logits, "sample.logits"), call.k, call.index_dtype or torch.int64
    axis, described, local = x.ndim - 1, {}, {}
    for name, array in call.arrays().items():
        where = f"sample.{name}"
        parameter = distributed(array, where, x.device_mesh)
        described[name] = describe(parameter, where)
        local[name] = redistributed(parameter, [_of_parameter(p, x.ndim, parameter) for p in x.placements])
    index_type = index_data_type(dtype, "sample.index_dtype")
    desc = infer_sample(SPEC.words, describe(x, "sample.logits"), index_type, described)
    options = call.parameters() | local | {"index_dtype": dtype}
    placements = [Replicate() if p.is_shard(axis) else p for p in x.placements]
    cuts, is_counted = cuts_of(x, axis), "k" in local or 0 < k < x.shape[axis]
    shard = x.to_local().detach()
    # The same number on all ranks that share rows.
    n_bytes = math.prod(shard.shape[:-1]) * x.shape[axis] * x.dtype.itemsize
    are_summed = "top_p" not in local and call.top_p == 1 and (n_bytes >= FEW_BYTES or not shard.is_cuda)
    if cuts and not is_counted and are_summed:
        tokens = _draw_from_sums(shard, x.device_mesh, cuts, options).to(dtype)
    elif cuts and is_counted and "k" not in local and k <= _MOST_CANDIDATES:
        # NaN would be the first candidate. It weighs nothing, as minus infinity does.
        rows = torch.where(shard.isnan(), -math.inf, shard)
        known = whole(rows, x.device_mesh, x.placements, x.shape)
        # The candidates are in the order of their indices, by which tokens are drawn.
        candidates = {"largest": True, "sorted": False}
        values, indices = top_k_across(known, k, axis, {}, None, candidates, placements)
        places = functions.sample(values, **options | {"k": None, "index_dtype": torch.int64})
        found = indices.gather(-1, places.clamp(0).unsqueeze(-1)).squeeze(-1)
        tokens = torch.where(places < 0, places, found).to(dtype)
    else:
        tokens = functions.sample(x.redistribute(placements=placements).to_local(), **options)
    return whole(tokens, x.device_mesh, placements, desc.sizes)


def _draw_from_sums(rows: Tensor, mesh: DeviceMesh, cuts: Sequence[Cut], given: dict[str, object]) -> Tensor:
    """Draw from all elements: ranks exchange the largest one, the sums of their weights, and the token."""
    # A shard without elements has padding.
    lengths = None if rows.shape[-1] else 0
    largest, _ = functions.top_k(rows, 1, lengths=lengths, nan_last=True)
    # NaN weighs as little as minus infinity. Every back-end sends bytes.
    largest = largest.nan_to_num(-math.inf, math.inf, -math.inf).view(torch.uint8)
    largest = _of_all(largest, mesh, cuts).view(rows.dtype).amax(0).squeeze(-1)
    of_weights = {"largest": largest, "temperature": given["temperature"], "min_p": given["min_p"]}
    sums = _of_all(sums_of_shard(rows, **of_weights), mesh, cuts)
    shard = 0
    for cut in cuts:
        shard = shard * len(cut.sizes) + cut.rank
    of_words = {name: given[name] for name in ("seeds", "steps", "temperature")}
    targets = targets_in_shard(sums.movedim(0, -1).view(torch.float64), shard=shard, **of_words)
    tokens = tokens_of_shard(rows, targets=targets, start=start_of(cuts), **of_weights)
    return _of_all(tokens, mesh, cuts).amax(0)


def _of_all(x: Tensor, mesh: DeviceMesh, cuts: Sequence[Cut]) -> Tensor:
    """Return the tensors of all ranks that share rows, stacked in the order of their shards."""
    for cut in reversed(cuts):
        x = all_gather(x, mesh, cut)
    return x.flatten(0, len(cuts) - 1)


def _of_parameter(placement: Placement, n_dims: int, array: DTensor) -> Placement:
    """Return the placement of a parameter of `sample` beside one of logits of `n_dims` dimensions."""
    if not isinstance(placement, Shard):
        return Replicate()
    d = placement.dim - (n_dims - 1 - array.ndim)
    is_shared = d < 0 or placement.dim == n_dims - 1 or array.shape[d] == 1
    return Replicate() if is_shared else Shard(d)
