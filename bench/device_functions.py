"""Time the kernels of docs/device.md beside what users have without `dmlops.device`, in one run on a GPU.

Users call torch several times, or write the selection themselves: rounds of shuffles, atomics, which find
voxels in any order, or a bitonic sort. That all find the same is checked. Times are medians: of the work of
the GPU on cold inputs, and of a whole call with its wait. Run it as ``python -m bench.device_functions``.
"""

import math
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import cuda

from bench.timing import CudaClock, Lane, take_turns, warm_up

PAGE = Path(__file__).parent.parent / "docs" / "device.md"
SECONDS = 1.5  # for the calls of a case
TOKENS, EXPERTS, K, ITEMS = 16_384, 256, 8, 8
SHAPES, CHANNELS, DENSE = ((4_096, 4_096), (512, 32_768)), 4, 0.9  # grids, and voxels of each
NUMBERS, OTHERS, NEAREST, THREADS = 8_192, 1_000, 100, 256
PADDED = 1_024
ALL_LANES, ONE, NOTHING = 0xFFFFFFFF, np.float32(1), np.float32(-math.inf)


@cuda.jit(fastmath=True)
def gate_by_shuffles(logits: Any, bias: Any, experts: Any, weights: Any) -> None:
    """Do what `gate` of the page does, with eight rounds of shuffles."""
    lane = cuda.threadIdx.x % 32
    token = (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) // 32
    if token >= logits.shape[0]:
        return
    scores = cuda.local.array(ITEMS, numba.float32)
    for i in range(ITEMS):
        expert = 32 * i + lane
        scores[i] = ONE / (ONE + math.exp(-logits[token, expert])) + bias[expert]
    score, selected = NOTHING, numba.int32(0)
    for taken in range(K):
        best, place = NOTHING, numba.int32(0)
        for i in range(ITEMS):
            if scores[i] > best:
                best, place = scores[i], numba.int32(32 * i + lane)
        for distance in (16, 8, 4, 2, 1):
            other = cuda.shfl_xor_sync(ALL_LANES, best, distance)
            of_other = cuda.shfl_xor_sync(ALL_LANES, place, distance)
            if other > best or (other == best and of_other < place):
                best, place = other, of_other
        for i in range(ITEMS):
            if 32 * i + lane == place:
                scores[i] = NOTHING
        if lane == taken:
            score, selected = best, place
    weight = score - bias[selected] if lane < K else np.float32(0)
    total = weight
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
    if lane < K:
        experts[token, lane] = selected
        weights[token, lane] = weight / total


@cuda.jit
def gather_by_atomics(density: Any, features: Any, voxels: Any, gathered: Any, counts: Any) -> None:
    """Do what `gather_dense` of the page does, in any order; counts must be zero."""
    grid = cuda.blockIdx.x
    for voxel in range(cuda.threadIdx.x, density.shape[1], cuda.blockDim.x):
        if density[grid, voxel] > np.float32(DENSE):
            place = cuda.atomic.add(counts, grid, 1)
            voxels[grid, place] = voxel
            for channel in range(features.shape[2]):
                gathered[grid, place, channel] = features[grid, voxel, channel]


