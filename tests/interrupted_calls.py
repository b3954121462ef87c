"""Interrupts calls at random moments, and checks that nothing of a call runs afterwards.

`test_interrupts` runs this program in a separate process.
"""

import random
import signal
import threading
import time

import numpy as np

import dmlops
from tests.data import assert_same


class CallInterruptedError(Exception):
    """The exception that the signal handler raises."""


signals = []
CANARY = 0x5A


def interrupt(number, frame):
    signals.append(number)
    raise CallInterruptedError


class Work:
    """A call, its memory and its right answer."""

    def __init__(self, call, inputs, outputs, expected):
        self.call, self.inputs, self.outputs = call, inputs, outputs
        self.kept = [array.copy() for array in inputs]
        self.expected = expected
        self.fresh()
        for _ in range(3):  # first calls compile, and the ways of later ones differ
            start = time.perf_counter()
            self.call(self.inputs, self.outputs)
            self.seconds = time.perf_counter() - start
            self.check()

    def fresh(self):
        for array, kept in zip(self.inputs, self.kept, strict=True):
            array[...] = kept
        for array in self.outputs:
            array.reshape(-1).view(np.uint8)[...] = CANARY

    def check(self):
        for array, right in zip(self.outputs, self.expected, strict=True):
            assert_same(array[: len(right)] if array.ndim else array, right)

    def spoil(self):
        """Write to everything that a part which still ran would read or write."""
        for array in (*self.inputs, *self.outputs):
            array.reshape(-1).view(np.uint8)[...] = CANARY

    def is_untouched(self):
        arrays = (*self.inputs, *self.outputs)
        return all((array.reshape(-1).view(np.uint8) == CANARY).all() for array in arrays)


def functions(rng):
    """Return calls of all operators that are worth several threads."""
    x = rng.standard_normal((48, 30000)).astype("float32")
    order = np.argsort(-x, axis=1, kind="stable")

    def best(k):
        indices = order[:, :k]
        values = np.take_along_axis(x, indices, axis=1)
        return Work(
            lambda given, out: dmlops.top_k(given[0], k, out=out),
            [x.copy()],
            (np.empty_like(values), np.empty_like(indices)),
            [values, indices],
        )

    yield best(20)
    yield best(9000)
    mask = rng.random((300, 7000)) < 0.3
    found = np.argwhere(mask).copy(order="C")
    yield Work(
        lambda given, out: dmlops.nonzero_coordinates(given[0], out=out),
        [mask.copy()],
        (np.empty_like(found), np.empty((), "int64")),
        [found, np.array(len(found))],
    )
    picks = rng.integers(-48, 48, (400, 1))
    yield Work(
        lambda given, out: dmlops.gather_nd(*given, out=out[0]),
        [x.copy(), picks.copy()],
        [np.empty((400, 30000), "float32")],
        [x[picks[:, 0]]],
    )
    wide = rng.standard_normal((2, 1500, 1500))
    yield Work(
        lambda given, out: dmlops.diagonal_matrix(given[0], value=0, begin=1, end=1500, out=out[0]),
        [wide.copy()],
        [np.empty_like(wide)],
        [np.tril(wide)],
    )


def compiled(rng):
    """Return an execution of an operator."""
    x = rng.standard_normal((48, 30000)).astype("float32")
    indices = np.argsort(-x, axis=1, kind="stable")[:, :300].astype("uint32")
    operator = dmlops.compile(
        dmlops.TopK1(
            input_tensor=dmlops.TensorDesc("FLOAT32", x.shape),
            axis=1,
            k=300,
            axis_direction=dmlops.AxisDirection.DECREASING,
        )
    )
    fields = (*operator.inputs, *operator.outputs)
    return Work(
        lambda given, out: operator.execute(dict(zip(fields, (*given, *out), strict=True))),
        [x],
        (np.empty((48, 300), "float32"), np.empty((48, 300), "uint32")),
        [np.take_along_axis(x, indices, axis=1), indices],
    )


def trimmed(rng):
    """Return a call that makes new outputs, whose elements are copied to be checked."""
    mask = rng.random((200, 5000)) < 0.5
    found = np.argwhere(mask).copy(order="C")

    def call(given, out):
        for array, result in zip(out, dmlops.nonzero_coordinates(given[0]), strict=True):
            array[...] = result

    outputs = np.empty_like(found), np.empty((), "int64")
    return Work(call, [mask], outputs, [found, np.array(len(found))])


def was_interrupted(work, delay, by_thread):
    main = threading.main_thread().ident
    timer = threading.Timer(delay, signal.pthread_kill, (main, signal.SIGUSR1)) if by_thread else None
    found = False
    try:
        try:
            if timer is not None:
                timer.start()
            else:
                signal.setitimer(signal.ITIMER_REAL, delay)
            work.call(work.inputs, work.outputs)
        finally:
            # A remaining timer must not end the check.
            while timer is not None and timer.ident is not None and timer.is_alive():
                timer.join()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except CallInterruptedError:
        found = True
    signal.setitimer(signal.ITIMER_REAL, 0)
    return found


def main(seed, n_interrupts):
    """Interrupt so many calls, and print how many calls that took."""
    signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGUSR1, interrupt)
    rng, moments = np.random.default_rng(seed), random.Random(seed)
    works = [*functions(rng), compiled(rng), trimmed(rng)]
    interrupts = calls = 0
    while interrupts < n_interrupts:
        work = moments.choice(works)
        work.fresh()
        calls += 1
        delay = max(moments.uniform(0, 1.1) * work.seconds, 1e-6)
        if was_interrupted(work, delay, by_thread=moments.random() < 0.1):
            interrupts += 1
            assert len(signals) == interrupts, "an interrupt was swallowed"
            work.spoil()
            following = moments.choice([other for other in works if other is not work])
            following.fresh()
            following.call(following.inputs, following.outputs)
            following.check()
            assert work.is_untouched()
        else:
            work.check()
    for work in works:
        work.fresh()
        work.call(work.inputs, work.outputs)
        work.check()
    assert threading.active_count() < 20
    print(interrupts, "interrupts of", calls, "calls")
