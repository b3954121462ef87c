"""Host time of calls whose sizes the process has not seen before, beside repeated calls and the peers.

Each call is timed alone, with a repeated one after each new one, so that both see the machine in the same
state. Figures are medians.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import dmlops

N_SIZES = 400
LENGTHS = range(1000, 9000)
RNG = np.random.default_rng(0)


class Workload(NamedTuple):
    """A call of one operator on arrays of any size.

    Attributes
    ----------
    inputs : callable
        Makes the arrays of the n-th size.
    call : callable
        The call.
    peer : callable
        The library's own function, of its module and the arrays.
    """

    inputs: Callable[[int], Sequence[Any]]
    call: Callable[..., Any]
    peer: Callable[..., Any]


def _rows(n: int) -> Sequence[Any]:
    return (RNG.standard_normal((3, 70 + n)).astype("float32"),)


def _matrix(n: int) -> Sequence[Any]:
    return (RNG.standard_normal((4, 10 + n)).astype("float32"),)


def _mask(n: int) -> Sequence[Any]:
    return (RNG.random(200 + n) < 0.2,)


def _tuples(n: int) -> Sequence[Any]:
    return RNG.standard_normal((5, 20)).astype("float32"), RNG.integers(0, 5, (7 + n, 1))


def _own_top_k(library: Any, x: Any) -> Any:
    return library.topk(x, 5) if hasattr(library, "topk") else library.argpartition(x, 5)


WORKLOADS = {
    "top_k": Workload(_rows, lambda x: dmlops.top_k(x, 5), _own_top_k),
    "nonzero_coordinates": Workload(_mask, dmlops.nonzero_coordinates, lambda library, x: x.nonzero()),
    "gather_nd": Workload(_tuples, dmlops.gather_nd, lambda library, x, indices: x[indices[:, 0]]),
    "tril": Workload(_matrix, dmlops.tril, lambda library, x: library.tril(x)),
}


class Figures(NamedTuple):
    """Microseconds of a call: of a new size, repeated, and of the peer on a new size."""

    new: float
    repeated: float
    peer: float


def measure(
    workload: Workload, library: Any, convert: Callable[[Any], Any], wait: Callable[[], None]
) -> Figures:
    """Measure one operator."""
    arrays = [[convert(array) for array in workload.inputs(n)] for n in range(N_SIZES)]
    known = arrays[N_SIZES // 2]
    for _ in range(20):
        workload.call(*known)
        workload.peer(library, *known)
    samples: list[tuple[float, float, float]] = []
    for given in arrays:
        new = _seconds(workload.call, given, wait)
        repeated = _seconds(workload.call, known, wait)
        peer = _seconds(workload.peer, [library, *given], wait)
        samples.append((new, repeated, peer))
    return Figures(*(1e6 * statistics.median(times) for times in zip(*samples, strict=True)))


def _seconds(call: Callable[..., Any], given: Sequence[Any], wait: Callable[[], None]) -> float:
    wait()
    begin = time.perf_counter()
    call(*given)
    return time.perf_counter() - begin


def rows(library: str, device: str) -> Iterator[tuple[str, Figures]]:
    """Yield each operator's figures on arrays of a library."""
    if library == "numpy":
        for name, workload in WORKLOADS.items():
            yield name, measure(workload, np, np.asarray, lambda: None)
        return
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for name, workload in WORKLOADS.items():
        yield name, measure(workload, torch, lambda array: torch.from_numpy(array).to(device), wait)


def nopython_milliseconds() -> tuple[float, float]:
    """Return the time of a loop over 8000 lengths in compiled code, and of as many calls of one length."""
    import numba  # noqa: PLC0415

    def loop(x, lengths):  # type: ignore[no-untyped-def]
        total = 0.0
        for n in lengths:
            total += dmlops.top_k(x[:n], 5).values[0]
        return total

    many: Any = numba.njit(loop)
    x, lengths = RNG.random(LENGTHS.stop), np.arange(LENGTHS.start, LENGTHS.stop)
    same = np.full_like(lengths, int(lengths.mean()))
    many(x, lengths[[0, -1]])  # compiles the loop, and loads the kernels
    times = []
    for given in (lengths, same):
        begin = time.perf_counter()
        many(x, given)
        times.append(1e3 * (time.perf_counter() - begin))
    return times[0], times[1]
