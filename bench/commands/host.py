"""`python -m bench host`: measure the host time of small calls."""

from pathlib import Path
from typing import Annotated

import typer

from bench import host as calls
from bench import records
from bench.commands.options import Where, json_option
from dmlops.cli.console import out

LIBRARIES: dict[str, tuple[str, ...]] = {Where.CPU: ("numpy", "torch"), Where.CUDA: ("torch",)}


def host(
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    new: Annotated[
        bool, typer.Option("--new-sizes", help="Call with sizes that were not seen before.")
    ] = False,
    first: Annotated[
        bool, typer.Option("--first-calls", help="The first calls of processes, in milliseconds.")
    ] = False,
    json: Annotated[Path | None, json_option("Write the figures of new sizes to this file.")] = None,
) -> None:
    """Measure the host time of small calls, in microseconds: the cost of a call around its kernel."""
    if first:
        _print_first_calls(device)
        return
    if new:
        _measure_new_sizes(device, json)
        return
    for library in LIBRARIES[device]:
        try:
            _print_small_calls(library, device)
        except ImportError:
            out.print(f"{library} is not installed")


def _print_small_calls(library: str, device: str) -> None:
    for number, (name, figures) in enumerate(calls.small_calls(library, device)):
        if number == 0:
            out.print(f"{library + ' on ' + device:20s}" + "".join(f"{head:>11s}" for head in figures))
        out.print(f"{name:20s}" + "".join(f"{figure:11.2f}" for figure in figures.values()))


def _print_first_calls(device: str) -> None:
    from bench.first_calls import Figures, first_calls  # noqa: PLC0415 - for this option only

    out.print(f"{'milliseconds':24s}" + "".join(f"{head:>12s}" for head in Figures._fields))
    for name, figures in first_calls("numpy" if device == Where.CPU else "torch", device):
        out.print(f"{name:24s}" + "".join(f"{figure:12.0f}" for figure in figures))


def _measure_new_sizes(device: str, json: Path | None) -> None:
    """Print the time of calls of new sizes, of repeated ones, and of the library's own function."""
    record = records.new_record(device, threads=1)
    found = record["new_sizes"] = []
    out.print(f"{'microseconds':30s}{'new size':>10s}{'repeated':>10s}{'ratio':>8s}{'peer':>10s}")

    def add(name: str, new: float, repeated: float, peer: float | None = None) -> None:
        own = "" if peer is None else f"{peer:10.2f}"
        out.print(f"{name:30s}{new:10.2f}{repeated:10.2f}{new / repeated:8.2f}{own}")
        found.append({"call": name, "new": new, "repeated": repeated, "peer": peer})

    for library in LIBRARIES[device]:
        try:
            for name, figures in calls.new_sizes(library, device):
                add(f"{library}, {name}", *figures)
        except ImportError:
            out.print(f"{library} is not installed")
    if device == Where.CPU:
        add("njit, top_k", *calls.nopython_microseconds())
    if json is not None:
        records.write(json, records.text_of(record))
