"""The commands."""

import typer

from bench.commands import batches, choices, host, report, run
from dmlops.cli import ending

app = typer.Typer(
    help="Compare dmlops with other libraries on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("choices")(choices.choices)
app.command("host")(host.host)
app.command("batches")(batches.batches)


def main() -> int:
    """Run the command line on the process's arguments and return the exit code."""
    return ending.run(lambda: int(app(prog_name="python -m bench", standalone_mode=False) or 0))
