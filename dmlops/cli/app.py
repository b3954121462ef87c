"""The commands and what they have in common."""

from typing import Annotated

import typer

from dmlops import __version__
from dmlops.cli import bench, demo, files, info, sweep, warmup
from dmlops.cli.console import CommandError, err, out

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
bench.app.command("sweep")(sweep.sweep)
app.command("info")(info.info)
app.command("warmup")(warmup.warmup)
app.command("top-k")(files.top_k)
app.command("nonzero")(files.nonzero)
app.command("gather")(files.gather)
app.command("diagonal")(files.diagonal)
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"dmlops {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def dmlops(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """DirectML's indexing operators on .npy files: exact, stable, the same on CPU and GPU.

    Start with `dmlops demo`.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run() -> int:
    """Run one command; print what went wrong as one line and return the exit code."""
    try:
        return int(app(standalone_mode=False) or 0)
    except CommandError as error:
        return _fail(str(error), 1)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except Exception as error:
        # What typer itself objects to. Its base class has no public name that all its versions share.
        if not hasattr(error, "format_message"):
            raise
        return _fail(error.format_message(), getattr(error, "exit_code", 2))


def _fail(message: str, exit_code: int) -> int:
    err.print(f"dmlops: {' '.join(message.split())}", markup=False)
    return exit_code
