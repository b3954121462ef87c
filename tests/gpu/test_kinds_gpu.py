"""Kinds of calls on a GPU: any sequence of kinds and sizes has the answers of NumPy."""

from typing import Any

import numpy as np
import pytest

from dmlops.calls.kinds import KINDS
from tests.kind_calls import random_calls

torch = pytest.importorskip("torch")


def put(x: np.ndarray[Any, Any]) -> Any:
    """Return a tensor on the GPU with the strides of an array, or their size where they are negative."""
    if min(x.strides, default=0) < 0 or not x.size:
        return torch.from_numpy(x.copy()).cuda()
    strides = [stride // x.itemsize for stride in x.strides]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True))
    memory = np.lib.stride_tricks.as_strided(x, (reach,), (x.itemsize,))
    return torch.as_strided(torch.from_numpy(memory.copy()).cuda(), x.shape, strides)


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_kinds_and_sizes(seed: int) -> None:
    before, kinds = len(KINDS), set()
    for kind, call, expected in random_calls(seed, 400, put):
        for got, wanted in zip(call(), expected, strict=True):
            np.testing.assert_array_equal(got.cpu().numpy(), wanted, err_msg=kind)
            assert got.is_cuda
        kinds.add(kind)
        assert len(KINDS) <= before + len(kinds)
