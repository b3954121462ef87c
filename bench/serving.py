"""The suite `serving`: top-k on a GPU for problems of applications, in order of value and of index."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from bench.workloads import CUDA, TopK, Workload

BY_INDEX = ", by index"  # how the names of problems end if results are in order of index
FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"


@dataclass(frozen=True)
class Application:
    """The problems of one application: all combinations of these.

    If it is paired, each size has a k of its own.
    """

    reason: str
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    ks: tuple[int, ...]
    is_paired: bool = False


APPLICATIONS = {
    "indexer": Application(
        reason="sparse attention keeps the keys with the largest scores",
        rows=(1, 16, 64, 512),
        sizes=(4096, 8192, 16384, 32768, 65536, 131072, 262144, 1 << 20),
        dtypes=(FLOAT32, BFLOAT16),
        ks=(2048,),
    ),
    "gating": Application(
        reason="mixture-of-experts routers select a few experts per token",
        rows=(1, 64, 4096, 65536),
        sizes=(64, 128, 256, 512),
        dtypes=(FLOAT32,),
        ks=(1, 2, 4, 8),
    ),
    "sampling": Application(
        reason="sampling from a language model's logits; the sizes are those of common vocabularies",
        rows=(1, 8, 64, 256),
        sizes=(32000, 128256, 151936, 262144),
        dtypes=(FLOAT32, BFLOAT16, FLOAT16),
        ks=(1, 20, 50),
    ),
    "vector search": Application(
        reason="nearest neighbours by score, one row per query",
        rows=(1, 10, 100, 1000),
        sizes=(100_000, 1_000_000, 10_000_000),
        dtypes=(FLOAT32,),
        ks=(10, 100, 1000),
    ),
    "indexer 2026": Application(
        reason="sparse attention of the models of 2026, each with its k",
        rows=(1, 16, 64, 512),
        sizes=(8192, 32768, 131072),
        dtypes=(FLOAT32, BFLOAT16),
        ks=(512, 1024, 2048, 4096),
    ),
    "medium rows": Application(
        reason="rows that one block can hold, of a size between that of routers and that of vocabularies",
        rows=(64, 512, 4096),
        sizes=(8192, 32768),
        dtypes=(FLOAT32, BFLOAT16),
        ks=(64, 256, 1000),
    ),
    "gating 2026": Application(
        reason="routers of the models of 2026",
        rows=(1, 64, 4096, 65536),
        sizes=(256, 384, 512, 512, 896),
        dtypes=(FLOAT32,),
        ks=(6, 8, 10, 22, 16),
        is_paired=True,
    ),
}


def serving(device: str) -> Iterator[Workload]:
    """Yield the problems of all applications; there are none on the CPU."""
    if device != CUDA:
        return
    for application, each in APPLICATIONS.items():
        columns = [*(zip if each.is_paired else product)(each.sizes, each.ks)]
        for dtype, rows, (size, k), is_sorted in product(each.dtypes, each.rows, columns, (True, False)):
            yield TopK(
                name=f"{application} {rows} x {size} {dtype}, k {k}{'' if is_sorted else BY_INDEX}",
                reason=each.reason,
                device=CUDA,
                shape=(rows, size),
                dtype=dtype,
                k=k,
                is_sorted=is_sorted,
                series=application,
            )
