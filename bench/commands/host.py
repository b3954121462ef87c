"""`python -m bench host`: measure the host time of small calls.

Each figure is the shortest mean of many short rounds, which other work on the machine seldom disturbs. On a
GPU, it is the time until the call returns.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dmlops
from bench import new_sizes
from bench.commands.measuring import Where, json_option, new_record, text_of, write
from bench.timing import HostClock, Lane, warm_up
from dmlops import (
    AxisDirection,
    DiagonalMatrix1,
    GatherND1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from dmlops.cli.console import out

ROUNDS = 200
NEW_SHAPES = 150
CLOCK = HostClock(threads=1)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 64)).astype("float32")
INDICES = RNG.integers(0, 4, (6, 1))
# Each function is called with these.
INPUTS = {
    "top_k": (X,),
    "nonzero_coordinates": (np.where(RNG.random(X.shape) < 0.2, X, np.float32(0)),),
    "gather_nd": (X, INDICES),
    "diagonal_matrix": (X,),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "top_k": functools.partial(dmlops.top_k, k=5),
    "nonzero_coordinates": dmlops.nonzero_coordinates,
    "gather_nd": dmlops.gather_nd,
    "diagonal_matrix": functools.partial(dmlops.diagonal_matrix, value=3),
}


def microseconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the shortest mean time of a call over many short rounds."""
    lane = Lane(call)
    warm_up(lane, CLOCK)
    best = float("inf")
    for _ in range(ROUNDS):
        wait()
        best = min(best, CLOCK.sample(lane).work)
    return best * 1e6


def kinds(x: Any, convert: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of arrays of equal elements, and the arrays."""
    yield "owner", convert(x.copy())
    yield "view", convert(np.stack([x, x]))[1]
    yield "strided", convert(np.repeat(x, 2, -1))[..., ::2]


def new_shape_microseconds(name: str, convert: Callable[[Any], Any]) -> float:
    """Return the shortest time of the first call of a shape."""
    best = float("inf")
    for number in range(NEW_SHAPES):
        x = RNG.standard_normal((3, 70 + number)).astype("float32")
        indices = RNG.integers(0, 3, (7 + number, 1))
        given = [convert(array) for array in ((x, indices) if name == "gather_nd" else (x,))]
        best = min(best, CLOCK.sample(Lane(functools.partial(FUNCTIONS[name], *given))).work)
    return best * 1e6


def execution(name: str, device: str, convert: Callable[[Any], Any]) -> Callable[[], None]:
    """Return an execution of the compiled operator on arrays that fit it."""
    x = TensorDesc(TensorDataType.FLOAT32, X.shape)
    indices = TensorDesc(TensorDataType.INT64, INDICES.shape)
    descriptors = {
        "top_k": TopK1(input_tensor=x, axis=1, k=5, axis_direction=AxisDirection.DECREASING),
        "nonzero_coordinates": NonzeroCoordinates(input_tensor=x),
        "gather_nd": GatherND1(
            input_tensor=x,
            indices_tensor=indices,
            input_dimension_count=2,
            indices_dimension_count=2,
            batch_dimension_count=0,
        ),
        "diagonal_matrix": DiagonalMatrix1(
            input_tensor=x, value=3, diagonal_fill_begin=0, diagonal_fill_end=1
        ),
    }
    operator = dmlops.compile(descriptors[name], device=device)
    arrays = dict(zip(operator.inputs, INPUTS[name], strict=True))
    for field, desc in operator.outputs.items():
        arrays[field] = np.empty(desc.sizes, desc.data_type.name.lower())
    tensors = {field: convert(array) for field, array in arrays.items()}
    return lambda: operator.execute(tensors)


def rows(library: str, device: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each function's figures by what it is called on."""
    wait: Callable[[], None] = lambda: None  # noqa: E731
    convert: Callable[[Any], Any] = np.asarray
    if library == "torch":
        import torch  # noqa: PLC0415

        convert = lambda array: torch.from_numpy(array).to(device)  # noqa: E731
        if device == "cuda":
            wait = torch.cuda.synchronize
    for name, function in FUNCTIONS.items():
        x, *rest = map(convert, INPUTS[name])
        figures = {}
        for kind, array in kinds(INPUTS[name][0], convert):
            figures[kind] = microseconds(functools.partial(function, array, *rest), wait)
        # Coordinates that are given have a row for each element.
        size = {"size": X.size} if name == "nonzero_coordinates" else {}
        out = function(x, *rest, **size)
        figures["out given"] = microseconds(functools.partial(function, x, *rest, out=out), wait)
        figures["compiled"] = microseconds(execution(name, device, convert), wait)
        figures["new shape"] = new_shape_microseconds(name, convert)
        yield name, figures


def measure_new_sizes(device: str, json: Path | None) -> None:
    """Print the time of calls of new sizes, of repeated ones, and of the library's own function."""
    record = new_record(device, threads=1)
    found = record["new_sizes"] = []
    out.print(f"{'microseconds':30s}{'new size':>10s}{'repeated':>10s}{'ratio':>8s}{'peer':>10s}")
    for library in ("numpy", "torch") if device == Where.CPU else ("torch",):
        try:
            for name, (new, repeated, peer) in new_sizes.rows(library, device):
                figures = f"{new:10.2f}{repeated:10.2f}{new / repeated:8.2f}{peer:10.2f}"
                out.print(f"{library + ', ' + name:30s}{figures}")
                found.append({"call": f"{library}, {name}", "new": new, "repeated": repeated, "peer": peer})
        except ImportError:
            out.print(f"{library} is not installed")
    if device == Where.CPU:
        many, one = (1e3 * each / len(new_sizes.LENGTHS) for each in new_sizes.nopython_milliseconds())
        out.print(f"{'njit, top_k':30s}{many:10.2f}{one:10.2f}{many / one:8.2f}")
        found.append({"call": "njit, top_k", "new": many, "repeated": one, "peer": None})
    if json is not None:
        write(json, text_of(record))


def host(
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    new: Annotated[
        bool, typer.Option("--new-sizes", help="Call with sizes that were not seen before.")
    ] = False,
    json: Annotated[Path | None, json_option("Write the figures of new sizes to this file.")] = None,
) -> None:
    """Measure the host time of small calls, in microseconds: the cost of a call around its kernel."""
    if new:
        measure_new_sizes(device, json)
        return
    for library in ("numpy", "torch") if device == Where.CPU else ("torch",):
        heads: list[str] = []
        try:
            for name, figures in rows(library, device):
                if not heads:
                    heads = list(figures)
                    out.print(f"{library + ' on ' + device:20s}" + "".join(f"{head:>11s}" for head in heads))
                out.print(f"{name:20s}" + "".join(f"{figures[head]:11.2f}" for head in heads))
        except ImportError:
            out.print(f"{library} is not installed")
