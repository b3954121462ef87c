"""Run workloads: prepare the contenders, check dmlops' answer, time them in rounds, and keep the record."""

import itertools
import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import answers, data, libraries, timing
from bench.libraries import NotServedError, not_served
from bench.peers import OURS, Contender, Task, contenders
from bench.timing import Call, Clock, CudaClock, HostClock, Lane
from bench.workloads import CPU, CUDA, TopK, Workload

OK, SKIPPED, FAILED, WRONG = "ok", "skipped", "failed", "wrong"
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


class DeviceLostError(Exception):
    """The GPU no longer responds, and nothing else can be measured."""


@dataclass(frozen=True)
class Pace:
    """How thoroughly a workload is measured."""

    least_seconds: float = 0.3
    """The minimum time for the samples of all contenders, even if the workload's share is used up."""
    patience: float = 0.0
    """Seconds that a single call of a peer may take, if they are more than the workload's share."""
    checked_size: float = math.inf
    """The largest input, in elements, for which the answer is checked."""


@dataclass
class Outcome:
    """The result of one contender: median seconds of the work, of the host, and of a call with its wait.

    `low` and `high` are the quartiles of the work's time, and `best` is its minimum. `contract` is the kind
    of its answers, if it competes with others of that kind.
    """

    contender: str
    note: str = ""
    is_spared: bool = False
    status: str = OK
    message: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    best: float | None = None
    host: float | None = None
    wall: float | None = None
    contract: str = ""

    @property
    def was_asked(self) -> bool:
        """Whether the contender could have been timed: it is installed, and there was time for it."""
        return self.contender == OURS or not self.message.endswith((OUT_OF_TIME, libraries.NOT_INSTALLED))

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a results file: what is not empty, and always the contender and the seconds."""
        found = {name: value for name, value in asdict(self).items() if value not in ("", None, False, OK)}
        return {"contender": self.contender, "seconds": self.seconds} | found


@dataclass
class Row:
    """One workload and the outcomes of its contenders."""

    workload: Workload
    outcomes: list[Outcome] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the row of a results file. Contenders that were not asked are left out."""
        return {
            "name": self.workload.name,
            "operator": self.workload.operator,
            "problem": self.workload.problem,
            "series": self.workload.series,
            "bytes_moved": self.workload.bytes_moved,
            "outcomes": [outcome.to_json() for outcome in self.outcomes if outcome.was_asked],
        }


