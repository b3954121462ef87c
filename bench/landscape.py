"""The landscape of top-k on a GPU: problems of its applications, each in order of value and of index."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from bench.workloads import CUDA, TopK

BY_INDEX = ", by index"
FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"


class Case(NamedTuple):
    """One problem of an application."""

    application: str
    rows: int
    size: int
    dtype: str
    k: int

    def __str__(self) -> str:
        return f"{self.application} {self.rows} x {self.size} {self.dtype}, k {self.k}"

    def workload(self, is_sorted: bool) -> TopK:
        """Return the workload of the case, by value or by index."""
        return TopK(
            name=f"{self}{'' if is_sorted else BY_INDEX}",
            reason=APPLICATIONS[self.application].reason,
            device=CUDA,
            shape=(self.rows, self.size),
            dtype=self.dtype,
            k=self.k,
            is_sorted=is_sorted,
        )


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

    @property
    def columns(self) -> list[tuple[int, int]]:
        """The sizes, each with its k."""
        return [*(zip if self.is_paired else product)(self.sizes, self.ks)]


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


def cases(applications: Iterable[str] = APPLICATIONS) -> Iterator[Case]:
    """Yield the problems of some applications, or of all."""
    for name in applications:
        each = APPLICATIONS[name]
        for dtype, rows, (size, k) in product(each.dtypes, each.rows, each.columns):
            yield Case(name, rows, size, dtype, k)
