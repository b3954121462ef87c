"""Times of top-k kernels that no package installs: compiled from their sources and measured once.

Measured on one H200 on 2026-11-22 with CUDA events: medians of 25, with inputs that are cold in L2, and with
the queue filled first. The sources were those of SGLang, vLLM, DeepSelect, CUB, RAFT 26.10 and FlashInfer
0.7.2.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from bench.landscape import BFLOAT16, FLOAT32, Case

RECORDED_ON = "NVIDIA H200"
RECORDED_DATE = "2026-11-22"


class Contract(StrEnum):
    """Promises of answers, from the most to the least."""

    STABLE = "sorted and stable"
    SORTED = "sorted"
    ANY = "any order"
    OPEN = "indices alone, or wrong"


class Time(NamedTuple):
    """The seconds that a library takes for one problem, and what it promises for them."""

    contender: str
    contract: Contract
    seconds: float
    is_recorded: bool = False


def recorded(case: Case) -> list[Time]:
    """Return the times that are known of one problem."""
    return _TIMES.get(case, [])


def _table() -> Iterator[tuple[Case, str, Contract, float]]:
    """Yield a problem, who solved it, the contract and the microseconds."""
    for rows, size, dtype, sorted_peer, sorted_time, peer, time in _INDEXER:
        case = Case("indexer", rows, size, dtype, 2048)
        yield case, sorted_peer, Contract.SORTED, sorted_time
        yield case, peer, Contract.ANY, time
    for rows, size, dtype, peer, contract, time in _SAMPLING:
        yield Case("sampling", rows, size, dtype, 50), peer, contract, time
    for size, time in _LARGEST:
        yield Case("sampling", 1, size, FLOAT32, 1), "RAFT", Contract.SORTED, time
    for rows, size, times in _GATING:
        for k, time in zip((1, 2, 4, 8), times, strict=False):
            yield Case("gating", rows, size, FLOAT32, k), "SGLang", Contract.SORTED, time
    for rows, k, peer, time in _VECTOR_SEARCH:
        yield Case("vector search", rows, 100_000, FLOAT32, k), peer, Contract.ANY, time


# The fastest that sorts, and the fastest of all. "best of several" is FlashInfer, DeepSelect or CUB.
_INDEXER = (
    (1, 4096, FLOAT32, "DeepSelect", 18.8, "SGLang", 6.2),
    (64, 4096, FLOAT32, "best of several", 19.8, "SGLang", 6.6),
    (512, 4096, FLOAT32, "best of several", 66.5, "SGLang", 12.2),
    (64, 16384, FLOAT32, "best of several", 29.2, "SGLang", 11.2),
    (512, 16384, FLOAT32, "best of several", 103.0, "SGLang", 27.0),
    (512, 4096, BFLOAT16, "FlashInfer", 75.8, "FlashInfer clusters", 16.3),
    (512, 16384, BFLOAT16, "FlashInfer", 110.7, "DeepSelect", 28.4),
    (1, 65536, FLOAT32, "best of several", 45.3, "SGLang", 11.0),
    (1, 131072, FLOAT32, "best of several", 59.1, "SGLang", 12.5),
    (64, 131072, FLOAT32, "best of several", 61.0, "vLLM", 34.6),
    (512, 131072, FLOAT32, "best of several", 234.8, "vLLM", 117.5),
    (64, 1 << 20, FLOAT32, "best of several", 179.5, "vLLM", 148.0),
    (512, 1 << 20, FLOAT32, "best of several", 742.0, "DeepSelect", 693.0),
)
_SAMPLING = (
    (1, 32000, FLOAT32, "FlashInfer", Contract.SORTED, 24.9),
    (1, 32000, FLOAT32, "SGLang", Contract.ANY, 10.4),
    (1, 128256, FLOAT32, "FlashInfer", Contract.SORTED, 26.5),
    (1, 128256, FLOAT32, "SGLang", Contract.ANY, 10.0),
    (8, 128256, FLOAT32, "FlashInfer", Contract.SORTED, 27.0),
    (8, 128256, FLOAT32, "SGLang", Contract.ANY, 10.5),
    (64, 128256, FLOAT32, "FlashInfer", Contract.SORTED, 28.3),
    (64, 128256, FLOAT32, "DeepSelect", Contract.ANY, 22.5),
    (256, 128256, FLOAT32, "FlashInfer", Contract.SORTED, 59.9),
    (256, 128256, FLOAT32, "DeepSelect", Contract.ANY, 48.4),
    (1, 151936, BFLOAT16, "DeepSelect", Contract.ANY, 9.8),
    (256, 151936, BFLOAT16, "DeepSelect", Contract.ANY, 32.4),
)
_LARGEST = ((32000, 8.4), (128256, 8.5), (262144, 9.2))
# With a softmax in the same kernel; k 1, 2, 4 and 8.
_GATING = (
    (65536, 64, (11.4, 15.4, 23.2, 39.9)),
    (65536, 128, (19.0, 27.7, 45.0, 82.0)),
    (65536, 256, (23.0, 32.8, 54.0, 99.0)),
    (65536, 512, (36.0, 45.2, 75.0, 138.0)),
    (4096, 512, (7.7,)),
)
_VECTOR_SEARCH = ((1, 10, "SGLang", 9.4), (1, 1000, "SGLang", 11.7), (100, 10, "DeepSelect", 21.0))

_TIMES: dict[Case, list[Time]] = {}
for _case, _peer, _contract, _microseconds in _table():
    _TIMES.setdefault(_case, []).append(Time(_peer, _contract, _microseconds * 1e-6, is_recorded=True))
