"""The `dmlops` command line. It needs the `cli` extra; importing this package does not."""

from dmlops.cli import ending
from dmlops.cli.ending import fail

_EXTRA = {"typer", "rich"}


def main() -> int:
    """Run the command line on the process's arguments and return the exit code."""
    return ending.run(_command)


def _command() -> int:
    try:
        from dmlops.cli.app import app  # noqa: PLC0415 - without the extra there is nothing to import
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        fail('the command line needs typer and rich: pip install "dmlops[cli]"')
    return int(app(prog_name="dmlops", standalone_mode=False) or 0)
