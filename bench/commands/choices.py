"""`python -m bench choices`: find the fastest algorithm of top_k on CUDA for each problem."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dmlops.cli.console import out
from dmlops.cli.ending import fail


def choices(
    seconds: Annotated[float, typer.Option(min=1, help="Nothing new is begun after these.")] = 900,
    element_size: Annotated[
        list[int] | None, typer.Option(show_default="4, 2, 8", help="Bytes of an element; may be repeated.")
    ] = None,
    k: Annotated[list[int] | None, typer.Option("-k", show_default="all", help="May be repeated.")] = None,
    rows: Annotated[list[int] | None, typer.Option(show_default="all", help="May be repeated.")] = None,
    length: Annotated[list[int] | None, typer.Option(show_default="all", help="May be repeated.")] = None,
    contiguous: Annotated[
        bool, typer.Option("--contiguous", help="Leave out rows that lie side by side.")
    ] = False,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default="all",
            help="Beside the fastest other one of --add-to, whose times stay otherwise; may be repeated.",
        ),
    ] = None,
    add_to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Keep what this file has of other problems; those that it lacks come first.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Only make the table of this file."),
    ] = None,
) -> None:
    """Time every algorithm of top_k on problems of all sizes, and write the times to bench/results.

    --table FILE makes of them the table that plans choose by, and prints how much longer than the fastest
    algorithm the chosen one takes: of all problems, and of a fifth of them if the table lacks these.
    Kernels are compiled when they first run: `dmlops warmup --device cuda` does it beforehand.
    """
    import torch  # noqa: PLC0415 - for this command only

    from bench import choices as search  # noqa: PLC0415

    if table is not None:
        search.write_table(table)
        return
    check_algorithms(algorithm or (), add_to)
    watch = search.Stopwatch(seconds)
    layouts = (False,) if contiguous else (False, True)
    known = {each.problem: each.times for each in search.load(add_to) if each.times} if add_to else {}
    ks = k or search.KS
    row_counts = rows or search.ROWS
    lengths = length or search.LENGTHS
    found = []
    for size in element_size or search.DTYPES:
        problems = search.problems(size, ks, row_counts, lengths, layouts)
        found += search.measure(watch, sorted(problems, key=known.__contains__), algorithm or (), known)
    search.print_losses(found)
    path = search.write_results(found, torch.cuda.get_device_name(), watch.target, add_to)
    out.print(f"\nwritten: {path}")


def check_algorithms(names: Sequence[str], add_to: Path | None) -> None:
    """Refuse names that no algorithm has, and names without a file that their times are added to."""
    from kernels_cuda.top_k import ALGORITHMS  # noqa: PLC0415 - for this command only

    for name in names:
        if name not in ALGORITHMS:
            fail(f"--algorithm: got {name!r}; it must be one of {', '.join(ALGORITHMS)}")
        if add_to is None:
            fail(f"--algorithm: got {name!r} alone; --add-to must name the file that its times are added to")
