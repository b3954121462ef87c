"""The suite `operators`: the problems of all operators, each with the reason why it is there."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.workloads import CPU, DiagonalMatrix, GatherND, NonzeroCoordinates, TopK, Workload

DENSITIES = (0.001, 0.01, 0.5, 1.0)
EVERYTHING = 2**31  # the end of a band that reaches the right edge of any matrix
ATTENTION = "sparse attention keeps the keys with the largest scores"
ROUTING = "mixture-of-experts routers select a few experts per token"
LOGITS = "sampling from a language model's logits"
SAME_TYPE = "the same in the type of most models"
HARD_ROWS = {
    "ties": "sixteen distinct values: quantised scores",
    "ascending": "sorted rows: every element is a new maximum",
    "descending": "sorted rows: the selected elements come first",
    "constant": "all elements of a row are equal",
    "relu": "half of each row is zero, as after ReLU",
    "nan": "half of each row is NaN",
}
# Name, reason, and the problem.
CPU_TOP_K: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gating 4096 x 256, k 8", ROUTING, {"shape": (4096, 256), "k": 8}),
    (
        "retrieval 1 x 1M, k 100",
        "nearest neighbours by score, one query",
        {"shape": (1, 1_000_000), "k": 100},
    ),
    ("logits 256 x 50257 float32, k 50", LOGITS, {"shape": (256, 50257), "k": 50}),
    ("sparse attention 16 x 131072, k 2048", ATTENTION, {"shape": (16, 131072), "k": 2048}),
    (
        "1 x 10M int32, k 10",
        "heavy hitters among integer counts",
        {"shape": (1, 10_000_000), "k": 10, "dtype": "int32"},
    ),
    (
        "axis 0 of 4096 x 1024, k 16",
        "best candidates of every column, against the memory order",
        {"shape": (4096, 1024), "k": 16, "axis": 0},
    ),
    ("1 x 1M, k = size", "a stable sort", {"shape": (1, 1_000_000), "k": 1_000_000}),
)
# Rows, their length, k, type, reason, and whether it is quick.
CUDA_TOP_K = (
    (1, 1 << 20, 100, "float32", "retrieval: nearest neighbours by score, one query", True),
    (256, 50257, 50, "float32", LOGITS, True),
    (256, 50257, 50, "float16", "the same in half precision", False),
    (256, 50257, 50, "bfloat16", SAME_TYPE, False),
    (8192, 256, 8, "float32", ROUTING, True),
    (64, 131072, 2048, "float32", ATTENTION, True),
    (128, 16384, 1000, "float32", "detection keeps 1000 boxes", True),
    (128, 16384, 1000, "bfloat16", SAME_TYPE, False),
    (1, 1 << 24, 1000, "float32", "retrieval from a larger index", False),
    (1, 100_000_000, 100, "float32", "retrieval from a whole corpus", True),
    (2048, 50257, 50, "float32", "logits of a large batch", True),
    (131072, 256, 8, "float32", "routing of a large batch", True),
    (1024, 131072, 2048, "float32", "sparse attention, all heads of a batch", False),
    (1024, 131072, 2048, "bfloat16", SAME_TYPE, False),
    (1, 1 << 28, 100, "uint8", "one very long row of quantised scores", False),
    (1, 1 << 26, 100, "int64", "one very long row of 64-bit keys", False),
)


def operators(device: str) -> Iterator[Workload]:
    """Yield the problems of a device, in the order in which they are measured."""
    table = _Table(device)
    yield from table.small()
    yield from table.cpu() if device == CPU else table.cuda()
    yield from table.sizes()


def _named(kind: type[Any], operator: str, device: str, name: str, reason: str, **other: Any) -> Any:
    return kind(name=f"{operator} {name}", reason=reason, device=device, **other)


class _Table:
    """Makes the workloads of one device."""

    def __init__(self, device: str) -> None:
        self.top_k = partial(_named, TopK, "top_k", device)
        self.nonzero = partial(_named, NonzeroCoordinates, "nonzero", device)
        self.gather = partial(_named, GatherND, "gather_nd", device)
        self.diagonal = partial(_named, DiagonalMatrix, "diagonal", device)

    def cpu(self) -> Iterator[Workload]:
        for name, reason, problem in CPU_TOP_K:
            yield self.top_k(name, reason, quick=True, **problem)
        for dtype in ("float16", "bfloat16"):
            name = f"logits 256 x 50257 {dtype}, k 50"
            yield self.top_k(name, LOGITS, shape=(256, 50257), dtype=dtype, k=50)
        yield from self.hard_rows((64, 50257), 50)
        yield from self.masks((8192, 8192), "float32", quick=(0.01,))
        yield from self.masks((8192, 8192), "uint8")
        yield from self.masks((64, 128, 64, 128), "uint8")
        reason = "called like np.argwhere: the output is allocated and trimmed"
        for density in (0.001, 0.5):
            name = f"new output 4096 x 4096, {density:.1%}"
            yield self.nonzero(name, reason, shape=(4096, 4096), density=density, given=False, quick=True)
        for bounds, length, tuples in (((1024, 128), 1, 4096), ((256, 128), 4, 4096), ((64, 32), 128, 1024)):
            yield self.gather(
                f"{64 * tuples:,} tuples of {length}",
                "voxels, pixels or embeddings by coordinate, in batches",
                shape=(64, *bounds, length) if length > 1 else (64, *bounds),
                tuples=tuples,
                coordinates=2,
                batch_dims=1,
                quick=True,
            )
        yield self.gather(
            "1M checked int64 indices",
            "indices as NumPy and torch make them, all checked before the first write",
            shape=(1_000_000,),
            tuples=1_000_000,
            coordinates=1,
            batch_dims=0,
            index_dtype="int64",
            mode="raise",
            quick=True,
        )
        yield self.causal_mask("causal mask 512 x 512", "one mask that fits into the cache", (512, 512))
        yield from self.large_masks(32, 8, 2048)

    def cuda(self) -> Iterator[Workload]:
        for rows, size, k, dtype, reason, quick in CUDA_TOP_K:
            name = f"{rows} x {size} {dtype}, k {k}"
            yield self.top_k(name, reason, shape=(rows, size), dtype=dtype, k=k, quick=quick)
        reason = "best candidates of every column, against the memory order"
        yield self.top_k("axis 0 of 4096 x 65536, k 16", reason, shape=(4096, 65536), k=16, axis=0)
        for size in (1 << 20, 1 << 24):
            name = f"1 x {size}, k = size"
            yield self.top_k(name, "a stable sort", shape=(1, size), k=size, quick=size == 1 << 20)
        yield from self.hard_rows((256, 50257), 50)
        yield from self.masks((8192, 8192), "float32", quick=DENSITIES)
        yield from self.masks((64, 128, 64, 128), "float32")
        yield from self.masks((8192, 8192), "uint8")
        for rows, tuples, length in ((4096, 16384, 128), (131072, 131072, 4), (524288, 262144, 1)):
            yield self.gather(
                f"{64 * tuples:,} tuples of {length}",
                "embeddings, boxes or voxels by index, in batches",
                shape=(64, rows, length) if length > 1 else (64, rows),
                tuples=tuples,
                coordinates=1,
                batch_dims=1,
                quick=True,
            )
        yield from self.large_masks(32, 32, 4096)

    def small(self) -> Iterator[Workload]:
        reason = "the cost of a call"
        yield self.top_k("small 1 x 1000, k 5", reason, shape=(1, 1000), k=5, quick=True)
        yield self.nonzero("small 1 x 1000", reason, shape=(1, 1000), density=0.1, quick=True)
        problem = {"shape": (1000, 8), "tuples": 32, "coordinates": 1, "batch_dims": 0}
        yield self.gather("small, 32 tuples", reason, **problem, quick=True)
        yield self.causal_mask("small 64 x 64", reason, (64, 64))

    def hard_rows(self, shape: tuple[int, int], k: int) -> Iterator[Workload]:
        for data, reason in HARD_ROWS.items():
            name = f"{data} rows {shape[0]} x {shape[1]}, k {k}"
            yield self.top_k(name, reason, shape=shape, data=data, k=k, quick=data == "ties")

    def masks(self, shape: tuple[int, ...], dtype: str, quick: tuple[float, ...] = ()) -> Iterator[Workload]:
        for density in DENSITIES:
            is_sparse = density < 0.5
            reason = "voxels or boxes of a mask" if is_sparse else "dense masks: writing the rows is the work"
            name = f"{' x '.join(map(str, shape))} {dtype}, {density:.1%}"
            problem = {"shape": shape, "dtype": dtype, "density": density}
            yield self.nonzero(name, reason, **problem, quick=density in quick)

    def causal_mask(self, name: str, reason: str, shape: tuple[int, ...]) -> Any:
        return self.diagonal(name, reason, shape=shape, begin=1, end=EVERYTHING, quick=True)

    def large_masks(self, n_causal: int, n_band: int, side: int) -> Iterator[Workload]:
        reason = "attention scores masked above the diagonal"
        yield self.causal_mask(f"causal mask {n_causal} x {side} x {side}", reason, (n_causal, side, side))
        name, reason = f"band of 17 in {n_band} x {side} x {side}", "sliding-window masks and band matrices"
        yield self.diagonal(name, reason, shape=(n_band, side, side), begin=-8, end=9, value=0.5)

    def sizes(self) -> Iterator[Workload]:
        """Yield each operator at sizes a factor of 16 apart."""
        reason = "time against size"
        for size in (1 << exponent for exponent in range(8, 25, 4)):
            yield self.top_k(f"sweep 1 x {size}, k 64", reason, shape=(1, size), k=64)
            yield self.nonzero(f"sweep {size}, 10%", reason, shape=(size,), density=0.1)
            tuples = size // 16
            problem = {"shape": (max(tuples, 16), 16), "tuples": tuples, "coordinates": 1, "batch_dims": 0}
            yield self.gather(f"sweep {tuples} tuples of 16", reason, **problem)
            side = 1 << (size.bit_length() - 1) // 2
            problem = {"shape": (side, side), "begin": 1, "end": EVERYTHING}
            yield self.diagonal(f"sweep {side} x {side}", reason, **problem)
