"""Four host threads on two streams at once: shared state of calls is not written to."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.gpu.bound import Bound

THREADS = 4
TURNS = 6


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_execute(name, torch):
    descriptor = DESCRIPTORS[name]
    data = [make_inputs(descriptor, seed) for seed in range(1, THREADS + 2)]
    answers = [cpu_answer(descriptor, inputs) for inputs in data]
    bounds = [Bound(torch, descriptor) for _ in range(THREADS)]
    for bound in bounds:
        bound.operator = bounds[0].operator

    streams = [torch.cuda.Stream() for _ in range(THREADS // 2)]
    torch.cuda.synchronize()
    start = threading.Barrier(THREADS)

    def work(thread):
        bound, stream = bounds[thread], streams[thread % len(streams)]
        start.wait()
        with torch.cuda.stream(stream):
            for turn in range(TURNS):
                which = (thread + turn) % len(data)
                bound.feed(data[which])
                bound.workspace.fill_(turn)
                for _ in range(3):
                    bound.execute()
                stream.synchronize()
                bound.check(answers[which])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
