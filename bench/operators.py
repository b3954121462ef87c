"""The suite `operators`: problems of all operators, from the applications that their names tell."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from bench.workloads import CPU, CUDA, DiagonalMatrix, GatherND, NonzeroCoordinates, TopK, Workload

EVERYTHING = 2**31  # the end of a band that reaches the right edge of any matrix
# Name, shape, k and what else there is.
CPU_TOP_K: tuple[tuple[str, tuple[int, int], int, dict[str, Any]], ...] = (
    ("gating 4096 x 256, k 8", (4096, 256), 8, {}),
    ("retrieval 1 x 1M, k 100", (1, 1_000_000), 100, {}),
    ("logits 256 x 50257 float32, k 50", (256, 50257), 50, {}),
    ("sparse attention 16 x 131072, k 2048", (16, 131072), 2048, {}),
    ("1 x 10M int32, k 10", (1, 10_000_000), 10, {"dtype": "int32"}),
    ("axis 0 of 4096 x 1024, k 16", (4096, 1024), 16, {"axis": 0}),
    ("1 x 1M, k = size", (1, 1_000_000), 1_000_000, {}),
    ("logits 256 x 50257 float16, k 50", (256, 50257), 50, {"dtype": "float16", "quick": False}),
    ("logits 256 x 50257 bfloat16, k 50", (256, 50257), 50, {"dtype": "bfloat16", "quick": False}),
)
# Rows, their length, k, type, and whether it is quick.
CUDA_TOP_K = (
    (1, 1 << 20, 100, "float32", True),  # retrieval
    (256, 50257, 50, "float32", True),  # logits
    (256, 50257, 50, "float16", False),
    (256, 50257, 50, "bfloat16", False),
    (8192, 256, 8, "float32", True),  # routing
    (64, 131072, 2048, "float32", True),  # sparse attention
    (128, 16384, 1000, "float32", True),  # detection
    (128, 16384, 1000, "bfloat16", False),
    (1, 1 << 24, 1000, "float32", False),  # large indices, and a whole corpus
    (1, 100_000_000, 100, "float32", True),
    (2048, 50257, 50, "float32", True),  # large batches of these
    (131072, 256, 8, "float32", True),
    (1024, 131072, 2048, "float32", False),
    (1024, 131072, 2048, "bfloat16", False),
    (1, 1 << 28, 100, "uint8", False),  # very long rows of other types
    (1, 1 << 26, 100, "int64", False),
)
# Quantised scores, rows in which every element is a new maximum or none is, and those after ReLU.
HARD_ROWS = ("ties", "ascending", "descending", "constant", "relu", "nan")
# The shape after 64 batches, how many dimensions of it are indexed, and the tuples of a batch.
GATHERS = {
    CPU: (((1024, 128), 2, 4096), ((256, 128, 4), 2, 4096), ((64, 32, 128), 2, 1024)),
    CUDA: (((4096, 128), 1, 16384), ((131072, 4), 1, 131072), ((524288,), 1, 262144)),
}


def operators(device: str) -> Iterator[Workload]:
    """Yield the problems of a device, in the order in which they are measured."""
    flat: dict[str, Any] = {"device": device, "coordinates": 1, "batch_dims": 0}
    triangle: dict[str, Any] = {"device": device, "begin": 1, "end": EVERYTHING}
    # The cost of a call.
    yield TopK(name="top_k small 1 x 1000, k 5", device=device, shape=(1, 1000), k=5, quick=True)
    name = "nonzero small 1 x 1000"
    yield NonzeroCoordinates(name=name, device=device, shape=(1, 1000), density=0.1, quick=True)
    yield GatherND(name="gather_nd small, 32 tuples", shape=(1000, 8), tuples=32, quick=True, **flat)
    yield DiagonalMatrix(name="diagonal small 64 x 64", shape=(64, 64), quick=True, **triangle)
    if device == CPU:
        yield from _only_on_the_host()
    else:
        yield from _only_on_a_gpu()
    shape, k = (64 if device == CPU else 256, 50257), 50
    for data in HARD_ROWS:
        name = f"top_k {data} rows {shape[0]} x {shape[1]}, k {k}"
        yield TopK(name=name, device=device, shape=shape, k=k, data=data, quick=data == "ties")
    # Masks of voxels and boxes.
    volume: tuple[int, ...] = (64, 128, 64, 128)
    masks = (
        ((8192, 8192), "float32"),
        ((8192, 8192), "uint8"),
        (volume, "uint8" if device == CPU else "float32"),
    )
    for (mask, dtype), density in product(masks, (0.001, 0.01, 0.5, 1.0)):
        name = f"nonzero {' x '.join(map(str, mask))} {dtype}, {density:.1%}"
        of: dict[str, Any] = {"device": device, "dtype": dtype, "density": density}
        of["quick"] = mask != volume and dtype == "float32" and (density == 0.01 or device == CUDA)
        yield NonzeroCoordinates(name=name, shape=mask, **of)
    for bounds, coordinates, tuples in GATHERS[device]:
        length = bounds[-1] if len(bounds) > coordinates else 1
        batches = flat | {"coordinates": coordinates, "batch_dims": 1, "quick": True}
        name = f"gather_nd {64 * tuples:,} tuples of {length}"
        yield GatherND(name=name, shape=(64, *bounds), tuples=tuples, **batches)
    # Attention scores masked above the diagonal, and a sliding window.
    side, n_bands = (2048, 8) if device == CPU else (4096, 32)
    name = f"diagonal causal mask 32 x {side} x {side}"
    yield DiagonalMatrix(name=name, shape=(32, side, side), quick=True, **triangle)
    band = triangle | {"begin": -8, "end": 9, "value": 0.5}
    name = f"diagonal band of 17 in {n_bands} x {side} x {side}"
    yield DiagonalMatrix(name=name, shape=(n_bands, side, side), **band)
    # Sizes a factor of 16 apart.
    for size in (1 << exponent for exponent in range(8, 25, 4)):
        yield TopK(name=f"top_k sweep 1 x {size}, k 64", device=device, shape=(1, size), k=64)
        name = f"nonzero sweep {size}, 10%"
        yield NonzeroCoordinates(name=name, device=device, shape=(size,), density=0.1)
        tuples, side = size // 16, 1 << (size.bit_length() - 1) // 2
        name = f"gather_nd sweep {tuples} tuples of 16"
        yield GatherND(name=name, shape=(max(tuples, 16), 16), tuples=tuples, **flat)
        yield DiagonalMatrix(name=f"diagonal sweep {side} x {side}", shape=(side, side), **triangle)


def _only_on_the_host() -> Iterator[Workload]:
    for name, shape, k, other in CPU_TOP_K:
        yield TopK(name=f"top_k {name}", shape=shape, k=k, **{"quick": True, **other})
    # Called like np.argwhere: the output is allocated and trimmed.
    for density in (0.001, 0.5):
        name = f"nonzero new output 4096 x 4096, {density:.1%}"
        yield NonzeroCoordinates(name=name, shape=(4096, 4096), density=density, given=False, quick=True)
    # Indices as NumPy and torch make them, all checked before the first write.
    name, million = "gather_nd 1M checked int64 indices", 1_000_000
    checked: dict[str, Any] = {"coordinates": 1, "batch_dims": 0, "index_dtype": "int64", "mode": "raise"}
    yield GatherND(name=name, shape=(million,), tuples=million, quick=True, **checked)
    name = "diagonal causal mask 512 x 512"
    yield DiagonalMatrix(name=name, shape=(512, 512), begin=1, end=EVERYTHING, quick=True)


def _only_on_a_gpu() -> Iterator[Workload]:
    for rows, size, k, dtype, quick in CUDA_TOP_K:
        name = f"top_k {rows} x {size} {dtype}, k {k}"
        yield TopK(name=name, device=CUDA, shape=(rows, size), k=k, dtype=dtype, quick=quick)
    yield TopK(name="top_k axis 0 of 4096 x 65536, k 16", device=CUDA, shape=(4096, 65536), k=16, axis=0)
    for size in (1 << 20, 1 << 24):
        name = f"top_k 1 x {size}, k = size"
        yield TopK(name=name, device=CUDA, shape=(1, size), k=size, quick=size == 1 << 20)
