"""How often the token that is drawn for a row changes with the batch that the row is in."""

from collections.abc import Iterator
from typing import Any

from bench import data, libraries
from bench.libraries import NotServedError, not_served
from bench.peers import Contender, Task, contenders
from bench.suites import FILTERS, VOCABULARY
from bench.workloads import CPU, Sample


def changed_tokens(device: str) -> Iterator[tuple[str, str, str]]:
    """Yield filters, contenders and shares of tokens that another batch changes, or why there is none.

    Half of a batch is drawn again alone, with the same seeds: those of the rows, or the generator's.
    """
    n_rows = 64 if device == CPU else 256
    source = data.source(device)
    for k, top_p in FILTERS:
        whole, half = (
            Sample(name="batch", device=device, shape=(rows, VOCABULARY), k=k, top_p=top_p)
            for rows in (n_rows, n_rows // 2)
        )
        inputs = whole.inputs(source)
        tasks = Task(whole, inputs), Task(half, tuple(array[n_rows // 2 :] for array in inputs))
        for who in contenders("sample", device):
            try:
                tokens, alone = (_drawn(who, task) for task in tasks)
                shown = f"{(tokens[n_rows // 2 :] != alone).mean():.1%} of the tokens change"
            except NotServedError as error:
                shown = str(error)
            yield f"k {k or 'all'}, top_p {top_p}", who.name, shown


def _drawn(who: Contender, task: Task) -> Any:
    if reason := libraries.missing(who.library, task.workload.device):
        not_served(reason)
    draw = who.prepare(task)
    libraries.module("torch").manual_seed(0)
    return libraries.to_numpy(draw()).reshape(-1)
