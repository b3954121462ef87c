"""The benchmark's samples, rounds and medians, on a clock that moves only when a call says so."""

from types import SimpleNamespace

import pytest

from bench import timing
from bench.timing import HostClock, Lane, Sample

pytestmark = pytest.mark.quick


class Clock:
    """A clock that stops between calls."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def call(self, name, *seconds):
        """Return a call that takes these seconds, the last of them from then on."""
        left = list(seconds)

        def take():
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return take


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    played = SimpleNamespace(perf_counter=lambda: clock.now, sleep=lambda seconds: None)
    monkeypatch.setattr(timing, "time", played)
    return clock


def test_the_median():
    def median(*values, what="work"):
        return Lane(None, samples=[Sample(value, value) for value in values]).median(what)

    assert median(1, 2, 9) == 2
    assert median(9, 1, 2) == 2
    assert median(1, 2, 9, 10) == 5.5
    assert median(3, what="host") == 3
    assert median() is None
    assert Lane(None, samples=[Sample(1)]).median("wall") is None


def test_samples_that_waited_for_the_host():
    """They do not count, unless all of a call's samples are such."""
    queued, late = Sample(2.0, 0.1), Sample(9.0, None)
    lane = Lane(None, samples=[late, late, queued, late, Sample(4.0, 0.1)])
    assert (lane.median(), lane.quartiles()) == (3, (2.5, 3.5))
    lane = Lane(None, samples=[late, late])
    assert (lane.median(), lane.quartiles()) == (9, (9, 9))


class Gpu:
    """Stands for `cuda.core`: launches and events take no time, and an event tells when it was recorded."""

    EventOptions = LaunchConfig = SimpleNamespace

    def __init__(self):
        self.launched = []
        stream = SimpleNamespace(record=lambda event: event.record())
        self.device = SimpleNamespace(
            set_current=lambda: None,
            sync=lambda: None,
            default_stream=stream,
            create_event=lambda options: Event(),
            compute_capability=(9, 0),
            properties=SimpleNamespace(l2_cache_size=1 << 20),
            allocate=lambda size, stream: SimpleNamespace(handle=0, size=size),
        )

    def Device(self, number):  # noqa: N802 - as in cuda.core
        return self.device

    def launch(self, stream, config, kernel, *arguments):
        self.launched.append((kernel, *arguments))


class Event:
    """The difference of two is the number of milliseconds by which one was recorded later than the other."""

    n_recorded = 0

    def record(self):
        Event.n_recorded += 1
        self.at = Event.n_recorded

    def sync(self):
        pass

    def __sub__(self, other):
        return self.at - other.at


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(timing.importlib, "import_module", lambda name: gpu)
    code = SimpleNamespace(get_kernel=lambda name: name)
    monkeypatch.setattr(timing, "clock_code", lambda arch: code)
    return gpu


def test_a_gpu_that_waits_for_the_host(clock, gpu):
    """A call that returns too late, because it waits or because the host is slow, has no time of the host."""
    watch = timing.CudaClock()
    assert watch.cold(clock.call("prompt", 40e-6), 50e-6) == (1e-3, pytest.approx(40e-6))
    assert watch.cold(clock.call("late", 60e-6), 50e-6) == (1e-3, None)
    prompt, late = (Lane(clock.call("call", seconds), estimate=seconds) for seconds in (1e-3, 1e-6))
    assert watch.sample(prompt).host == pytest.approx(1e-3)
    late.call = clock.call("late", timing.MIN_SPIN * 2)
    assert watch.sample(late).host is None


def test_launches_before_a_call(clock, gpu):
    """They read a buffer larger than the cache, and spin for the given time, in 1 to 4 parts."""
    watch = timing.CudaClock()
    numbers = set()
    for _ in range(50):
        gpu.launched.clear()
        watch.cold(clock.call("call", 1e-6), 100e-6)
        flush, *spins = gpu.launched
        assert flush == ("flush", 0, timing.FLUSH_FACTOR << 20)
        assert sum(nanoseconds for _, nanoseconds in spins) == pytest.approx(100_000, abs=4)
        numbers.add(len(spins))
    assert numbers == {1, 2, 3, 4}


def test_a_sample_of_short_calls_is_their_mean(clock):
    lane = Lane(clock.call("short", timing.SAMPLE_SECONDS / 20), estimate=timing.SAMPLE_SECONDS / 20)
    assert HostClock(1).sample(lane).work == pytest.approx(timing.SAMPLE_SECONDS / 20)
    assert len(clock.calls) == 20
    lane = Lane(clock.call("long", 5.0), estimate=5.0)
    assert HostClock(1).sample(lane).work == 5
    assert clock.calls.count("long") == 1


def test_nobody_gets_more_samples_than_its_share(clock):
    fast, slow = Lane(clock.call("fast", 1e-3)), Lane(clock.call("slow", 1.0))
    timing.take_turns([fast, slow], HostClock(1), 1.0)
    assert len(fast.samples) == timing.MAX_SAMPLES
    # Its share is half a second; with the second sample it has used more than three times that.
    assert len(slow.samples) == 2
    assert slow.spent == 2