class Bench:
    """A device, its clock and its inputs.

    On the CPU, each library may use `threads` threads. `bandwidth` is that of a plain copy, in bytes per
    second; it is measured when the object is created.
    """

    def __init__(self, device: str, threads: int, pace: Pace = Pace()) -> None:
        libraries.set_threads(threads, device)
        self.device, self.threads, self.pace = device, threads, pace
        self._source = data.source(device)
        self.clock: Clock
        if device == CPU:
            self.clock, self._cache_bytes = HostClock(threads), 0
            self.bandwidth = timing.host_bandwidth(threads)
        else:
            self.clock = clock = CudaClock()
            self._cache_bytes = clock.cache_bytes
            original = self._source.make("constant", (timing.COPY_BYTES,), "float32")
            self.bandwidth = timing.cuda_bandwidth(clock, original, self._source.copy(original))
            del original
            libraries.release_memory()

    def run(
        self, table: Sequence[Workload], seconds: float, names: Collection[str] | None = None
    ) -> Iterator[Row]:
        """Measure the workloads one after the other, and skip those that do not fit into the time.

        Contenders are all, or those in `names`.
        """
        deadline = time.perf_counter() + seconds
        lost = ""
        for done, workload in enumerate(table):
            left = deadline - time.perf_counter()
            if lost or left <= 0:
                yield self.skipped(workload, lost or OUT_OF_TIME, names)
                continue
            try:
                shares = [self.weight(each) for each in table[done:]]
                yield self.measure(workload, left * shares[0] / sum(shares), names)
            except DeviceLostError as error:
                lost = str(error)
                yield self.skipped(workload, lost, names)

    def weight(self, workload: Workload) -> float:
        """Return the weight of a workload in the distribution of the time; a small workload has weight 1."""
        return 1 + workload.bytes_moved / HEAVY_BYTES[self.device]

    def _contenders(self, workload: Workload, names: Collection[str] | None) -> list[Contender]:
        everybody = contenders(workload.operator, self.device)
        return [who for who in everybody if names is None or who.name in names]

    def _row(self, workload: Workload, everybody: Sequence[Contender]) -> Row:
        row = Row(workload, [Outcome(who.name, self._note(who), who.is_spared) for who in everybody])
        if isinstance(workload, TopK) and workload.series:
            for who, outcome in zip(everybody, row.outcomes, strict=True):
                outcome.contract = who.contract(workload.is_sorted)
        return row

    def _note(self, who: Contender) -> str:
        return f"{who.note}; {OWN_STREAM}" if self._is_unseen(who) else who.note

    def _is_unseen(self, who: Contender) -> bool:
        return self.device == CUDA and who.has_own_stream

    def skipped(self, workload: Workload, message: str, names: Collection[str] | None = None) -> Row:
        """Return the row of a workload that was not measured."""
        row = self._row(workload, self._contenders(workload, names))
        for outcome in row.outcomes:
            outcome.status, outcome.message = SKIPPED, message
        return row

    def measure(self, workload: Workload, seconds: float, names: Collection[str] | None = None) -> Row:
        """Measure one workload in about `seconds`, for all contenders or for those in `names`.

        A GPU that no longer responds raises DeviceLostError.
        """
        start = prepared = time.perf_counter()
        everybody = self._contenders(workload, names)
        row = self._row(workload, everybody)
        allowed = max(seconds, self.pace.patience)
        lanes: dict[str, Lane] = {}
        try:
            tasks = self.tasks(workload)
        except ModuleNotFoundError as error:  # bfloat16 needs ml_dtypes
            return self.skipped(workload, f"{error.name} {libraries.NOT_INSTALLED}", names)
        except Exception as error:  # no memory, for one
            for outcome in row.outcomes:
                outcome.status, outcome.message = FAILED, libraries.first_line(error)
            self._recover()
            return row
        for who, outcome in zip(everybody, row.outcomes, strict=True):
            if lanes and time.perf_counter() - prepared > 2 * allowed:
                outcome.status, outcome.message = SKIPPED, OUT_OF_TIME
                continue
            try:
                lanes[who.name] = self._lane(who, tasks, outcome, allowed)
            except NotServedError as error:
                outcome.status, outcome.message = SKIPPED, str(error)
            except Exception as error:  # the row reports a peer that fails, and the run goes on
                outcome.status, outcome.message = FAILED, libraries.first_line(error)
                del error
                self._recover()
            if who.is_ours:
                prepared = time.perf_counter()  # compilation does not count against the peers
        left = max(seconds - (time.perf_counter() - start), self.pace.least_seconds)
        timing.take_turns(list(lanes.values()), self.clock, left)
        for outcome in row.outcomes:
            if outcome.contender in lanes:
                _read(lanes[outcome.contender], outcome)
                self._check_rate(workload, outcome)
        lanes.clear()
        del tasks
        self._recover()
        return row

    def _check_rate(self, workload: Workload, outcome: Outcome) -> None:
        """Leave out times of which a quarter are too short to have read the input, which is in no cache."""
        least = LEAST_OF_COPY * workload.bytes_moved / self.bandwidth if self.device == CUDA else 0
        if outcome.low is not None and outcome.low < least:
            outcome.status, outcome.message = FAILED, "less than half of the time of a copy"
            outcome.seconds = None

    def tasks(self, workload: Workload) -> list[Task]:
        """Make the inputs; on a GPU, make enough copies to exceed its cache."""
        inputs = workload.inputs(self._source)
        tasks = [Task(workload, inputs, self.threads)]
        if self.device == CUDA:
            size = sum(array.nbytes for array in inputs)
            copies = min(-(-CACHE_FACTOR * self._cache_bytes // max(size, 1)), MAX_COPIES)
            copies = SMALL_COPIES if size < SMALL_BYTES else max(copies, 1)
            for _ in range(copies - 1):
                tasks.append(Task(workload, workload.copies(self._source, inputs), self.threads))
        return tasks

    def call(self, who: Contender, tasks: Sequence[Task]) -> Call:
        """Return the function of a contender that is timed, which goes through the tasks in rotation.

        A contender that does not support the workload raises NotServedError.
        """
        if reason := libraries.missing(who.library, self.device):
            not_served(reason)
        calls = [who.prepare(task) for task in tasks]
        if len(calls) == 1:
            return calls[0]
        turns = itertools.cycle(calls)

        def next_call() -> Any:
            return next(turns)()

        return next_call

    def _lane(self, who: Contender, tasks: Sequence[Task], outcome: Outcome, seconds: float) -> Lane:
        call, workload = self.call(who, tasks), tasks[0].workload
        is_checked = who.is_ours and workload.size <= self.pace.checked_size
        if is_checked and (wrong := answers.fault(tasks[0], call())):
            outcome.status, outcome.message = WRONG, wrong
        lane = Lane(call, has_own_stream=self._is_unseen(who))
        timing.warm_up(lane, self.clock)
        if lane.estimate > seconds and not who.is_ours:
            not_served(f"too slow here: a call takes {lane.estimate:.1f} s")
        return lane

    def _recover(self) -> None:
        if self.device == CUDA and isinstance(self.clock, CudaClock):
            try:
                self.clock.sync()
                libraries.release_memory()
            except Exception as error:
                message = f"the GPU was lost: {libraries.first_line(error)}"
                raise DeviceLostError(message) from error


def _read(lane: Lane, outcome: Outcome) -> None:
    if lane.error:
        outcome.status, outcome.message = FAILED, lane.error
        return
    outcome.seconds, outcome.host, outcome.wall = (lane.median(what) for what in ("work", "host", "wall"))
    outcome.low, outcome.high = lane.quartiles()
    outcome.best = min(sample.work for sample in lane.kept)
