"""`dmlops.diagonal_matrix` of DTensors."""

from torch.distributed.tensor import DTensor

from dmlops import functions
from dmlops.integrations.torch.distributed.shards import cuts_of, distributed, start_of, whole
from dmlops.integrations.torch.operators.diagonal_matrix import DiagonalCall


def run(call: DiagonalCall) -> DTensor:
    """Shard the result like `x`, along any dimensions."""
    x = distributed(call.x, "diagonal_matrix.x")
    # In the whole matrix, column minus row is larger by this than in the shard.
    shift = start_of(cuts_of(x, x.ndim - 1)) - start_of(cuts_of(x, x.ndim - 2))
    filled = functions.diagonal_matrix(
        x.to_local(), value=call.value, begin=call.begin - shift, end=call.end - shift
    )
    return whole(filled, x.device_mesh, x.placements, x.shape)
