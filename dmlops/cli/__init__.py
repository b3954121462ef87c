"""The `dmlops` command line. It needs the `cli` extra; importing this package does not."""

import sys

_EXTRA = {"typer", "rich"}


def main() -> int:
    """Run the command line on the process's arguments and return the exit code."""
    try:
        from dmlops.cli.app import run  # noqa: PLC0415 - without the extra there is nothing to import
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write('dmlops: the command line needs typer and rich: pip install "dmlops[cli]"\n')
        return 1
    return run()
