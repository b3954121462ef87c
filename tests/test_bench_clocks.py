"""The clocks of the benchmark: a stand-in for a GPU, and a host, whose times are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from bench import data, libraries, runner, timing
from bench.peers import OURS, Contender
from bench.runner import Bench
from bench.timing import HostClock, Lane, Sample
from bench.workloads import CUDA, TopK

US = 1e-6


class Gpu:
    """A host at some time, and a GPU that works off a queue; a launch takes the host a microsecond."""

    def __init__(self):
        self.now = self.free_at = 1.0
        self.spins = []

    def work(self, seconds, of_host=0.0):
        self.now += of_host
        self.free_at = max(self.now, self.free_at) + seconds

    # The clock uses these functions of torch.cuda.

    def synchronize(self):
        self.now = max(self.now, self.free_at)

    def empty_cache(self):
        pass

    def get_device_properties(self, device):
        assert device == 0
        return SimpleNamespace(L2_cache_size=1 << 20)

    def _sleep(self, cycles):
        self.spins[-1].append(cycles / 2e9)
        self.work(cycles / 2e9, US)

    def Event(self, enable_timing):  # noqa: N802
        assert enable_timing
        return Event(self)

    def flush(self, n_bytes):
        assert n_bytes == 3 << 20
        self.spins.append([])
        self.work(7 * US, US)


class Event:
    """The time at which a GPU has come to a place in its queue."""

    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = max(self.gpu.now, self.gpu.free_at)

    def synchronize(self):
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


@pytest.fixture
def gpu(monkeypatch):
    """Let a stand-in be torch's GPU."""
    gpu = Gpu()

    def ones(n, device):
        assert device == "cuda"
        return SimpleNamespace(sum=lambda: gpu.flush(4 * n))

    torch = SimpleNamespace(cuda=gpu, ones=ones)
    monkeypatch.setattr(timing, "importlib", SimpleNamespace(import_module={"torch": torch}.__getitem__))
    time = SimpleNamespace(perf_counter=lambda: gpu.now, sleep=lambda seconds: gpu.work(0, seconds))
    monkeypatch.setattr(timing, "time", time)
    return gpu


def test_work_on_a_gpu_is_timed_apart_from_the_host(gpu):
    clock = timing.CudaClock()
    for estimate, spin in ((0, 100), (1000 * US, 3000), (1, 20_000)):
        gpu.work(5)  # what was there before is waited for
        sample = clock.sample(Lane(lambda: gpu.work(30 * US, 20 * US), estimate=estimate))
        assert sample == pytest.approx(Sample(30 * US, 20 * US))
        assert sum(gpu.spins[-1]) == pytest.approx(spin * US, rel=1e-3)
    for _ in range(40):
        clock.cold(lambda: None)
    assert {len(spins) for spins in gpu.spins} == {1, 2, 3, 4}
    # The work waits for a host that takes longer than the GPU spins.
    found = clock.cold(lambda: gpu.work(30 * US, 150 * US), 100 * US)
    assert (found.work > 50 * US, found.is_clean) == (True, False)
    assert found.host == pytest.approx(180 * US)  # of a call behind nothing

    def wait():
        gpu.work(30 * US, 20 * US)
        gpu.synchronize()

    assert clock.cold(wait)[1:] == (pytest.approx(50 * US), False)  # without the spins that it waited for
    found = clock.cold(lambda: gpu.work(30 * US, 150 * US), 200 * US)
    assert found == pytest.approx(Sample(30 * US, 150 * US))


def test_a_stream_of_its_own_is_timed_by_calls_back_to_back(gpu):
    calls = []
    lane = Lane(lambda: calls.append(gpu.work(30 * US, 10 * US)), has_own_stream=True)
    assert timing.CudaClock().sample(lane) == pytest.approx(Sample(130 / 4 * US, 130 / 4 * US))
    assert len(calls) == 4


def test_short_calls_are_repeated_on_the_host(gpu):
    calls = []
    lane, clock = Lane(lambda: calls.append(gpu.work(0, 100 * US))), HostClock(threads=2)
    for estimate, count in ((0, 1), (100 * US, 20), (1, 1), (1e-9, 10_000)):
        calls.clear()
        lane.estimate = estimate
        assert clock.sample(lane).work == pytest.approx(100 * US)
        assert len(calls) == count
    assert (HostClock(1).pause, HostClock(2).pause) == (0, 0.004)


@pytest.mark.parametrize(
    ("sample", "n_calls", "estimate"),
    [(Sample(1.9, 1.9), 2, 1.9), (Sample(2.0, 2.0), 1, 2.0), (Sample(1, 3), 2, 3)],
)
def test_a_call_is_made_twice_beforehand_unless_it_is_slow(sample, n_calls, estimate):
    asked, lane = [], Lane(None)
    timing.warm_up(lane, SimpleNamespace(sample=lambda lane: asked.append(lane) or sample))
    assert (len(asked), lane.estimate) == (n_calls, estimate)


