"""The commands."""

import os
from typing import Annotated

import typer

from dmlops import __version__, get_num_threads
from dmlops.cli import cache, demo, files, info, warmup
from dmlops.cli.console import out
from dmlops.cli.ending import fail

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
app.command("demo")(demo.demo)
app.command("info")(info.info)
app.command("warmup")(warmup.warmup)
app.command("cache")(cache.cache)
app.command("top-k")(files.top_k)
app.command("nonzero")(files.nonzero)
app.command("gather")(files.gather)
app.command("sample")(files.sample)
app.command("diagonal")(files.diagonal)


def _print_version(is_given: bool) -> None:
    if is_given:
        out.print(f"dmlops {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def dmlops(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """DirectML's indexing operators on arrays in files: exact, stable, the same on CPU and GPU.

    Start with `dmlops demo`.
    """
    if context.invoked_subcommand is None:
        out.print(context.get_help())
    elif "DMLOPS_NUM_THREADS" in os.environ:
        try:
            get_num_threads()
        except ValueError as error:
            fail(str(error))
