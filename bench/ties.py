"""The answers of top-k kernels to rows with many equal elements, which decide the contests that they are in.

Each kernel solves each problem five times. What it returned counts, whatever its documentation promises.
"""

import math
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from bench import libraries
from bench.contests import Contract
from bench.libraries import NotServedError, to_torch
from bench.peers import Contender, Task, contenders
from bench.runner import Bench
from bench.workloads import CUDA, TopK

RUNS = 5
# 256 distinct values, as scores that were quantised to bytes have.
DATA = "codes"
SHAPES = (
    *((64, 256, 6), (64, 512, 22), (64, 896, 16), (64, 8192, 64), (64, 8192, 512), (64, 8192, 2048)),
    *((16, 32768, 1024), (16, 32768, 4096), (2, 131072, 512), (2, 131072, 2048)),
)
DTYPES = ("float32", "bfloat16")
# An answer has the first of these orders that fits it.
STABLE, BY_VALUE, BY_INDEX, NO_ORDER = ORDERS = (
    "by value, ties by index",
    "by value, ties in any order",
    "by index",
    "any order",
)


@dataclass
class Ties:
    """The findings about a contender's answers.

    Attributes
    ----------
    contender : str
        Its name.
    is_sorted : bool
        Whether it was asked for the order of values.
    problems : int
        The number of problems that it served.
    has_values : bool
        Whether it returned values, and not indices alone.
    wrong : int
        The problems in which some run returned another set than k largest elements, or other values than
        those at the indices.
    order : str
        The order that all its answers had.
    varied : int
        The problems in which not all runs returned the same bytes.
    message : str
        Why it did not serve some problem.
    """

    contender: str
    is_sorted: bool
    problems: int = 0
    has_values: bool = True
    wrong: int = 0
    order: str = STABLE
    varied: int = 0
    message: str = ""
    contract: Contract = field(init=False, default=Contract.OPEN)

    def add(self, x: Any, k: int, answers: list[Any]) -> None:
        """Add the answers of all runs to one problem."""
        torch = libraries.module("torch")
        self.problems += 1
        expected, positions = (array[:, :k] for array in x.sort(dim=-1, descending=True, stable=True))
        runs = [_parts(answer) for answer in answers]
        self.has_values &= all(values is not None for values, _ in runs)
        self.wrong += not all(_is_right(x, expected, *run) for run in runs)
        self.varied += not all(torch.equal(indices, runs[0][1]) for _, indices in runs)
        found = [_order(x, positions, indices) for _, indices in runs]
        self.order = max(self.order, *found, key=ORDERS.index)
        self.contract = self._contract()

    def _contract(self) -> Contract:
        if self.wrong or not self.has_values:
            return Contract.OPEN
        if self.order == STABLE and not self.varied:
            return Contract.STABLE
        return Contract.SORTED if self.order in (STABLE, BY_VALUE) else Contract.ANY

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a results file; a contender that served no problem has no findings."""
        found = asdict(self)
        if not self.problems:
            found = {name: found[name] for name in ("contender", "is_sorted", "problems", "message")}
        return found


def _parts(answer: Any) -> tuple[Any, Any]:
    """Return values, or None, and indices as integers of 64 bits."""
    values, indices = answer if isinstance(answer, tuple | list) else (None, answer)
    return values, indices.long()


def _is_right(x: Any, expected: Any, values: Any, indices: Any) -> bool:
    ascending = indices.sort(dim=-1).values
    if ascending.min() < 0 or ascending.max() >= x.shape[1] or (ascending.diff(dim=-1) == 0).any():
        return False
    found = x.gather(-1, indices)
    is_set = (found.sort(dim=-1, descending=True).values == expected).all()
    return bool(is_set and (values is None or (found == values).all()))


def _order(x: Any, positions: Any, indices: Any) -> str:
    if (indices == positions).all():
        return STABLE
    found = x.gather(-1, indices.clamp(0, x.shape[1] - 1))
    if (found.diff(dim=-1) <= 0).all():
        return BY_VALUE
    return BY_INDEX if (indices.diff(dim=-1) > 0).all() else NO_ORDER


def problems(is_sorted: bool) -> Iterator[TopK]:
    """Yield the problems, in order of value or in any order."""
    for (rows, size, k), dtype in product(SHAPES, DTYPES):
        problem = TopK(name="", reason="", device=CUDA, shape=(rows, size), dtype=dtype, k=k, data=DATA)
        yield replace(problem, is_sorted=is_sorted)


def check(harness: Bench, names: Collection[str], deadline: float = math.inf) -> list[Ties]:
    """Have contenders solve the problems on the GPU of a bench, in both orders, as far as there is time."""
    everybody = [who for who in contenders("top_k", CUDA) if who.name in names]
    found = {(who.name, order): Ties(who.name, order) for order in (True, False) for who in everybody}
    for order in (True, False):
        for workload in problems(order):
            if time.perf_counter() > deadline:
                break
            task = harness.tasks(workload)[0]
            for who in everybody:
                _add(found[who.name, order], harness, who, task)
    return list(found.values())


def _add(ties: Ties, harness: Bench, who: Contender, task: Task) -> None:
    try:
        call = harness.call(who, [task])
        answers = [_copied(call()) for _ in range(RUNS)]
    except NotServedError as error:
        ties.message = ties.message or str(error)
    except Exception as error:  # whatever the libraries of others raise
        ties.message = libraries.first_line(error)
    else:
        ties.add(task.x, task.workload.k, answers)


def _copied(answer: Any) -> Any:
    """Return a copy that the next run does not write to, as torch tensors."""
    if isinstance(answer, tuple | list):
        return tuple(to_torch(each).clone() for each in answer)
    return to_torch(answer).clone()
