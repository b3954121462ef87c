"""Run workloads: prepare the contenders, check dmlops' answer, time them in rounds, and keep the record."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench import answers, data, libraries, timing
from bench.libraries import NotServedError, not_served
from bench.peers import Contender, Task, contenders
from bench.timing import Call, CudaClock, HostClock, Lane
from bench.workloads import CPU, CUDA, TopK, Workload

Row = dict[str, Any]
OUT_OF_TIME = "out of time"
OWN_STREAM = "wall-clock time of calls back to back"
# A workload that moves this many bytes gets twice the time of a small one.
HEAVY_BYTES = {CPU: 4e7, CUDA: 1e9}
# There are enough copies of the inputs to fill this many times the GPU's cache.
CACHE_FACTOR = 3
MAX_COPIES = 64
SMALL_COPIES = 8
SMALL_BYTES = 1 << 18
# A time shorter than this part of a copy's time is a fault of the measurement. Caches make some gathers
# faster than a copy.
LEAST_OF_COPY = 0.5
LEAST_SECONDS = 0.05  # for the samples of all contenders of a workload, whatever its share of the time


def row_of(workload: Workload, outcomes: Sequence[dict[str, Any]]) -> Row:
    """Return the row of a results file: a workload and the outcomes of its contenders."""
    names = ("name", "operator", "problem", "series", "bytes_moved")
    return {name: getattr(workload, name) for name in names} | {"outcomes": [*outcomes]}


class Bench:
    """A device, its clock and its inputs.

    On the CPU, each library may use `threads` threads. Other libraries are timed if it `has_peers`.
    `bandwidth` is that of a plain copy, in bytes per second; it is measured when the object is created.
    `left_out` are reasons why libraries were not timed.
    """

    def __init__(self, device: str, threads: int, has_peers: bool = True) -> None:
        libraries.set_threads(threads, device)
        self.device, self.has_peers = device, has_peers
        self.left_out: set[str] = set()
        self._source = data.source(device)
        self.clock: timing.Clock
        if device == CPU:
            self.clock = HostClock(threads)
            self.bandwidth = timing.host_bandwidth(threads)
        else:
            self.clock = CudaClock()
            array = self._source.make("constant", (timing.COPY_BYTES,), "float32")
            copy = array.clone()
            self.bandwidth = timing.bandwidth(lambda: copy.copy_(array), array.nbytes, self.clock)
            del array, copy
            self.clock.release_memory()

    def run(self, table: Sequence[Workload], seconds: float) -> Iterator[Row]:
        """Measure the workloads one after the other, and skip those that do not fit into the time."""
        deadline = time.perf_counter() + seconds
        for done, workload in enumerate(table):
            left = deadline - time.perf_counter()
            if left > 0:
                shares = [1 + each.bytes_moved / HEAVY_BYTES[self.device] for each in table[done:]]
                yield self.measure(workload, left * shares[0] / sum(shares))
            else:
                ours = contenders(workload.operator, self.device)[0]
                yield row_of(workload, [self._outcome(ours, workload, "skipped", OUT_OF_TIME)])

    def _contenders(self, workload: Workload) -> list[Contender]:
        """Return the contenders that are installed."""
        found = []
        for who in contenders(workload.operator, self.device):
            reason = libraries.missing(who.library, self.device)
            if reason and self.has_peers:
                self.left_out.add(reason)
            elif who.is_ours or self.has_peers:
                found.append(who)
        return found

    def _is_unseen(self, who: Contender) -> bool:
        return self.device == CUDA and who.has_own_stream

    def _outcome(
        self, who: Contender, workload: Workload, status: str = "", message: str = ""
    ) -> dict[str, Any]:
        """Return the entry of a contender: what is not empty, and always its name and its time.

        `seconds` is the median time of the work, `low` and `high` are the quartiles, and `best` is the least.
        """
        note = f"{who.note}; {OWN_STREAM}" if self._is_unseen(who) else who.note
        contract = ""
        if isinstance(workload, TopK) and workload.series:
            contract = who.contract(workload.is_sorted)
        about = {"note": note, "is_spared": who.is_spared, "contract": contract}
        about |= {"status": status, "message": message}
        return {"contender": who.name, "seconds": None} | {name: each for name, each in about.items() if each}

    def measure(self, workload: Workload, seconds: float) -> Row:
        start = prepared = time.perf_counter()
        everybody = self._contenders(workload)
        outcomes = []
        lanes: dict[str, Lane] = {}
        try:
            tasks = self.tasks(workload)
        except Exception as error:  # no memory, or no ml_dtypes for bfloat16
            self._recover()
            message = libraries.first_line(error)
            return row_of(workload, [self._outcome(who, workload, "failed", message) for who in everybody])
        for who in everybody:
            if lanes and time.perf_counter() - prepared > 2 * seconds:
                break
            outcome = self._outcome(who, workload)
            outcomes.append(outcome)
            try:
                lanes[who.name] = self._lane(who, tasks, outcome, seconds)
            except NotServedError as error:
                outcome |= {"status": "skipped", "message": str(error)}
            except Exception as error:  # the row reports a peer that fails, and the run goes on
                outcome |= {"status": "failed", "message": libraries.first_line(error)}
                del error
                self._recover()
            if who.is_ours:
                prepared = time.perf_counter()  # compilation does not count against the peers
        left = max(seconds - (time.perf_counter() - start), LEAST_SECONDS)
        timing.take_turns(list(lanes.values()), self.clock, left)
        for outcome in outcomes:
            if outcome["contender"] in lanes:
                self._read(lanes[outcome["contender"]], workload, outcome)
        lanes.clear()
        del tasks
        self._recover()
        return row_of(workload, outcomes)

    def tasks(self, workload: Workload) -> list[Task]:
        """Make the inputs; on a GPU, make enough copies to exceed its cache."""
        inputs = workload.inputs(self._source)
        tasks = [Task(workload, inputs)]
        if isinstance(self.clock, CudaClock):
            size = sum(array.nbytes for array in inputs)
            copies = min(-(-CACHE_FACTOR * self.clock.cache_bytes // max(size, 1)), MAX_COPIES)
            copies = SMALL_COPIES if size < SMALL_BYTES else max(copies, 1)
            tasks += [Task(workload, tuple(each.clone() for each in inputs)) for _ in range(copies - 1)]
        return tasks

    def call(self, who: Contender, tasks: Sequence[Task]) -> Call:
        """Return the function of a contender that is timed, which goes through the tasks in rotation.

        A contender that does not support the workload raises NotServedError.
        """
        calls = [who.prepare(task) for task in tasks]
        if len(calls) == 1:
            return calls[0]
        turns = itertools.cycle(calls)

        def next_call() -> Any:
            return next(turns)()

        return next_call

    def _lane(self, who: Contender, tasks: Sequence[Task], outcome: Row, seconds: float) -> Lane:
        call = self.call(who, tasks)
        if who.is_ours and (wrong := answers.fault(tasks[0], call())):
            outcome |= {"status": "wrong", "message": wrong}
        lane = Lane(call, has_own_stream=self._is_unseen(who))
        timing.warm_up(lane, self.clock)
        if lane.estimate > seconds and not who.is_ours:
            not_served(f"too slow here: a call takes {lane.estimate:.1f} s")
        return lane

    def _read(self, lane: Lane, workload: Workload, outcome: Row) -> None:
        """Add the times to an outcome.

        Times of which a quarter are too short to have read the input, which is in no cache, are left out.
        """
        if lane.error:
            outcome |= {"status": "failed", "message": lane.error}
            return
        low, median, high = lane.quartiles()
        times = {"seconds": median, "low": low, "high": high, "best": min(lane.kept)}
        outcome |= {name: float(f"{seconds:.6g}") for name, seconds in times.items()}
        if self.device == CUDA and low < LEAST_OF_COPY * workload.bytes_moved / self.bandwidth:
            message = "less than half of the time of a copy"
            outcome |= {"seconds": None, "status": "failed", "message": message}

    def _recover(self) -> None:
        """Free the memory of a GPU; one that no longer responds raises an error, which ends the run."""
        if isinstance(self.clock, CudaClock):
            self.clock.release_memory()
