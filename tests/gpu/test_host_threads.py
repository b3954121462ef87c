"""Four host threads on two streams at once: shared state of calls is not written to."""

import threading

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import sample
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


# Shapes of no other test: the threads plan these calls at the same time.
FUNCTIONS = {
    "top_k": lambda library, x, i: library.top_k(x, 23),
    "top_k-smallest": lambda library, x, i: library.top_k(x, 211, axis=0, largest=False),
    "nonzero": lambda library, x, i: library.nonzero_coordinates(x),
    "nonzero-size": lambda library, x, i: library.nonzero_coordinates(x, size=1009, fill_value=3),
    "gather-raise": lambda library, x, i: (library.gather_nd(x, i % 211),),
    "gather-clip": lambda library, x, i: (library.gather_nd(x, i, mode="clip"),),
    "diagonal": lambda library, x, i: (library.diagonal_matrix(x, begin=-7, end=5),),
}


def test_functions(torch):
    hosts = [
        (
            sample("int8", (211, 1511), ("x", thread)).astype("float32"),
            sample("int16", (97, 1), ("i", thread)).astype("int64"),
        )
        for thread in range(THREADS)
    ]
    answers = [{name: call(reference, x, i) for name, call in FUNCTIONS.items()} for x, i in hosts]
    operands = [tuple(torch.from_numpy(array).cuda() for array in pair) for pair in hosts]

    def work(thread):
        for _ in range(TURNS):
            for name, call in FUNCTIONS.items():
                found = [array.cpu().numpy() for array in call(dmlops, *operands[thread])]
                for actual, expected in zip(found, answers[thread][name], strict=True):
                    np.testing.assert_array_equal(actual, expected, err_msg=name)

    at_once(torch, work)
