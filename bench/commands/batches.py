"""`python -m bench batches`: how often another batch changes the token of a row."""

from typing import Annotated

import typer

from bench.commands.options import Where
from dmlops import get_num_threads
from dmlops.cli.console import out


def batches(device: Annotated[Where, typer.Option(help="The device to draw on.")] = Where.CPU) -> None:
    """Draw tokens in a batch, and again in half of it with the same seeds; print the share that differs."""
    from bench.sampling import changed_tokens  # noqa: PLC0415 - for this command only

    for name, contender, share in changed_tokens(device, get_num_threads()):
        shown = share if isinstance(share, str) else f"{share:.1%} of the tokens change"
        out.print(f"{name:20s}{contender:22s}{shown}")
