"""Four host threads on two streams at once: shared state of calls is not written to."""

import threading

import pytest

from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.gpu.bound import Bound

THREADS = 4
TURNS = 6


def at_once(torch, work):
    """Run `work(thread)` in every thread at the same time, two threads a stream."""
    streams = [torch.cuda.Stream() for _ in range(THREADS // 2)]
    torch.cuda.synchronize()
    start, failures = threading.Barrier(THREADS), []

    def run(thread):
        start.wait()
        try:
            with torch.cuda.stream(streams[thread % len(streams)]):
                work(thread)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_execute(name, torch):
    descriptor = DESCRIPTORS[name]
    data = [make_inputs(descriptor, seed) for seed in range(1, THREADS + 2)]
    answers = [cpu_answer(descriptor, inputs) for inputs in data]
    bounds = [Bound(torch, descriptor) for _ in range(THREADS)]
    for bound in bounds:
        bound.operator = bounds[0].operator

    def work(thread):
        bound = bounds[thread]
        for turn in range(TURNS):
            which = (thread + turn) % len(data)
            bound.feed(data[which])
            bound.workspace.fill_(turn)
            for _ in range(3):
                bound.execute()
            torch.cuda.current_stream().synchronize()
            bound.check(answers[which])

    at_once(torch, work)
