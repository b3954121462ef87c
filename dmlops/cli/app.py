"""The commands."""

import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dmlops import __version__, get_num_threads
from dmlops.cli import cache, demo, files, info, warmup
from dmlops.cli.console import out
from dmlops.cli.ending import CommandError


class _ShowsNames:
    """Leaves out the types that typer shows in helps: `<bool>` of flags, `<list[Path]>` of arguments."""

    def get_params(self, context: Any) -> list[Any]:
        """Return all parameters, with that of `--help`."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_bool_flag", False):
                each.metavar = ""
            elif each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: None
        return params


class Command(_ShowsNames, TyperCommand):
    """A command."""


class Group(_ShowsNames, TyperGroup):
    """A group of commands."""


app = typer.Typer(
    cls=Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", cls=Command)(demo.demo)
app.command("info", cls=Command)(info.info)
app.command("warmup", cls=Command)(warmup.warmup)
app.command("cache", cls=Command)(cache.cache)
app.command("top-k", cls=Command)(files.top_k)
app.command("nonzero", cls=Command)(files.nonzero)
app.command("gather", cls=Command)(files.gather)
app.command("diagonal", cls=Command)(files.diagonal)


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
    """DirectML's indexing operators on arrays in files: exact, stable, the same on CPU and GPU.

    Start with `dmlops demo`.
    """
    if context.invoked_subcommand is None:
        out.print(context.get_help())
    elif "DMLOPS_NUM_THREADS" in os.environ:
        try:
            get_num_threads()
        except ValueError as error:
            raise CommandError(str(error)) from error
