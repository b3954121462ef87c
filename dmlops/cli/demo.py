"""`dmlops demo`: four operators on a photo and on word embeddings, checked and timed against NumPy."""

import time
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import dmlops
from dmlops.cli.console import duration, err, out
from dmlops.cli.ending import CommandError, fail
from dmlops.cli.placement import Cuda, Device, Host, cuda_devices, place

Array = np.ndarray
Result = TypeVar("Result")
Arrays = tuple[Array, ...]

DARK = 2000  # the light of a 9 x 9 patch that shows only sky and noise
PATCH = 9
SURROUNDINGS = 15
CUT_OUT = 24
SHADES = " .:-=+*#%@"
CONTRAST = 1.5
QUERIES = ("galaxy", "volcano", "violin", "bread", "doctor", "island")
ENOUGH_SECONDS = 0.3


class Step(NamedTuple):
    """One operator on one input, with the plain NumPy function that must give the same answer."""

    task: str
    operator: str
    inputs: Arrays
    run: Callable[..., tuple[object, ...]]
    reference: Callable[..., Arrays]


class Outcome(NamedTuple):
    """The result of a step on one device."""

    seconds: float
    right: bool
    answer: Arrays


def demo(
    device: Annotated[Device, typer.Option(help="auto: the CPU, and a GPU if there is one.")] = Device.AUTO,
) -> None:
    """Run four operators on a photo and on word embeddings, and check them against NumPy."""
    places, why_no_gpu = _places(device)
    photo, words, vectors = _data()
    out.print(
        f"[bold]A photo[/bold]: the Hubble Extreme Deep Field, {photo.shape[0]} x {photo.shape[1]} pixels.\n"
        f"[bold]Embeddings[/bold]: {len(words):,} English nouns as vectors of {vectors.shape[1]} numbers "
        f"(all-MiniLM-L6-v2).\n",
        markup=True,
    )
    steps = _steps(photo, vectors @ vectors.T)
    numpy_times = [_time(step.reference, Host(), step.inputs)[0] for step in steps]
    outcomes: dict[str, list[Outcome]] = {}
    for there in places:
        with err.status(f"running on the {there.label} ..."):
            outcomes[there.label] = [_outcome(step, there) for step in steps]

    answers = [outcome.answer for outcome in outcomes[places[0].label]]
    if all(outcome.right for outcome in outcomes[places[0].label]):
        _tell(answers, words)
    out.print(_table(steps, numpy_times, outcomes))
    _conclude(outcomes)
    if why_no_gpu:
        out.print(f"No GPU took part: {why_no_gpu}.")


def _places(device: Device) -> tuple[list[Host], str]:
    """Return the place where the demo runs, and why it is not a GPU; "" if it is, or none was asked for."""
    if device is not Device.AUTO:
        return [place(device)], ""
    try:
        cuda_devices()
    except CommandError as error:
        return [Host()], str(error)
    return [Host(), Cuda()], ""


def _data() -> tuple[Array, Array, Array]:
    folder = files("dmlops") / "data"
    with (folder / "hubble_deep_field.npz").open("rb") as stream, np.load(stream) as archive:
        photo = archive["photo"]
    with (folder / "words.npz").open("rb") as stream, np.load(stream) as archive:
        return photo, archive["words"].astype(str), archive["vectors"].astype(np.float32)


def _sources(photo: Array) -> Array:
    """Return the light around each pixel that is brighter than its surroundings, and 0 everywhere else."""
    patches = np.lib.stride_tricks.sliding_window_view(photo, (PATCH, PATCH))
    light = patches.sum(axis=(2, 3), dtype=np.uint32)
    surroundings = np.lib.stride_tricks.sliding_window_view(light, (SURROUNDINGS, SURROUNDINGS))
    margin = SURROUNDINGS // 2
    light = light[margin:-margin, margin:-margin]
    is_source = (light == surroundings.max(axis=(2, 3))) & (light > DARK)
    sources = np.zeros(photo.shape, np.uint32)
    margin += PATCH // 2
    sources[margin:-margin, margin:-margin] = np.where(is_source, light, 0)
    return sources


def _steps(photo: Array, similarity: Array) -> list[Step]:
    """Return the steps. Plain NumPy computes the input of a later step from the earlier ones."""
    sources = _sources(photo)
    offsets = np.indices((CUT_OUT, CUT_OUT)).transpose(1, 2, 0) - CUT_OUT // 2
    pixels = np.argwhere(sources)[:, None, None, :] + offsets
    pixels = pixels.clip(0, np.array(photo.shape) - 1).astype(np.uint32)
    light = sources[sources > 0]
    barred = _barred(similarity)
    return [
        Step(
            "find the galaxies",
            "nonzero_coordinates",
            (sources,),
            lambda sources: (dmlops.nonzero_coordinates(sources).coordinates,),
            lambda sources: (np.argwhere(sources),),
        ),
        Step(
            "cut each one out",
            "gather_nd",
            (photo, pixels),
            lambda photo, pixels: (dmlops.gather_nd(photo, pixels),),
            lambda photo, pixels: (photo[pixels[..., 0], pixels[..., 1]],),
        ),
        Step(
            "select the brightest",
            "top_k",
            (light,),
            lambda light: tuple(dmlops.top_k(light, 3)),
            lambda light: _stable_top(light, 3),
        ),
        Step(
            "exclude self-matches",
            "diagonal_matrix",
            (similarity,),
            lambda similarity: (dmlops.diagonal_matrix(similarity, value=-np.inf),),
            lambda similarity: (_barred(similarity),),
        ),
        Step(
            "nearest words",
            "top_k",
            (barred,),
            lambda barred: tuple(dmlops.top_k(barred, 4)),
            lambda barred: _stable_top(barred, 4),
        ),
    ]


