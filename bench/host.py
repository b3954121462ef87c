"""Host time of small calls: on several kinds of arrays, and of sizes that the process has not seen before.

On a GPU, it is the time until the call returns.
"""

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import dmlops
from bench.timing import HostClock, Lane, warm_up

ROUNDS = 200  # of which the shortest mean counts
N_SIZES = 400
LENGTHS = range(1000, 9000)  # of the loop that is compiled
CLOCK = HostClock(threads=1)
RNG = np.random.default_rng(0)


class Workload(NamedTuple):
    """A call of one operator on arrays of any size."""

    inputs: Callable[[int], Sequence[Any]]
    """Makes the arrays of the n-th size."""
    call: Callable[..., Any]
    """The call; it takes `out`."""
    peer: Callable[..., Any]
    """The library's own function, of its module and the arrays."""


class Library(NamedTuple):
    """An array library on a device: its module, how it takes NumPy's arrays, and how to wait for it."""

    module: Any
    convert: Callable[[Any], Any]
    wait: Callable[[], None]


def library_of(name: str, device: str) -> Library:
    """Return NumPy or torch on a device."""
    if name == "numpy":
        return Library(np, np.asarray, lambda: None)
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Library(torch, lambda array: torch.from_numpy(array).to(device), wait)


def _own_top_k(library: Any, x: Any) -> Any:
    return library.topk(x, 5) if hasattr(library, "topk") else library.argpartition(x, 5)


WORKLOADS = {
    "top_k": Workload(
        lambda n: (RNG.standard_normal((3, 70 + n)).astype("float32"),),
        functools.partial(dmlops.top_k, k=5),
        _own_top_k,
    ),
    "nonzero_coordinates": Workload(
        lambda n: (RNG.random(200 + n) < 0.2,),
        dmlops.nonzero_coordinates,
        lambda library, x: x.nonzero(),
    ),
    "gather_nd": Workload(
        lambda n: (RNG.standard_normal((5, 20)).astype("float32"), RNG.integers(0, 5, (7 + n, 1))),
        dmlops.gather_nd,
        lambda library, x, indices: x[indices[:, 0]],
    ),
    "tril": Workload(
        lambda n: (RNG.standard_normal((4, 10 + n)).astype("float32"),),
        dmlops.tril,
        lambda library, x: library.tril(x),
    ),
}


def microseconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the shortest mean time of a call over many short rounds, which other work seldom disturbs."""
    lane = Lane(call)
    warm_up(lane, CLOCK)
    best = float("inf")
    for _ in range(ROUNDS):
        wait()
        best = min(best, CLOCK.sample(lane).work)
    return best * 1e6


def small_calls(name: str, device: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each function's microseconds by what it is called on."""
    library = library_of(name, device)
    for function, workload in WORKLOADS.items():
        inputs = workload.inputs(0)
        first, *rest = map(library.convert, inputs)
        calls = {
            "owner": functools.partial(workload.call, first, *rest),
            "view": functools.partial(workload.call, library.convert(np.stack([inputs[0]] * 2))[1], *rest),
            "strided": functools.partial(
                workload.call, library.convert(np.repeat(inputs[0], 2, -1))[..., ::2], *rest
            ),
        }
        # Given outputs need room for the coordinates of every element.
        size = {"size": inputs[0].size} if function == "nonzero_coordinates" else {}
        out = workload.call(first, *rest, **size)
        calls["out given"] = functools.partial(workload.call, first, *rest, out=out)
        yield function, {what: microseconds(call, library.wait) for what, call in calls.items()}


def new_sizes(name: str, device: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield each function's microseconds: of a new size, repeated, and of the library's own on a new size.

    A repeated call comes after each new one, so that both see the machine in the same state. Figures are
    medians.
    """
    library = library_of(name, device)
    for function, workload in WORKLOADS.items():
        arrays = [[library.convert(array) for array in workload.inputs(n)] for n in range(N_SIZES)]
        known = arrays[N_SIZES // 2]
        for _ in range(20):
            workload.call(*known)
            workload.peer(library.module, *known)
        samples = []
        for given in arrays:
            calls = (
                functools.partial(workload.call, *given),
                functools.partial(workload.call, *known),
                functools.partial(workload.peer, library.module, *given),
            )
            sample = []
            for call in calls:
                library.wait()
                sample.append(CLOCK.sample(Lane(call)).work)
            samples.append(sample)
        yield function, tuple(1e6 * statistics.median(times) for times in zip(*samples, strict=True))


def nopython_microseconds() -> tuple[float, float]:
    """Return the time of a call in compiled code, in a loop over thousands of lengths and over one length."""
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
    new, repeated = (
        1e6 * CLOCK.sample(Lane(functools.partial(many, x, given))).work / len(LENGTHS)
        for given in (lengths, same)
    )
    return new, repeated
