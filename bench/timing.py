"""Clocks for the host and for a GPU, and the rounds in which contenders are sampled."""

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bench.libraries import first_line

Call = Callable[[], Any]

MIN_SAMPLES, MAX_SAMPLES = 3, 25
SLOW_FACTOR = 3  # a contender that has used this many times its share gets no further samples
SLOW_SECONDS = 2.0  # for a call that takes this long, one call is enough to warm up
SAMPLE_SECONDS = 0.002  # shorter calls are repeated until a sample takes this long
# The threads of OpenMP and ONNX Runtime spin for some milliseconds after a call, on cores that others need.
SETTLE_SECONDS = 0.004
BACK_TO_BACK = 4
MIN_SPIN, MAX_SPIN = 100e-6, 20e-3
CYCLES_PER_SECOND = 2e9  # about those of most GPUs
COPY_BYTES = 1 << 28
# Reading this many times the size of the L2 cache leaves nothing else in it.
FLUSH_FACTOR = 3
# About every fourth launch of a process takes 0.8 us longer. A random number of spins, up to this one, keeps
# that launch from always being the same contender's.
MOST_SPINS = 4


class Sample(NamedTuple):
    """Seconds of one call: its work, and the host's time until it returned.

    The work of a sample that is not clean may have waited for the host, whose time is then that of another
    call, behind no spins.
    """

    work: float
    host: float
    is_clean: bool = True


@dataclass
class Lane:
    call: Call
    has_own_stream: bool = False
    """Whether events on the default stream do not see its GPU work."""
    samples: list[Sample] = field(default_factory=list)
    spent: float = 0.0
    error: str = ""
    estimate: float = 0.0

    @property
    def kept(self) -> list[float]:
        """The times of the work that count: those of clean samples, if there are any."""
        clean = [each for each in self.samples if each.is_clean]
        return [each.work for each in clean or self.samples]

    def quartiles(self) -> list[float]:
        """Return the times that a quarter, half and three quarters of those that count are below."""
        return statistics.quantiles(self.kept, method="inclusive") if len(self.kept) > 1 else self.kept * 3

    def is_done(self, seconds: float) -> bool:
        """Whether it has failed, or has enough samples and has used its share of the time."""
        enough = MIN_SAMPLES if self.spent < SLOW_FACTOR * seconds else 1
        return bool(self.error) or (len(self.kept) >= enough and self.spent >= seconds)


class HostClock:
    """Times calls that return when their work is done."""

    def __init__(self, threads: int) -> None:
        # Threads of other libraries go to sleep between two contenders.
        self.pause = SETTLE_SECONDS if threads > 1 else 0.0

    def sample(self, lane: Lane) -> Sample:
        """Time one call, or the mean of a few very short ones."""
        call, repeats = lane.call, 1
        if lane.estimate:
            repeats = max(1, min(round(SAMPLE_SECONDS / lane.estimate), 10_000))
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        seconds = (time.perf_counter() - start) / repeats
        return Sample(seconds, seconds)


class CudaClock:
    """Times GPU work between two events of torch, on inputs that are not in the L2 cache.

    Before the first event, a kernel reads a buffer that fills the cache several times, and others spin until
    all work is in the queue.
    """

    pause = 0.0  # a sample ends with an idle GPU

    def __init__(self) -> None:
        torch = importlib.import_module("torch")
        self.cuda = torch.cuda
        self.cache_bytes = int(self.cuda.get_device_properties(0).L2_cache_size)
        self._before, self._start, self._end = (self.cuda.Event(enable_timing=True) for _ in range(3))
        self._random = np.random.default_rng(1)
        self._buffer = torch.ones(FLUSH_FACTOR * self.cache_bytes // 4, device="cuda")

    def sample(self, lane: Lane) -> Sample:
        """Time the work and the host of one call; of JAX's own stream only the wall-clock time."""
        if lane.has_own_stream:
            seconds = self._wall(lane.call, BACK_TO_BACK)
            return Sample(seconds, seconds)
        lane.call()  # leaves its code in the caches of the multiprocessors, which other contenders use too
        return self.cold(lane.call, min(max(MIN_SPIN, 3 * lane.estimate), MAX_SPIN))

    def cold(self, call: Call, spin: float = MIN_SPIN) -> Sample:
        """Time a call whose work is in the queue before the GPU has spun for about so many seconds.

        If that took the host longer, the sample is not clean.
        """
        self._buffer.sum()
        begin = time.perf_counter()
        self._before.record()
        n_spins = int(self._random.integers(MOST_SPINS)) + 1
        for _ in range(n_spins):
            self.cuda._sleep(int(spin * CYCLES_PER_SECOND) // n_spins)
        self._start.record()
        start = time.perf_counter()
        result = call()
        host = time.perf_counter() - start
        self._end.record()
        queued = time.perf_counter() - begin
        self._end.synchronize()
        del result
        is_clean = queued < self._before.elapsed_time(self._start) / 1e3
        work = self._start.elapsed_time(self._end) / 1e3
        return Sample(work, host if is_clean else self._wall(call, 1), is_clean)

    def release_memory(self) -> None:
        """Wait for the GPU, and free what torch holds in its pool, so that the next library can use it."""
        self.cuda.synchronize()
        self.cuda.empty_cache()

    def _wall(self, call: Call, repeats: int) -> float:
        self.cuda.synchronize()
        start = time.perf_counter()
        results = [call() for _ in range(repeats)]
        self.cuda.synchronize()
        seconds = (time.perf_counter() - start) / repeats
        del results
        return seconds


Clock = HostClock | CudaClock


def warm_up(lane: Lane, clock: Clock) -> None:
    """Call twice without keeping the times, for compilation, caches, and the first touch of the outputs."""
    sample = clock.sample(lane)
    if sample.work < SLOW_SECONDS:
        sample = clock.sample(lane)
    lane.estimate = sample.host


def take_turns(lanes: Sequence[Lane], clock: Clock, seconds: float) -> None:
    """Sample the lanes in rounds until each has enough samples or has used its share of `seconds`."""
    share = seconds / max(len(lanes), 1)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(MAX_SAMPLES):
            for lane in lanes:
                if lane.is_done(share):
                    continue
                time.sleep(clock.pause)
                start = time.perf_counter()
                try:
                    lane.samples.append(clock.sample(lane))
                except Exception as error:  # the row of a peer reports whatever it raises
                    lane.error = first_line(error)
                lane.spent += time.perf_counter() - start
    finally:
        if was_enabled:
            gc.enable()


def bandwidth(copy: Call, size: int, clock: Clock) -> float:
    """Measure the bytes per second of a copy of so many bytes; both reads and writes count."""
    lane = Lane(copy)
    warm_up(lane, clock)
    take_turns([lane], clock, 0.5)
    return 2 * size / lane.quartiles()[1]


def host_bandwidth(threads: int) -> float:
    """Measure the bytes per second of a copy between two large arrays of NumPy."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    targets, sources = (np.array_split(array, threads) for array in (target, source))
    with ThreadPoolExecutor(threads) as pool:
        return bandwidth(lambda: list(pool.map(np.copyto, targets, sources)), COPY_BYTES, HostClock(threads))
