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
