"""The `dmlops` command line. It needs the `cli` extra; importing this package does not."""

import os

from dmlops.cli import ending
from dmlops.cli.errors import CommandError

_EXTRA = {"typer", "rich"}
_COMPLETE = "_DMLOPS_COMPLETE"


def main() -> int:
    """Run the command line on the process's arguments and return the exit code."""
    return ending.run(_command)


def _command() -> int:
    try:
        from dmlops.cli.app import app  # noqa: PLC0415 - without the extra there is nothing to import
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        message = 'the command line needs typer and rich: pip install "dmlops[cli]"'
        raise CommandError(message) from error
    try:
        return int(app(prog_name="dmlops", standalone_mode=False) or 0)
    except Exception as error:
        if not os.environ.get(_COMPLETE):
            raise
        message = (
            f"{_COMPLETE} is set, as by a shell that completes a command, but not what goes with it; unset it"
        )
        raise CommandError(message) from error
