"""Kinds of calls on a GPU: any sequence of kinds and sizes has the answers of NumPy."""

from typing import Any

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.kept_calls import calls_only_native, known_kinds
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
    before, kinds = known_kinds(), set()
    for kind, call, expected in random_calls(seed, 400, put):
        for got, wanted in zip(call(), expected, strict=True):
            np.testing.assert_array_equal(got.cpu().numpy(), wanted, err_msg=kind)
            assert got.is_cuda
        kinds.add(kind)
        assert known_kinds() <= before + len(kinds)


def test_new_sizes_on_a_stream_of_the_caller() -> None:
    """They are calls of a known kind, which run on that stream and do not wait for it."""
    stream, late = torch.cuda.Stream(), torch.randn(40, 900).cuda()
    x = torch.zeros_like(late)
    dmlops.top_k(x[:, :100], 5, stream=stream)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(late)
    with calls_only_native():
        found = [(n, dmlops.top_k(x[:, :n], 5, stream=stream)) for n in range(90, 120)]
    assert not stream.query(), "a call waited"
    stream.synchronize()
    for n, result in found:
        expected = reference.top_k(late[:, :n].cpu().numpy(), 5)
        np.testing.assert_array_equal(result.values.cpu().numpy(), expected[0])
        np.testing.assert_array_equal(result.indices.cpu().numpy(), expected[1])