def test_contenders_take_turns_until_their_time_is_over(gpu):
    """Each has a third of the time, and at least three samples, unless it has taken far more than that."""
    order = []

    def lane(name, seconds):
        return Lane(lambda: order.append(name) or gpu.work(0, seconds))

    timing.time.sleep = order.append
    clock = HostClock(2)
    lanes = [lane("a", 0.01), lane("b", 2.5), lane("c", 6), lane("d", 0.51)]
    timing.take_turns(lanes[:3], clock, 6)
    assert [len(each.samples) for each in lanes] == [25, 3, 1, 0]
    assert order[1:12:2] == ["a", "b", "c", "a", "b", "a"]
    assert {*order[::2]} == {0.004}
    timing.take_turns(lanes[3:], HostClock(1), 3)
    assert len(lanes[3].samples) == 6


def test_samples_that_did_not_wait_for_the_host_count():
    late = Sample(99, 5, is_clean=False)
    lane = Lane(None, samples=[Sample(1, 5), late, Sample(2, 7), Sample(9, 6), Sample(4, 6)])
    assert lane.quartiles() == [1.75, 3, 5.25]
    assert Lane(None, samples=[late]).quartiles() == [99, 99, 99]


@pytest.fixture
def bench(gpu, monkeypatch):
    """Return the bench of that GPU, whose memory is torch's on the host."""
    pytest.importorskip("torch")
    for name in ("missing", "set_threads"):
        monkeypatch.setattr(libraries, name, lambda *_: None)
    monkeypatch.setattr(data, "source", lambda device: data.TorchSource("cpu"))
    monkeypatch.setattr(timing, "COPY_BYTES", 1 << 16)
    make = data.TorchSource.make
    array = SimpleNamespace(nbytes=10**5, clone=lambda: array, copy_=lambda it: gpu.work(it.nbytes / 1e9))
    monkeypatch.setattr(data.TorchSource, "make", lambda *arguments: array)
    bench = Bench(CUDA, 1)
    monkeypatch.setattr(data.TorchSource, "make", make)
    assert bench.bandwidth == pytest.approx(2e9)  # of reads and writes
    return bench


def problem(*shape):
    return TopK(name="", device=CUDA, shape=shape, k=1)


def test_a_gpu_has_copies_of_inputs_that_its_cache_cannot_hold(bench):
    """Calls go through them in rotation; small inputs have eight, and none has more than 64."""
    for n_bytes, count in ((4, 8), (1 << 18, 12), ((1 << 18) + 4, 12), (1 << 20, 3), (1 << 22, 1)):
        tasks = bench.tasks(problem(1, n_bytes // 4))
        assert len({task.inputs[0].data_ptr() for task in tasks}) == len(tasks) == count
        assert all(task.inputs[0].equal(tasks[0].inputs[0]) for task in tasks)
    bench.clock.cache_bytes = 1 << 28
    assert len(bench.tasks(problem(1, 1 << 17))) == 64
    who = Contender("peer", "top_k", (CUDA,), "", lambda task: lambda: id(task))
    call = bench.call(who, tasks := bench.tasks(problem(1, 9)))
    assert [call() for _ in range(10)] == [id(tasks[number % 8]) for number in range(10)]


@pytest.mark.parametrize(("us", "status"), [((255,), "failed"), ((270,), "ok"), ((240, 300, 300), "failed")])
def test_who_cannot_have_read_the_input_has_no_time(bench, gpu, monkeypatch, us, status):
    """Half of the time in which a copy moves as many bytes is 262 us; times vary."""
    task = problem(1, 1 << 18)
    assert task.bytes_moved / bench.bandwidth == pytest.approx(524e-6, rel=0.01)
    times = iter(np.tile(np.repeat(us, 24), 999))
    peer = Contender("peer", "torch", (CUDA,), "", lambda task: lambda: gpu.work(next(times) * US, US))
    monkeypatch.setattr(runner, "contenders", lambda operator, device: [peer])
    monkeypatch.setattr(libraries, "missing", lambda library, device: None)
    (found,) = bench.measure(task, 1)["outcomes"]
    assert (found.get("status", "ok"), found["seconds"] is None) == (status, status == "failed")
    assert found.get("message") == ("less than half of the time of a copy" if status == "failed" else None)


def test_a_gpu_that_is_lost_ends_the_run(bench, gpu, monkeypatch):
    def contender(name, seconds, prepare=None):
        call = lambda: gpu.work(seconds, 2 * US)  # noqa: E731
        return Contender(name, "top_k", (CUDA,), f"about {name}", prepare or (lambda task: call))

    def lose(task):
        bench.clock.cuda.synchronize = lambda: 1 / 0

    table = [contender("torch.topk", 30 * US), contender("jax.lax.top_k", 40 * US)]
    monkeypatch.setattr(runner, "contenders", lambda operator, device: table)
    first, *others = [problem(1, 8)] * 3
    rows = bench.run([first, *others], 5)
    torch, jax = next(rows)["outcomes"]
    assert torch["note"] == "about torch.topk"
    assert [torch[name] for name in ("low", "seconds", "high", "best")] == pytest.approx([30 * US] * 4)
    assert jax["note"] == "about jax.lax.top_k; wall-clock time of calls back to back"
    assert jax["seconds"] == pytest.approx(162 / 4 * US)
    table.append(contender(OURS, 0, lose))
    with pytest.raises(ZeroDivisionError):
        next(rows)
