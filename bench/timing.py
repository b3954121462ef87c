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
COPY_BYTES = 1 << 28
# Reading this many times the size of the L2 cache leaves nothing else in it.
FLUSH_FACTOR = 3
FLUSH_BLOCKS, FLUSH_THREADS = 1024, 256
# About every fourth launch of a process takes 0.8 us longer. A random number of spins, up to this one, keeps
# that launch from always being the same contender's.
MOST_SPINS = 4

_KERNELS = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %p;
    .reg .u64 %start, %now, %limit;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %limit;
    @%p bra again;
    ret;
}
.visible .entry flush(.param .u64 begin, .param .u64 bytes)
{
    .reg .pred %p;
    .reg .u32 %block, %blocks, %thread, %threads, %first, %all, %sum, %a, %b, %c, %d;
    .reg .u64 %begin, %at, %end, %step, %offset;
    ld.param.u64 %begin, [begin];
    ld.param.u64 %end, [bytes];
    add.u64 %end, %end, %begin;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %first, %block, %threads, %thread;
    mul.lo.u32 %all, %blocks, %threads;
    mul.wide.u32 %offset, %first, 16;
    mul.wide.u32 %step, %all, 16;
    add.u64 %at, %begin, %offset;
    mov.u32 %sum, 0;
again:
    setp.ge.u64 %p, %at, %end;
    @%p bra done;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%at];
    xor.b32 %sum, %sum, %a;
    xor.b32 %sum, %sum, %b;
    xor.b32 %sum, %sum, %c;
    xor.b32 %sum, %sum, %d;
    add.u64 %at, %at, %step;
    bra again;
