"""The thread pool: every block runs once, errors reach the caller, and nothing keeps running."""

import os
import threading
import time

import pytest

from tests.inside import threads
from tests.scripts import run_script

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, None])
def test_each_block_runs_once(n_threads):
    for n in (1, 2, 3, 10, 100):
        done = []
        threads.run(done.append, range(n), n_threads)
        assert sorted(done) == list(range(n))


@pytest.mark.parametrize("first", [0, 1, 7])
def test_errors_come_back(first):
    """Whichever thread runs the block that fails, the caller gets its error when all blocks have ended."""
    for _ in range(20):
        running = []

        def work(block, running=running):
            running.append(block)
            try:
                time.sleep(0.001)
                if block == first:
                    message = f"block {block}"
                    raise ValueError(message)
            finally:
                running.remove(block)

        with pytest.raises(ValueError, match=f"^block {first}$"):
            threads.run(work, range(8), 4)
        assert not running


@pytest.mark.parametrize("n_threads", [2, 3])
def test_no_more_blocks_at_a_time_than_asked_for(n_threads):
    running, most, lock = set(), [], threading.Lock()

    def work(block):
        with lock:
            running.add(block)
            most.append(len(running))
        time.sleep(0.005)
        with lock:
            running.remove(block)

    threads.run(work, range(12), n_threads)
    assert max(most) <= n_threads


FORK = """
    import os, signal, sys, threading, time, warnings
    from tests.inside import threads

    warnings.simplefilter("ignore", DeprecationWarning)  # the tests fork with threads
    children = []

    def fork(*_):
        child = os.fork()
        if child:
            children.append(child)
            return
        signal.alarm(20)
        {then}

    signal.signal(signal.SIGUSR1, fork)
    main, together = threading.get_ident(), threading.Barrier(2, timeout=60)

    def work(block):
        together.wait()
        if threading.get_ident() == main:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            time.sleep(0.3)  # the child does not have this thread

    try:
        threads.run(work, range(2), 2)
    except RuntimeError as error:
        assert not children, error
        threads.run(lambda block: None, range(2), 2)
        os._exit(7)
    (child,) = children
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(("then", "code"), [("sys.exit(5)", 5), ("pass", 7)], ids=["unwinds", "goes on"])
def test_a_signal_handler_that_forks(then, code):
    """The child does not wait for the parent's threads; it gets no answer that lacks their parts."""
    assert run_script(FORK.replace("{then}", then)) == f"{code}\n"


def test_threads_that_die_are_replaced():
    script = """
        import threading, time
        from tests.inside import threads

        def run():
            together = threading.Barrier(3, timeout=20)
            threads.run(lambda block: together.wait(), range(3), 3)

        def die(ticket):
            raise MemoryError

        run()
        use, threads._Ticket.use = threads._Ticket.use, die
        threads.run(lambda block: None, range(3), 3)
        while threading.active_count() > 1:
            time.sleep(0.01)
        threads._Ticket.use = use
        run()
    """
    run_script(script)


def test_parts_cover_everything_once():
    for n in (*range(40), 1000):
        for n_parts in (0, 1, 2, 3, 5, 7, 50):
            parts = threads.split(n, n_parts)
            assert [i for first, last in parts for i in range(first, last)] == list(range(n))
            assert len(parts) <= max(n_parts, 1)