@cuda.jit(launch_bounds=THREADS)
def find_by_bitonic_sort(numbers: Any, others: Any, distances: Any, neighbours: Any) -> None:
    """Do what `find_nearest` of the page does, by a bitonic sort in shared memory."""
    row = cuda.shared.array(PADDED, numba.float32)
    place = cuda.shared.array(PADDED, numba.int32)
    for i in range(cuda.threadIdx.x, PADDED, THREADS):
        row[i] = abs(others[i] - numbers[cuda.blockIdx.x]) if i < OTHERS else -NOTHING
        place[i] = i
    size = 2
    while size <= PADDED:
        distance = size // 2
        while distance > 0:
            cuda.syncthreads()
            for pair in range(cuda.threadIdx.x, PADDED // 2, THREADS):
                i = 2 * distance * (pair // distance) + pair % distance
                j = i + distance
                is_later = row[i] > row[j] or (row[i] == row[j] and place[i] > place[j])
                if is_later == (i & size == 0):
                    row[i], row[j] = row[j], row[i]
                    place[i], place[j] = place[j], place[i]
            distance //= 2
        size *= 2
    cuda.syncthreads()
    if cuda.threadIdx.x < NEAREST:
        distances[cuda.blockIdx.x, cuda.threadIdx.x] = row[cuda.threadIdx.x]
        neighbours[cuda.blockIdx.x, cuda.threadIdx.x] = place[cuda.threadIdx.x]


def gate_by_torch(logits: Any, bias: Any) -> tuple[Any, Any]:
    """Do what `gate` of the page does, with calls of torch."""
    scores = logits.sigmoid()
    experts = (scores + bias).topk(K).indices
    weights = scores.gather(1, experts)
    return experts, weights / weights.sum(1, keepdim=True)


def gather_by_torch(density: Any, features: Any) -> tuple[Any, Any]:
    """Do what `gather_dense` of the page does, with calls of torch."""
    found = (density > DENSE).nonzero()
    return found, features[found[:, 0], found[:, 1]]


def find_by_torch(numbers: Any, others: Any) -> tuple[Any, Any]:
    """Do what `find_nearest` of the page does, with calls of torch."""
    found = (others - numbers[:, None]).abs().topk(NEAREST, largest=False)
    return found.values, found.indices


def launched(kernel: Any, n_blocks: int, n_threads: int, *tensors: Any) -> Callable[[], None]:
    """Return a call that launches a kernel, without the time that Numba takes to look at tensors."""
    arrays = [cuda.as_cuda_array(tensor) for tensor in tensors]
    return lambda: kernel[n_blocks, n_threads](*arrays)


def integers(*shape: int) -> Any:
    """Return zeros."""
    return torch.zeros(shape, dtype=torch.int32, device="cuda")


def gates(gate: Any) -> tuple[str, dict[str, Callable[[], Any]]]:
    """Return the case of gates, and its calls, which have given the same answers."""
    logits, bias = torch.randn(TOKENS, EXPERTS, device="cuda"), torch.randn(EXPERTS, device="cuda") / 8
    outputs = [(integers(TOKENS, K), torch.empty(TOKENS, K, device="cuda")) for _ in range(2)]
    by_page, by_shuffles = (
        launched(kernel, TOKENS // 4, 128, logits, bias, *out)
        for kernel, out in zip((gate, gate_by_shuffles), outputs, strict=True)
    )
    by_page()
    by_shuffles()
    (experts, weights), (others, _) = outputs
    assert torch.equal(experts, others)
    torch.testing.assert_close(weights, gate_by_torch(logits, bias)[1])
    return f"Gate: {TOKENS:,} tokens, {K} of {EXPERTS} experts", {
        "`warp_top_k`": by_page,
        "rounds of shuffles": by_shuffles,
        "torch": lambda: gate_by_torch(logits, bias),
    }


def voxels(gather_dense: Any, n_grids: int, n_voxels: int) -> tuple[str, dict[str, Callable[[], Any]]]:
    """Return a case of voxels, and its calls."""
    density = torch.rand(n_grids, n_voxels, device="cuda")
    features = torch.rand(n_grids, n_voxels, CHANNELS, device="cuda")
    found, gathered, counts = integers(n_grids, n_voxels), torch.empty_like(features), integers(n_grids)
    by_page, add = (
        launched(kernel, n_grids, THREADS, density, features, found, gathered, counts)
        for kernel in (gather_dense, gather_by_atomics)
    )

    def by_atomics() -> None:
        counts.zero_()
        add()

    places, expected = gather_by_torch(density, features)
    by_atomics()
    assert torch.equal(counts, (density > DENSE).sum(1))
    by_page()
    is_found = torch.arange(n_voxels, device="cuda") < counts[:, None]
    assert torch.equal(found[is_found], places[:, 1].int())
    assert torch.equal(gathered[is_found], expected)
    return f"Voxels: {n_grids:,} grids of {n_voxels:,}, a tenth found, {CHANNELS} channels", {
        "`block_compact`": by_page,
        "atomics, in any order": by_atomics,
        "torch": lambda: gather_by_torch(density, features),
    }


def neighbours(find_nearest: Any) -> tuple[str, dict[str, Callable[[], Any]]]:
    """Return the case of neighbours, and its calls."""
    numbers, others = torch.randn(NUMBERS, device="cuda"), torch.randn(OTHERS, device="cuda")
    outputs = [(torch.empty(NUMBERS, NEAREST, device="cuda"), integers(NUMBERS, NEAREST)) for _ in range(2)]
    by_page, by_sort = (
        launched(kernel, NUMBERS, THREADS, numbers, others, *out)
        for kernel, out in zip((find_nearest, find_by_bitonic_sort), outputs, strict=True)
    )
    by_page()
    by_sort()
    for ours, of_sort in zip(*outputs, strict=True):
        assert torch.equal(ours, of_sort)
    assert torch.equal(outputs[0][0], find_by_torch(numbers, others)[0])
    return f"Neighbours: {NUMBERS:,} numbers, {NEAREST} of {OTHERS:,}", {
        "`block_top_k`": by_page,
        "a bitonic sort": by_sort,
        "torch": lambda: find_by_torch(numbers, others),
    }


def main() -> None:
    """Print a table."""
    page: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), page)
    torch.manual_seed(0)
    clock = CudaClock()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, numba-cuda {version('numba-cuda')}\n")
    print("| | | GPU, µs | Call, µs |\n| --- | --- | --- | --- |")
    for case, calls in (
        gates(page["gate"]),
        *(voxels(page["gather_dense"], *shape) for shape in SHAPES),
        neighbours(page["find_nearest"]),
    ):
        lanes = {name: Lane(call) for name, call in calls.items()}
        for lane in lanes.values():
            warm_up(lane, clock)
        take_turns([*lanes.values()], clock, SECONDS)
        for name, lane in lanes.items():
            work = "waits" if lane.median("host") is None else f"{lane.median() * 1e6:.0f}"
            print(f"| {case} | {name} | {work} | {lane.median('wall') * 1e6:.0f} |")


if __name__ == "__main__":
    main()
