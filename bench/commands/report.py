"""`python -m bench report`: a page or a picture of results."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.commands.measuring import FORMAT, write
from dmlops.cli.console import out
from dmlops.cli.ending import CommandError, users_errors
from dmlops.cli.outputs import check_output

PICTURES = (".svg", ".png")
BENCH_EXTRA = 'pip install ".[bench]"'


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES", help="One or two files that `--json` has written.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default="beside the first of FILES",
            help="The .html, .svg or .png file to write.",
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about one run, or about two runs side by side.

    An .svg or .png file gets the main picture of one run alone.
    """
    if len(files) > 2:
        message = "bench report: it takes one or two files"
        raise CommandError(message)
    from bench.report import picture, render  # noqa: PLC0415 - for this command only

    target = output or files[0].parent / f"{files[0].stem or 'report'}.html"
    if target.suffix not in {".html", *PICTURES}:
        message = f"-o {target}: the name of the file must end with .html, or with .svg or .png for a picture"
        raise CommandError(message)
    if target.suffix in PICTURES and len(files) > 1:
        message = f"-o {target}: a picture is about one run; two runs side by side are a page, an .html file"
        raise CommandError(message)
    check_output("-o", target, files)
    records = [_read(path) for path in files]
    try:
        content: str | bytes
        if target.suffix in PICTURES:
            with users_errors(str(files[0])):
                content = picture(records[0], target.suffix)
        else:
            content = render(records, [path.name for path in files])
    except ModuleNotFoundError as error:
        message = f"bench report: {error.name} is not installed: {BENCH_EXTRA}"
        raise CommandError(message) from error
    write(target, content)
    out.print(f"Wrote {target}")


def _read(path: Path) -> dict[str, Any]:
    from bench.report import check  # noqa: PLC0415

    with users_errors(str(path)):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError:
            message = f"{path}: it is nested too deeply to be results"
            raise CommandError(message) from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            message = f"{path}: the file has no results of this version of `python -m bench`"
            raise CommandError(message)
        check(record)
    return record
