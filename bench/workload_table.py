"""The table of workloads that `python -m bench run` measures, each with the reason why it is there."""

from collections.abc import Iterator

from bench.workloads import CPU, CUDA, DiagonalMatrix, GatherND, NonzeroCoordinates, TopK, Workload

DENSITIES = (0.001, 0.01, 0.5, 1.0)


def workloads(device: str) -> list[Workload]:
    """Return the table for one device, in the order in which it is measured."""
    table = list(_cpu() if device == CPU else _cuda())
    names = [workload.name for workload in table]
    if len(set(names)) != len(names):
        message = f"two workloads for {device} have the same name"
        raise ValueError(message)
    return table


def _cpu() -> Iterator[Workload]:
    yield from _small(CPU)
    yield TopK(
        name="top_k gating 4096 x 256, k 8",
        reason="mixture-of-experts routers select a few experts per token",
        shape=(4096, 256),
        k=8,
        quick=True,
    )
    yield TopK(
        name="top_k retrieval 1 x 1M, k 100",
        reason="nearest neighbours by score, one query",
        shape=(1, 1_000_000),
        k=100,
        quick=True,
    )
    for dtype in ("float32", "float16", "bfloat16"):
        yield TopK(
            name=f"top_k logits 256 x 50257 {dtype}, k 50",
            reason="sampling from a language model's logits",
            shape=(256, 50257),
            dtype=dtype,
            k=50,
            quick=dtype == "float32",
        )
    yield TopK(
        name="top_k sparse attention 16 x 131072, k 2048",
        reason="sparse attention keeps the keys with the largest scores",
        shape=(16, 131072),
        k=2048,
        quick=True,
    )
    yield TopK(
        name="top_k 1 x 10M int32, k 10",
        reason="heavy hitters among integer counts",
        shape=(1, 10_000_000),
        dtype="int32",
        k=10,
        quick=True,
    )
    yield TopK(
        name="top_k axis 0 of 4096 x 1024, k 16",
        reason="best candidates of every column, against the memory order",
        shape=(4096, 1024),
        k=16,
        axis=0,
        quick=True,
    )
    yield TopK(
        name="top_k 1 x 1M, k = size",
        reason="a stable sort",
        shape=(1, 1_000_000),
        k=1_000_000,
        quick=True,
    )
    yield from _hard_rows(CPU, (64, 50257), 50)
    for dtype, shape in (("float32", (8192, 8192)), ("uint8", (8192, 8192)), ("uint8", (64, 128, 64, 128))):
        yield from _nonzero(CPU, shape, dtype, quick=(0.01,) if dtype == "float32" else ())
    for density in (0.001, 0.5):
        yield NonzeroCoordinates(
            name=f"nonzero new output 4096 x 4096, {density:.1%}",
            reason="called like np.argwhere: the output is allocated and trimmed",
            shape=(4096, 4096),
            density=density,
            given=False,
            quick=True,
        )
    for bounds, length, tuples in (((1024, 128), 1, 4096), ((256, 128), 4, 4096), ((64, 32), 128, 1024)):
        yield GatherND(
            name=f"gather_nd {64 * tuples:,} tuples of {length}",
            reason="voxels, pixels or embeddings by coordinate, in batches",
            shape=(64, *bounds, length) if length > 1 else (64, *bounds),
            tuples=tuples,
            coordinates=2,
            batch_dims=1,
            quick=True,
        )
    yield GatherND(
        name="gather_nd 1M checked int64 indices",
        reason="indices as NumPy and torch make them, all checked before the first write",
        shape=(1_000_000,),
        tuples=1_000_000,
        coordinates=1,
        batch_dims=0,
        index_dtype="int64",
        mode="raise",
        quick=True,
    )
    yield DiagonalMatrix(
        name="diagonal causal mask 512 x 512",
        reason="one mask that fits into the cache",
        shape=(512, 512),
        begin=1,
        end=2**31,
        quick=True,
    )
    yield DiagonalMatrix(
        name="diagonal causal mask 32 x 2048 x 2048",
        reason="attention scores masked above the diagonal",
        shape=(32, 2048, 2048),
        begin=1,
        end=2**31,
        quick=True,
    )
    yield DiagonalMatrix(
        name="diagonal band of 17 in 8 x 2048 x 2048",
        reason="sliding-window masks and band matrices",
        shape=(8, 2048, 2048),
        begin=-8,
        end=9,
        value=0.5,
    )
    yield from _sweeps(CPU)


