"""`dmlops onnx`: run a model in ONNX's reference evaluator, with dmlops for the nodes that it supports."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from dmlops.cli import console, outputs
from dmlops.cli.errors import CommandError, reason_of, users_errors
from dmlops.cli.inputs import FILE_HELP, Array, npz_names, open_input, split_name
from dmlops.cli.numbers import duration
from dmlops.cli.outputs import OutputOption, results_for
from dmlops.errors import DmlError, counted, instance_of

if TYPE_CHECKING:
    from dmlops.integrations.onnx import NodeRun

ONNX_EXTRA = 'pip install "dmlops[onnx]"'


def onnx(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.onnx", help="The file of the model.", show_default=False)
    ],
    *,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            show_default=False,
            help=f"The value of an input; without NAME, in the model's order; may be repeated. {FILE_HELP}",
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Run an ONNX model on the CPU, and say which of its nodes dmlops runs."""
    models = _models()
    try:
        loaded = models.load_model(model)
    except (OSError, DmlError) as error:
        message = f"{model}: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        raise CommandError(message) from error
    files = [_split(text) for text in given or ()]
    outputs.check(output, [model, *(file for _, file in files)], len(loaded.graph.output))
    values = _read(files, models.inputs_of(loaded))
    start = time.perf_counter()
    with users_errors(str(model)), console.spinner():
        try:
            run = models.run_model(loaded, values)
        except (DmlError, OSError, MemoryError):
            raise
        except Exception as error:  # the evaluator raises many kinds
            message = f"{model}: ONNX's reference evaluator cannot run it: {reason_of(error)}"
            raise CommandError(message) from error
    seconds = time.perf_counter() - start
    if output is not None:
        with results_for(output) as results:
            for name, value in run.outputs.items():
                array = _as_array(name, value, output)
                results.put(name, array.shape, (), array)
    n_ours = sum(node.ran_by == "dmlops" for node in run.nodes)
    title = f"{model.name}: dmlops ran {n_ours} of {counted(len(run.nodes), 'node')}"
    where = f" (CPU, {duration(seconds)} with compilation or loading)"
    with outputs.summary(output, next(iter(run.outputs))) as out:
        out.print(Text.assemble((title, "bold"), where))
        for line in _lines(run.nodes):
            out.print(line)
        for name, value in run.outputs.items():
            outputs.show(out, name, value, is_written=output is not None)


def _models() -> Any:
    """Import what runs models.

    Raises
    ------
    CommandError
        If the extra is not installed.
    """
    try:
        from dmlops.integrations.onnx import models  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if error.name not in {"onnx", "ml_dtypes"}:
            raise
        message = f"onnx: this needs {error.name}: {ONNX_EXTRA}"
        raise CommandError(message) from error
    return models


def _split(text: str) -> tuple[str, Path]:
    """Return the name and the file of NAME=FILE; the name is "" where it is left out."""
    name, equals, file = text.partition("=")
    return (name, Path(file)) if equals and not Path(text).exists() else ("", Path(text))


def _read(files: Sequence[tuple[str, Path]], names: Sequence[str]) -> dict[str, Array]:
    """Return the values of inputs by name."""
    values: dict[str, Array] = {}
    for given_name, file in files:
        for array_name, array in _arrays(given_name, file, names):
            name = array_name or next((each for each in names if each not in values), "")
            if not name:
                told = ", ".join(names) or "none"
                message = f"--input {file}: the model has no further input; its inputs are {told}"
                raise CommandError(message)
            if name in values:
                message = f"--input {file}: input {name} has a value already"
                raise CommandError(message)
            values[name] = array
    return values


def _arrays(name: str, file: Path, names: Sequence[str]) -> Iterator[tuple[str, Array]]:
    """Yield the array of a file, or those of an .npz that has arrays of the names of inputs."""
    path, part = split_name(file)
    if not (name or part) and path.suffix == ".npz" and path.is_file():
        with users_errors(str(path)):
            held = npz_names(path)
        if set(held) & set(names):
            for each in held:
                yield each, open_input(Path(f"{path}:{each}")).read()
            return
    yield name, open_input(file).read()


def _as_array(name: str, value: Any, output: Path) -> Array:
    if not isinstance(value, (np.ndarray, np.generic)):
        message = f"-o {output}: output {name} is {instance_of(value)}, and not an array; leave -o out"
        raise CommandError(message)
    array = np.asarray(value)
    # ONNX's strings are objects, which NumPy would pickle.
    array = array.astype(str) if array.dtype == object else array
    outputs.check_type(output, array.dtype)
    return array


def _lines(nodes: Sequence["NodeRun"]) -> Iterator[str]:
    """Yield a line for each node, but only one for all nodes of an operator that dmlops does not have."""
    from dmlops.integrations.onnx.models import NO_OPERATOR  # noqa: PLC0415 - needs the extra

    for node in nodes:
        if node.reason != NO_OPERATOR:
            yield f" {node.ran_by:<7}  {node.operator} {node.name}{node.reason and f': {node.reason}'}"
    for operator, count in Counter(node.operator for node in nodes if node.reason == NO_OPERATOR).items():
        yield f" onnx     {operator}, {counted(count, 'node')}: {NO_OPERATOR}"
