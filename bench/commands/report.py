"""`python -m bench report`: print a file of results again, or two of them side by side."""

from pathlib import Path
from typing import Annotated

import typer

from bench import records
from bench.report import print_comparison, print_report
from dmlops.cli.ending import fail


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES", help="One or two files that `--json` has written.", show_default=False
        ),
    ],
) -> None:
    """Print the results of one run, or the times of dmlops in two runs side by side."""
    if len(files) > 2:
        fail("bench report: it takes one or two files")
    read = [records.read(path) for path in files]
    try:
        if len(read) == 2:
            print_comparison(read[0], read[1], [path.stem for path in files])
        else:
            print_report(read[0])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        fail(f"{files[0]}: the file has no results that can be shown: {type(error).__name__}: {error}")