done:
    // A write that hardly ever happens, for which all loads are needed.
    setp.eq.u32 %p, %sum, 0x9E3779B9;
    @%p st.global.u32 [%begin], %sum;
    ret;
}
"""


class Sample(NamedTuple):
    """Seconds of one call: its work, the host's time until it returned, and the time until all was done.

    There is no time of the host if the call waited for a GPU, or the GPU for the host.
    """

    work: float
    host: float | None = None
    wall: float | None = None


@dataclass
class Lane:
    """One contender being timed."""

    call: Call
    """The function that is timed."""
    has_own_stream: bool = False
    """Whether events on the default stream do not see its GPU work."""
    samples: list[Sample] = field(default_factory=list)
    spent: float = 0.0
    error: str = ""
    estimate: float = 0.0

    @property
    def kept(self) -> list[Sample]:
        """The samples that count: those whose work did not have to wait for the host, if there are any."""
        return [sample for sample in self.samples if sample.host is not None] or self.samples

    def median(self, what: str = "work") -> float | None:
        """Return the median of one field of the samples that count, or None if none has it."""
        values = [value for sample in self.kept if (value := getattr(sample, what)) is not None]
        return statistics.median(values) if values else None

    def quartiles(self) -> tuple[float, float]:
        """Return the times of the work that a quarter of the samples are below and above."""
        times = [sample.work for sample in self.kept]
        low, _, high = statistics.quantiles(times, method="inclusive") if len(times) > 1 else times * 3
        return low, high

    def is_done(self, seconds: float) -> bool:
        """Whether it has failed, or has enough samples and has used its share of the time."""
        enough = MIN_SAMPLES if self.spent < SLOW_FACTOR * seconds else 1
        return bool(self.error) or (len(self.kept) >= enough and self.spent >= seconds)


class HostClock:
    """Times calls that return when their work is done."""

    def __init__(self, threads: int) -> None:
        self._pause = SETTLE_SECONDS if threads > 1 else 0.0

    def sample(self, lane: Lane) -> Sample:
        """Time one call, or the mean of a few very short ones."""
        call, repeats = lane.call, 1
        if lane.estimate:
            repeats = max(1, min(round(SAMPLE_SECONDS / lane.estimate), 10_000))
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return Sample((time.perf_counter() - start) / repeats)

    def settle(self) -> None:
        """Let the machine become idle between two contenders: threads of other libraries go to sleep."""
        time.sleep(self._pause)


def clock_code(arch: str) -> Any:
    """Return the compiled kernels of the clock for an architecture; needs no GPU.

    `spin` keeps a GPU busy for a number of nanoseconds, and `flush` reads a buffer.
    """
    core = importlib.import_module("cuda.core")
    return core.Program(_KERNELS, "ptx", core.ProgramOptions(arch=arch)).compile("cubin")


class CudaClock:
    """Times GPU work between two events, on inputs that are not in the L2 cache.

    Before the first event, a kernel reads a buffer that fills the cache several times, and others spin until
    all work is in the queue.
    """

    def __init__(self) -> None:
        core = importlib.import_module("cuda.core")
        self.device = core.Device(0)
        self.device.set_current()
        self._stream = self.device.default_stream
        options = core.EventOptions(timing_enabled=True)
        self._start, self._end = (self.device.create_event(options) for _ in range(2))
        major, minor = self.device.compute_capability
        code = clock_code(f"sm_{major}{minor}")
        self._spin, self._flush = code.get_kernel("spin"), code.get_kernel("flush")
        self._launch, self._one_thread = core.launch, core.LaunchConfig(grid=1, block=1)
        self._many_threads = core.LaunchConfig(grid=FLUSH_BLOCKS, block=FLUSH_THREADS)
        self._random = np.random.default_rng(1)
        self._buffer = self.device.allocate(FLUSH_FACTOR * self.cache_bytes, stream=self._stream)

    @property
    def cache_bytes(self) -> int:
        """The size of the L2 cache, into which inputs must not fit."""
        return int(self.device.properties.l2_cache_size)

    def sync(self) -> None:
        """Wait for the GPU."""
        self.device.sync()

    def sample(self, lane: Lane) -> Sample:
        """Time the work, the host and the wait of one call; for JAX's own stream only the wall-clock time."""
        wall = self._wall(lane.call, 1)
        if lane.has_own_stream:
            return Sample(self._wall(lane.call, BACK_TO_BACK), None, wall)
        spin = min(max(MIN_SPIN, 3 * lane.estimate), MAX_SPIN)
        return Sample(*self.cold(lane.call, spin), wall)

    def cold(self, call: Call, spin: float = MIN_SPIN) -> tuple[float, float | None]:
        """Return the seconds that the work of a call takes, and the host's until it returns.

        The latter are None if all of it was not in the queue before the GPU had spun for so many seconds: the
        work may have waited for the host.
        """
        buffer = self._buffer
        self._launch(self._stream, self._many_threads, self._flush, int(buffer.handle), buffer.size)
        begin = time.perf_counter()
        n_spins = int(self._random.integers(MOST_SPINS)) + 1
        for _ in range(n_spins):
            self._launch(self._stream, self._one_thread, self._spin, int(spin * 1e9) // n_spins)
        self._stream.record(self._start)
        start = time.perf_counter()
        result = call()
        host = time.perf_counter() - start
        self._stream.record(self._end)
        was_queued = time.perf_counter() - begin < spin
        self._end.sync()
        del result
        return (self._end - self._start) / 1e3, host if was_queued else None

    def settle(self) -> None:
        """Do nothing: a sample ends with an idle GPU."""

    def _wall(self, call: Call, repeats: int) -> float:
        self.sync()
        start = time.perf_counter()
        results = [call() for _ in range(repeats)]
        self.sync()
        seconds = (time.perf_counter() - start) / repeats
        del results
        return seconds


Clock = HostClock | CudaClock


def warm_up(lane: Lane, clock: Clock) -> None:
    """Call twice without keeping the times, for compilation, caches, and the first touch of the outputs."""
    sample = clock.sample(lane)
    if sample.work < SLOW_SECONDS:
        sample = clock.sample(lane)
    lane.estimate = sample.work if sample.wall is None else sample.host or sample.wall


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
                clock.settle()
                start = time.perf_counter()
                try:
                    lane.samples.append(clock.sample(lane))
                except Exception as error:  # the row of a peer reports whatever it raises
                    lane.error = first_line(error)
                lane.spent += time.perf_counter() - start
    finally:
        if was_enabled:
            gc.enable()


def host_bandwidth(threads: int) -> float:
    """Measure the bytes per second of a copy between two large arrays; both reads and writes count."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    targets, sources = (np.array_split(array, threads) for array in (target, source))
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(np.copyto, targets, sources))

        return _bandwidth(copy, HostClock(threads), COPY_BYTES)


def cuda_bandwidth(clock: CudaClock, array: Any, copy: Any) -> float:
    """Measure the bytes per second of a copy on the GPU; both reads and writes count."""
    return _bandwidth(lambda: copy.copy_(array), clock, array.nbytes)


def _bandwidth(copy: Call, clock: Clock, size: int) -> float:
    lane = Lane(copy)
    warm_up(lane, clock)
    take_turns([lane], clock, 0.5)
    return 2 * size / (lane.median() or 1.0)