def _cuda() -> Iterator[Workload]:
    yield from _small(CUDA)
    for rows, size, k, dtype, reason, quick in (
        (1, 1 << 20, 100, "float32", "retrieval: nearest neighbours by score, one query", True),
        (256, 50257, 50, "float32", "sampling from a language model's logits", True),
        (256, 50257, 50, "float16", "the same in half precision", False),
        (256, 50257, 50, "bfloat16", "the same in the type of most models", False),
        (8192, 256, 8, "float32", "mixture-of-experts routers select a few experts per token", True),
        (64, 131072, 2048, "float32", "sparse attention keeps the keys with the largest scores", True),
        (128, 16384, 1000, "float32", "detection keeps 1000 boxes", True),
        (128, 16384, 1000, "bfloat16", "the same in the type of most models", False),
        (1, 1 << 24, 1000, "float32", "retrieval from a larger index", False),
        (1, 100_000_000, 100, "float32", "retrieval from a whole corpus", True),
        (2048, 50257, 50, "float32", "logits of a large batch", True),
        (131072, 256, 8, "float32", "routing of a large batch", True),
        (1024, 131072, 2048, "float32", "sparse attention, all heads of a batch", False),
        (1024, 131072, 2048, "bfloat16", "the same in the type of most models", False),
        (1, 1 << 28, 100, "uint8", "one very long row of quantised scores", False),
        (1, 1 << 26, 100, "int64", "one very long row of 64-bit keys", False),
    ):
        yield TopK(
            name=f"top_k {rows} x {size} {dtype}, k {k}",
            reason=reason,
            device=CUDA,
            shape=(rows, size),
            dtype=dtype,
            k=k,
            quick=quick,
        )
    yield TopK(
        name="top_k axis 0 of 4096 x 65536, k 16",
        reason="best candidates of every column, against the memory order",
        device=CUDA,
        shape=(4096, 65536),
        k=16,
        axis=0,
    )
    for size in (1 << 20, 1 << 24):
        yield TopK(
            name=f"top_k 1 x {size}, k = size",
            reason="a stable sort",
            device=CUDA,
            shape=(1, size),
            k=size,
            quick=size == 1 << 20,
        )
    yield from _hard_rows(CUDA, (256, 50257), 50)
    yield from _nonzero(CUDA, (8192, 8192), "float32", quick=DENSITIES)
    yield from _nonzero(CUDA, (64, 128, 64, 128), "float32", quick=())
    yield from _nonzero(CUDA, (8192, 8192), "uint8", quick=())
    for rows, tuples, length in ((4096, 16384, 128), (131072, 131072, 4), (524288, 262144, 1)):
        yield GatherND(
            name=f"gather_nd {64 * tuples:,} tuples of {length}",
            reason="embeddings, boxes or voxels by index, in batches",
            device=CUDA,
            shape=(64, rows, length) if length > 1 else (64, rows),
            tuples=tuples,
            coordinates=1,
            batch_dims=1,
            quick=True,
        )
    yield DiagonalMatrix(
        name="diagonal causal mask 32 x 4096 x 4096",
        reason="attention scores masked above the diagonal",
        device=CUDA,
        shape=(32, 4096, 4096),
        begin=1,
        end=2**31,
        quick=True,
    )
    yield DiagonalMatrix(
        name="diagonal band of 17 in 32 x 4096 x 4096",
        reason="sliding-window masks and band matrices",
        device=CUDA,
        shape=(32, 4096, 4096),
        begin=-8,
        end=9,
        value=0.5,
    )
    yield from _sweeps(CUDA)


def _small(device: str) -> Iterator[Workload]:
    reason = "the cost of a call"
    yield TopK(
        name="top_k small 1 x 1000, k 5", reason=reason, device=device, shape=(1, 1000), k=5, quick=True
    )
    yield NonzeroCoordinates(
        name="nonzero small 1 x 1000",
        reason=reason,
        device=device,
        shape=(1, 1000),
        density=0.1,
        quick=True,
    )
    yield GatherND(
        name="gather_nd small, 32 tuples",
        reason=reason,
        device=device,
        shape=(1000, 8),
        tuples=32,
        coordinates=1,
        batch_dims=0,
        quick=True,
    )
    yield DiagonalMatrix(
        name="diagonal small 64 x 64",
        reason=reason,
        device=device,
        shape=(64, 64),
        begin=1,
        end=2**31,
        quick=True,
    )


def _hard_rows(device: str, shape: tuple[int, int], k: int) -> Iterator[Workload]:
    for data, reason in (
        ("ties", "sixteen distinct values: quantised scores"),
        ("ascending", "sorted rows: every element is a new maximum"),
        ("descending", "sorted rows: the selected elements come first"),
        ("constant", "all elements of a row are equal"),
        ("relu", "half of each row is zero, as after ReLU"),
        ("nan", "half of each row is NaN"),
    ):
        yield TopK(
            name=f"top_k {data} rows {shape[0]} x {shape[1]}, k {k}",
            reason=reason,
            device=device,
            shape=shape,
            data=data,
            k=k,
            quick=data == "ties",
        )


def _nonzero(
    device: str, shape: tuple[int, ...], dtype: str, quick: tuple[float, ...]
) -> Iterator[NonzeroCoordinates]:
    sizes = " x ".join(map(str, shape))
    for density in DENSITIES:
        yield NonzeroCoordinates(
            name=f"nonzero {sizes} {dtype}, {density:.1%}",
            reason="voxels or boxes of a mask"
            if density < 0.5
            else "dense masks: writing the rows is the work",
            device=device,
            shape=shape,
            dtype=dtype,
            density=density,
            quick=density in quick,
        )


def _sweeps(device: str) -> Iterator[Workload]:
    """Yield each operator at sizes a factor of 16 apart: the points of the plot of time against size."""
    reason = "time against size"
    for size in (1 << exponent for exponent in range(8, 25, 4)):
        yield TopK(
            name=f"top_k sweep 1 x {size}, k 64",
            reason=reason,
            device=device,
            shape=(1, size),
            k=64,
            series="top_k, k 64",
        )
        yield NonzeroCoordinates(
            name=f"nonzero sweep {size}, 10%",
            reason=reason,
            device=device,
            shape=(size,),
            density=0.1,
            series="nonzero, 10 %",
        )
        yield GatherND(
            name=f"gather_nd sweep {size // 16} tuples of 16",
            reason=reason,
            device=device,
            shape=(max(size // 16, 16), 16),
            tuples=size // 16,
            coordinates=1,
            batch_dims=0,
            series="gather_nd, rows of 16",
        )
        side = 1 << (size.bit_length() - 1) // 2
        yield DiagonalMatrix(
            name=f"diagonal sweep {side} x {side}",
            reason=reason,
            device=device,
            shape=(side, side),
            begin=1,
            end=2**31,
            series="diagonal, causal mask",
        )