def _stable_top(x: Array, k: int) -> Arrays:
    """Return the k largest elements along the last axis and their indices, ties by ascending index."""
    ascending = x if x.dtype.kind == "f" else x.astype(np.int64)
    indices = np.argsort(-ascending, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, indices, axis=-1), indices


def _barred(similarity: Array) -> Array:
    barred = similarity.copy()
    np.fill_diagonal(barred, -np.inf)
    return barred


def _tell(answers: list[Arrays], words: Array) -> None:
    """Print the findings of the operators."""
    (coordinates,), (cut_outs,), (_, brightest), _, (_, nearest) = answers
    out.print(
        f"[cyan]nonzero_coordinates[/cyan] finds {len(coordinates):,} stars and galaxies, "
        f"[cyan]gather_nd[/cyan] cuts each one out,\nand [cyan]top_k[/cyan] selects the brightest:\n",
        markup=True,
    )
    out.print(_pictures(cut_outs[brightest], coordinates[brightest]))
    out.print(
        "\n[cyan]diagonal_matrix[/cyan] keeps every word from being its own neighbour, "
        "and [cyan]top_k[/cyan]\nfinds the nearest words:\n",
        markup=True,
    )
    for query in QUERIES:
        row = np.searchsorted(words, query)
        out.print(f"  {query:>8}: {', '.join(words[nearest[row]])}")


def _pictures(cut_outs: Array, coordinates: Array) -> str:
    """Draw the cut-outs side by side in characters, with two rows of pixels per line."""
    lines = cut_outs.reshape(len(cut_outs), CUT_OUT // 2, 2, CUT_OUT).mean(axis=2)
    shades = np.array(list(SHADES))[((lines / 256) ** CONTRAST * len(SHADES)).astype(int)]
    drawn = ["  " + "  ".join("".join(cut_out[row]) for cut_out in shades) for row in range(CUT_OUT // 2)]
    captions = (f"row {y}, column {x}".center(CUT_OUT) for y, x in coordinates)
    return "\n".join([*drawn, "  " + "  ".join(captions)])


def _outcome(step: Step, there: Host) -> Outcome:
    placed = [there.put(array) for array in step.inputs]
    seconds, result = _time(step.run, there, placed)
    answer = tuple(there.get(array) for array in result)
    expected = step.reference(*step.inputs)
    return Outcome(seconds, list(map(_exactly, answer)) == list(map(_exactly, expected)), answer)


def _exactly(array: Array) -> tuple[object, ...]:
    return array.dtype, array.shape, array.tobytes()


def _time(function: Callable[..., Result], there: Host, arguments: Iterable[object]) -> tuple[float, Result]:
    """Return the seconds of the best of several calls, and the result."""
    durations: list[float] = []
    while len(durations) < 3 or (sum(durations[1:]) < ENOUGH_SECONDS and len(durations) < 100):
        start = time.perf_counter()
        result = function(*arguments)
        there.wait()
        durations.append(time.perf_counter() - start)
    return min(durations), result


def _table(steps: list[Step], numpy_times: list[float], outcomes: dict[str, list[Outcome]]) -> Table:
    table = Table("task", box=SIMPLE_HEAD)
    table.add_column("operator", style="cyan")
    table.add_column("NumPy", justify="right")
    for name in outcomes:
        table.add_column(name, justify="right", style="bold")
    table.add_column("same", justify="center")
    for index, step in enumerate(steps):
        here = [results[index] for results in outcomes.values()]
        right = all(outcome.right for outcome in here)
        table.add_row(
            step.task,
            step.operator,
            duration(numpy_times[index]),
            *(duration(outcome.seconds) for outcome in here),
            Text("yes", "green") if right else Text("NO", "red"),
        )
    return table


def _conclude(outcomes: dict[str, list[Outcome]]) -> None:
    wrong = sum(not outcome.right for results in outcomes.values() for outcome in results)
    if wrong:
        fail(f"demo: {wrong} of these answers differ from NumPy's; please report it, with `dmlops info`")
    out.print(
        "Times are the best of several calls. NumPy: argwhere, fancy indexing, stable argsort, fill_diagonal."
    )
    n_answers = sum(len(results) for results in outcomes.values())
    out.print(f"All {n_answers} answers equal NumPy's, bit for bit.", style="green")
