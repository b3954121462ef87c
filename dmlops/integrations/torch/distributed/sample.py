"""`dmlops.sample` of DTensors."""

import math

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from dmlops import functions
from dmlops.functions.sample import SPEC
from dmlops.integrations.torch.distributed.shards import cuts_of, describe, distributed, redistributed, whole
from dmlops.integrations.torch.distributed.top_k import top_k_across
from dmlops.integrations.torch.operators.sample import SampleCall
from dmlops.operators.sample import infer_sample
from dmlops.types.data_types import index_data_type

# With a larger k, ranks send all their logits instead of candidates.
_MOST_CANDIDATES = 1024


def run(call: SampleCall) -> DTensor:
    """Place tokens like rows; ranks that share a row have the same ones."""
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
    if cuts_of(x, axis) and "k" not in local and 0 < k <= _MOST_CANDIDATES and k < x.shape[axis]:
        # NaN would be the first candidate. It weighs nothing, as minus infinity does.
        rows = torch.where(x.to_local().isnan(), -math.inf, x.to_local().detach())
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


def _of_parameter(placement: Placement, n_dims: int, array: DTensor) -> Placement:
    """Return the placement of a parameter of `sample` beside one of logits of `n_dims` dimensions."""
    if not isinstance(placement, Shard):
        return Replicate()
    d = placement.dim - (n_dims - 1 - array.ndim)
    is_shared = d < 0 or placement.dim == n_dims - 1 or array.shape[d] == 1
    return Replicate() if is_shared else Shard(d)
