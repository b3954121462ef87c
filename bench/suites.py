"""The suites that `python -m bench run --suite NAME` measures.

A new suite is a function that yields the workloads of a device, and one line in `SUITES`. A new operator has
a class in `workloads`, contenders in `peers`, and its answers checked in `answers`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from bench import sweeps
from bench.operators import operators
from bench.workloads import BY_INDEX, CPU, CUDA, Sample, TopK, Workload

VOCABULARY = 128256
FILTERS = ((0, 1.0), (50, 0.9), (0, 0.9))  # k, and top_p; 0 and 1.0 stand for all elements
SINGLE, FLOATS = ("float32",), ("float32", "bfloat16")
# The numbers of rows, their types, and their lengths, each with a k.
APPLICATIONS: dict[str, tuple[Sequence[int], Sequence[str], Iterable[tuple[int, int]]]] = {
    # Sparse attention keeps the keys with the largest scores.
    "indexer": ((1, 16, 64, 512), FLOATS, [(1 << bits, 2048) for bits in (*range(12, 19), 20)]),
    # Routers select a few experts per token.
    "gating": ((1, 64, 4096, 65536), SINGLE, [*product((64, 128, 256, 512), (1, 2, 4, 8))]),
    # A token is sampled from logits; the lengths are those of common vocabularies.
    "sampling": (
        (1, 8, 64, 256),
        (*FLOATS, "float16"),
        [*product((32000, VOCABULARY, 151936, 262144), (1, 20, 50))],
    ),
    # Nearest neighbours by score, one row per query.
    "vector search": (
        (1, 10, 100, 1000),
        SINGLE,
        [*product((100_000, 1_000_000, 10_000_000), (10, 100, 1000))],
    ),
    "indexer 2026": ((1, 16, 64, 512), FLOATS, [*product((8192, 32768, 131072), (512, 1024, 2048, 4096))]),
    # Rows that one block can hold, of a size between that of routers and that of vocabularies.
    "medium rows": ((64, 512, 4096), FLOATS, [*product((8192, 32768), (64, 256, 1000))]),
    "gating 2026": ((1, 64, 4096, 65536), SINGLE, [(256, 6), (384, 8), (512, 10), (512, 22), (896, 16)]),
}


def serving(device: str) -> Iterator[Workload]:
    """Yield the problems of all applications, in order of value and of index; there are none on the CPU."""
    if device != CUDA:
        return
    for application, (row_counts, dtypes, columns) in APPLICATIONS.items():
        for dtype, rows, (size, k), is_sorted in product(dtypes, row_counts, columns, (True, False)):
            yield TopK(
                name=f"{application} {rows} x {size} {dtype}, k {k}{'' if is_sorted else BY_INDEX}",
                device=device,
                shape=(rows, size),
                dtype=dtype,
                k=k,
                is_sorted=is_sorted,
                series=application,
            )


def sampling(device: str) -> Iterator[Workload]:
    """Yield problems of engines that draw a token per row of logits."""
    row_counts = (1, 16) if device == CPU else (1, 16, 64, 256)
    for rows, dtype, (k, top_p) in product(row_counts, FLOATS, FILTERS):
        yield Sample(
            name=f"sample {rows} x {VOCABULARY} {dtype}, k {k or 'all'}, top_p {top_p}",
            device=device,
            shape=(rows, VOCABULARY),
            dtype=dtype,
            k=k,
            top_p=top_p,
            quick=rows == 1,
        )


@dataclass(frozen=True)
class Suite:
    workloads: Callable[[str], Iterable[Workload]]
    """Returns the problems of a device, in the order in which they are measured."""
    seconds: dict[str, float]
    """How long it takes to measure all of them, by device."""
    has_peers: bool = True
    """Whether other libraries are timed as well; otherwise, the problems are points of sweeps."""


SUITES = {
    "operators": Suite(operators, {CPU: 420.0, CUDA: 200.0}),
    "serving": Suite(serving, {CPU: 1.0, CUDA: 900.0}),
    "sampling": Suite(sampling, {CPU: 60.0, CUDA: 60.0}),
    "rows": Suite(sweeps.rows, {CPU: 30.0, CUDA: 60.0}, has_peers=False),
    "data": Suite(sweeps.kinds_of_data, {CPU: 400.0, CUDA: 150.0}, has_peers=False),
}
