"""The suite `sampling`: one token per row of logits, as engines draw them."""

from collections.abc import Iterator
from typing import Any

from bench import data, libraries
from bench.libraries import NotServedError, not_served
from bench.peers import Contender, Task, contenders
from bench.workloads import CPU, Sample, Workload

_REASON = "the next token of each request"
_VOCABULARY = 128256
# k, and top_p; 0 and 1.0 stand for all elements.
_FILTERS = ((0, 1.0), (50, 0.9), (0, 0.9))


def sampling(device: str) -> Iterator[Workload]:
    """Yield the problems of a device, in the order in which they are measured."""
    for rows in (1, 16) if device == CPU else (1, 16, 256):
        for dtype in ("float32", "bfloat16"):
            for k, top_p in _FILTERS:
                name = f"sample {rows} x {_VOCABULARY} {dtype}, k {k or 'all'}, top_p {top_p}"
                yield Sample(
                    name=name,
                    reason=_REASON,
                    device=device,
                    shape=(rows, _VOCABULARY),
                    dtype=dtype,
                    k=k,
                    top_p=top_p,
                    quick=rows == 1,
                )


def changed_tokens(device: str, threads: int) -> Iterator[tuple[str, str, float | str]]:
    """Yield filters, contenders and shares of tokens that another batch changes, or why there is none.

    Half of a batch is drawn again alone, with the same seeds: those of the rows, or the generator's.
    """
    rows = 64 if device == CPU else 256
    half = slice(rows // 2, None)
    source = data.source(device)
    for k, top_p in _FILTERS:
        workloads = [
            Sample(name="batch", reason=_REASON, device=device, shape=(n, _VOCABULARY), k=k, top_p=top_p)
            for n in (rows, rows // 2)
        ]
        x, seeds = workloads[0].inputs(source)
        tasks = (
            Task(workloads[0], (x, seeds), threads),
            Task(workloads[1], (x[half], seeds[half]), threads),
        )
        for who in contenders("sample", device):
            shown: float | str
            try:
                both, alone = (_drawn(who, task) for task in tasks)
                shown = float((both[half] != alone).mean())
            except NotServedError as error:
                shown = str(error)
            yield f"k {k or 'all'}, top_p {top_p}", who.name, shown


def _drawn(who: Contender, task: Task) -> Any:
    if reason := libraries.missing(who.library, task.workload.device):
        not_served(reason)
    draw = who.prepare(task)
    libraries.module("torch").manual_seed(0)
    return libraries.to_numpy(draw()).reshape(-1)
