"""Which argument of a function works where: in which library, and under which of its transformations.

``python -m tests.argument_places`` tries each argument in each place, compares the answer with that of NumPy
arrays, and writes the table of docs/integrations/index.md.
"""

import atexit
import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import dmlops
from tests.ranks import Ranks
from tests.scripts import ROOT, run_main

PAGE = ROOT / "docs" / "integrations" / "index.md"
BEGIN, END = "<!-- written by python -m tests.argument_places -->\n", "<!-- end -->\n"

# No two elements are equal, so that an element tells where it comes from.
X = np.random.default_rng(0).permutation(24).reshape(3, 8).astype(np.float32) + 100
SPARSE = np.where(X % 2, X, 0)
WITH_NAN = np.where(X.max() == X, np.nan, X)


class Case(NamedTuple):
    """A call with one argument more than it needs: ``function(x, *positional, **options, **arrays)``.

    `flags` is how the command line says it; "" where the table has no such command.
    """

    function: str
    argument: str
    positional: tuple[int, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    arrays: Mapping[str, Any] = MappingProxyType({})
    x: Any = X
    flags: str | None = None


def _out(*shapes_and_types):
    return tuple(np.zeros(*each) for each in shapes_and_types)


_STARTS, _LENGTHS = np.array([1, 0, -2]), np.array([8, 2, 0])
_TUPLES, _FAR = np.array([[2, 5], [-1, 0], [1, -8]]), np.array([[2, 5], [-1, 0], [1, 8]])
_COLUMNS = np.array([[[2], [-1]], [[0], [1]], [[5], [7]]])
_BATCH = {"batch_dims": 1, "mode": "clip"}
_SEEDS = "--seeds seeds.npy"
CASES = [
    Case("top_k", "k", (3,), flags="-k 3"),
    Case("top_k", "axis", (2,), {"axis": 0}, flags="-k 2 --axis 0"),
    Case("top_k", "largest", (3,), {"largest": False}, flags="-k 3 --smallest"),
    Case("top_k", "sorted", (3,), {"sorted": False}),
    Case("top_k", "starts", (3,), {}, {"starts": _STARTS}, flags="-k 3 --starts starts.npy"),
    Case("top_k", "lengths", (3,), {}, {"lengths": _LENGTHS}, flags="-k 3 --lengths lengths.npy"),
    Case(
        "top_k",
        "starts, lengths: segments",
        (3,),
        {},
        {"starts": np.array([0, 9]), "lengths": np.array([9, 2])},
        x=X.ravel(),
        flags="-k 3 --starts starts.npy --lengths lengths.npy",
    ),
    Case(
        "top_k",
        "max_length",
        (3,),
        {"max_length": 4},
        {"starts": _STARTS},
        flags="-k 3 --starts starts.npy --max-length 4",
    ),
    Case(
        "top_k",
        "indices",
        (3,),
        {},
        {"indices": np.arange(24).reshape(3, 8) % 7 - 1},
        flags="-k 3 --indices indices.npy",
    ),
    Case("top_k", "nan_last", (3,), {"nan_last": True}, x=WITH_NAN, flags="-k 3 --nan-last"),
    Case("top_k", "index_dtype", (3,), {"index_dtype": "int32"}, flags="-k 3 --index-dtype int32"),
    Case("top_k", "out", (3,), {}, {"out": _out(((3, 3), np.float32), ((3, 3), np.int64))}),
    Case("nonzero_coordinates", "no size", flags="", x=SPARSE),
    Case("nonzero_coordinates", "size", (), {"size": 5}, x=SPARSE),
    Case("nonzero_coordinates", "fill_value", (), {"size": 30, "fill_value": -1}, x=SPARSE),
    Case(
        "nonzero_coordinates",
        "a fill_value for each column",
        (),
        {"size": 30, "fill_value": (-1, -2)},
        x=SPARSE,
    ),
    Case(
        "nonzero_coordinates",
        "index_dtype",
        (),
        {"index_dtype": "int32"},
        flags="--index-dtype int32",
        x=SPARSE,
    ),
    Case("nonzero_coordinates", "size, index_dtype", (), {"size": 5, "index_dtype": "int32"}, x=SPARSE),
    Case("nonzero_coordinates", "out", (), {}, {"out": _out(((5, 2), np.int64), ((), np.int64))}, x=SPARSE),
    Case("gather_nd", 'mode="raise"', (), {}, {"indices": _TUPLES}, flags=""),
    Case("gather_nd", 'mode="clip"', (), {"mode": "clip"}, {"indices": _FAR}, flags="--mode clip"),
    Case("gather_nd", 'mode="fill"', (), {"mode": "fill"}, {"indices": _FAR}, flags="--mode fill"),
    Case("gather_nd", "batch_dims", (), _BATCH, {"indices": _COLUMNS}, flags="--mode clip --batch-dims 1"),
    Case(
        "gather_nd",
        "fill_value",
        (),
        {"mode": "fill", "fill_value": 99},
        {"indices": _FAR},
        flags="--mode fill --fill-value 99",
    ),
    Case(
        "gather_nd",
        "wrap_negative",
        (),
        {"mode": "fill", "wrap_negative": False},
        {"indices": _FAR},
        flags="--mode fill --no-wrap-negative",
    ),
    Case("gather_nd", "out", (), _BATCH, {"indices": _COLUMNS, "out": np.zeros((3, 2), np.float32)}),
    *[
        Case("sample", name, (), options, {"seeds": np.array([1, 2, 3]), **arrays}, flags=flags)
        for name, options, arrays, flags in (
            ("seeds", {}, {}, _SEEDS),
            ("steps", {}, {"steps": np.array([0, 1, 9])}, f"{_SEEDS} --steps steps.npy"),
            ("temperature", {"temperature": 30.0}, {}, f"{_SEEDS} --temperature 30"),
            (
                "temperature of each row",
                {},
                {"temperature": np.array([0, 9, 99], np.float32)},
                f"{_SEEDS} --temperature temperature.npy",
            ),
            ("k", {"k": 3}, {}, f"{_SEEDS} -k 3"),
            ("k of each row", {}, {"k": np.array([1, 3, 8])}, f"{_SEEDS} -k k.npy"),
            ("top_p", {"top_p": 0.5}, {}, f"{_SEEDS} --top-p 0.5"),
            ("min_p", {"min_p": 0.2}, {}, f"{_SEEDS} --min-p 0.2"),
            ("index_dtype", {"index_dtype": "int32"}, {}, f"{_SEEDS} --index-dtype int32"),
            ("out", {}, {"out": np.zeros(3, np.int64)}, None),
        )
    ],
    Case("diagonal_matrix", "value", (), {"value": 99}, flags="--value 99"),
    Case("diagonal_matrix", "begin, end", (), {"begin": -1, "end": 2}, flags="--begin=-1 --end 2"),
    Case("diagonal_matrix", "out", (), {}, {"out": np.zeros((3, 8), np.float32)}),
]


def each_array(convert, value):
    """Convert an array, or all of a tuple."""
    return tuple(map(convert, value)) if isinstance(value, tuple) else convert(value)


def call(case, x, arrays, module=dmlops):
    """Make the call of a case; index tuples have no name."""
    arrays = dict(arrays)
    positional = [arrays.pop("indices")] if case.function == "gather_nd" else []
    results = getattr(module, case.function)(x, *positional, *case.positional, **case.options, **arrays)
    return results if isinstance(results, tuple) else (results,)


def expected(case, x=None, arrays=None):
    """Return the answer for NumPy arrays."""
    arrays = {name: each_array(np.copy, value) for name, value in (arrays or case.arrays).items()}
    return call(case, case.x if x is None else x, arrays)


def compare(results, wanted):
    """Check that results are equal; their index types may differ."""
    for result, array in zip(results, wanted, strict=True):
        host = result.cpu() if hasattr(result, "cpu") else result
        np.testing.assert_array_equal(np.asarray(host), array)


def _converted(case, convert):
    return convert(case.x), {name: each_array(convert, value) for name, value in case.arrays.items()}


def _stacked(case):
    """Return a batch of two examples, and the answers for both."""
    x = np.stack([case.x, np.flip(case.x, 0)])
    arrays = {
        name: each_array(lambda part: np.stack([part, part]), value) for name, value in case.arrays.items()
    }
    answers = [expected(case, example) for example in x]
    return x, arrays, [np.stack(parts) for parts in zip(*answers, strict=True)]


def in_numpy(case):
    compare(expected(case), expected(case))


def in_torch(case, device="cpu"):
    compare(call(case, *_as_tensors(case, device)), expected(case))


def _as_tensors(case, device):
    import torch

    return _converted(case, partial(torch.tensor, device=device))


def in_torch_with_derivative(case, device="cpu"):
    import torch

    x, arrays = _as_tensors(case, device)
    result = call(case, x.requires_grad_(), arrays)[0]
    weights = torch.arange(1.0, result.numel() + 1, device=device).reshape(result.shape)
    (result * weights).sum().backward()
    np.testing.assert_array_equal(x.grad.cpu(), _gradient(case))


def _gradient(case):
    """Return the gradient of the sum of a result whose elements have the weights 1, 2, ..."""
    gradient, origin = (
        np.zeros(case.x.size),
        {bits: place for place, bits in enumerate(case.x.view(np.int32).flat)},
    )
    for place, bits in enumerate(expected(case)[0].view(np.int32).flat):
        if bits in origin:
            gradient[origin[bits]] += place + 1
    return gradient.reshape(case.x.shape)


def in_torch_compile(case, device="cpu"):
    import torch

    torch.compiler.reset()
    x, arrays = _as_tensors(case, device)
    function = torch.compile(lambda x, arrays: call(case, x, arrays), fullgraph=True, backend="eager")
    compare(function(x, arrays), expected(case))


def in_torch_vmap(case, device="cpu"):
    import torch

    x, arrays, wanted = _stacked(case)
    convert = partial(torch.tensor, device=device)
    arrays = {name: each_array(convert, value) for name, value in arrays.items()}
    compare(torch.func.vmap(lambda x, arrays: call(case, x, arrays))(convert(x), arrays), wanted)


def in_dtensors(case):
    outcomes = _ranks()(_on_each_rank, CASES.index(case))
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    for results in outcomes:
        compare(results, expected(case))


@cache
def _ranks():
    ranks = Ranks(2, Path(tempfile.mkdtemp()))
    atexit.register(ranks.end)
    return ranks


def _on_each_rank(device, number):
    """Make the call with rows, or with index tuples, on two devices."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    case, mesh = CASES[number], init_device_mesh(device, (2,))
    x, arrays = _as_tensors(case, device)
    are_tuples = case.function == "gather_nd" and "batch_dims" not in case.options
    of_x, of_arrays = ([Replicate()], [Shard(0)]) if are_tuples else ([Shard(0)], [Replicate()])
    arrays = {
        name: each_array(lambda part: distribute_tensor(part, mesh, of_arrays), value)
        for name, value in arrays.items()
    }
    results = call(case, distribute_tensor(x, mesh, of_x), arrays)
    return [result.full_tensor().numpy() for result in results]


def in_jax(case):
    import jax.numpy as jnp

    compare(call(case, *_converted(case, jnp.asarray)), expected(case))


def in_jax_jit(case):
    import jax
    import jax.numpy as jnp

    from dmlops.integrations import jax as module

    function = jax.jit(lambda x, arrays: call(case, x, arrays, module))
    compare(function(*_converted(case, jnp.asarray)), expected(case))


def in_jax_vmap(case):
    import jax
    import jax.numpy as jnp

    from dmlops.integrations import jax as module

    x, arrays, wanted = _stacked(case)
    arrays = {name: each_array(jnp.asarray, value) for name, value in arrays.items()}
    compare(jax.vmap(lambda x, arrays: call(case, x, arrays, module))(jnp.asarray(x), arrays), wanted)


def in_jax_with_derivative(case):
    import jax
    import jax.numpy as jnp

    from dmlops.integrations import jax as module

    x, arrays = _converted(case, jnp.asarray)
    result, pull = jax.vjp(lambda x: call(case, x, arrays, module)[0], x)
    weights = jnp.arange(1.0, result.size + 1).reshape(result.shape)
    np.testing.assert_array_equal(pull(weights)[0], _gradient(case))


def in_njit(case):
    import numba

    names = [*case.arrays]
    tuples = ["indices"] if case.function == "gather_nd" else []
    arguments = ["x", *tuples, *map(repr, case.positional)]
    arguments += [f"{name}={value!r}" for name, value in case.options.items()]
    arguments += [f"{name}={name}" for name in names if name not in tuples]
    source = f"lambda {', '.join(['x', *names])}: dmlops.{case.function}({', '.join(arguments)})"
    results = numba.njit(eval(source, {"dmlops": dmlops}))(*_as_list(case))
    compare(results if isinstance(results, tuple) else (results,), expected(case))


def _as_list(case):
    x, arrays = _converted(case, np.copy)
    return [x, *arrays.values()]


def in_dask(case):
    import dask.array as da

    from dmlops.integrations import dask

    chunks = (2, -1) if case.function == "sample" else 4  # a token depends on its whole row
    x, arrays = da.from_array(case.x, chunks=chunks), _converted(case, np.copy)[1]
    results = call(case, x, arrays, dask)
    compare([result.compute(scheduler="sync") for result in results], expected(case))


COMMANDS = {
    "top_k": "top-k",
    "nonzero_coordinates": "nonzero",
    "gather_nd": "gather",
    "sample": "sample",
    "diagonal_matrix": "diagonal",
}


def on_the_command_line(case):
    if case.flags is None:
        message = "no option"
        raise TypeError(message)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        np.save("x.npy", case.x)
        for name, array in case.arrays.items():
            np.save(f"{name}.npy", array)
        files = ["x.npy", "indices.npy"] if case.function == "gather_nd" else ["x.npy"]
        command = [COMMANDS[case.function], *files, *case.flags.split(), "--device", "cpu", "-o", "y.npz"]
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            code = run_main("dmlops", *command)
        if code:
            message = "the command refuses it"
            raise TypeError(message)
        with np.load("y.npz") as found:
            compare([found[name] for name in found.files], expected(case))


PLACES = {
    "NumPy": in_numpy,
    "torch": in_torch,
    "torch's derivative": in_torch_with_derivative,
    "`torch.compile`": in_torch_compile,
    "`torch.func.vmap`": in_torch_vmap,
    "DTensor": in_dtensors,
    "JAX": in_jax,
    "JAX's derivative": in_jax_with_derivative,
    "`jax.jit`": in_jax_jit,
    "`jax.vmap`": in_jax_vmap,
    "`njit`": in_njit,
    "Dask": in_dask,
    "command line": on_the_command_line,
}
WITHOUT_DERIVATIVE = {"nonzero_coordinates", "sample"}


def works(case, place, **options):
    """Return whether a call works in a place; a wrong answer is an error."""
    if "derivative" in place and case.function in WITHOUT_DERIVATIVE:
        return False
    try:
        PLACES[place](case, **options)
    except AssertionError:
        raise
    except Exception as error:  # each library has its own for what it does not take
        print(
            f"{case.function} {case.argument}, {place}: {type(error).__name__}: {str(error).strip()[-300:]}",
            file=sys.stderr,
        )
        return False
    return True


def table():
    """Return the table, as the page has it."""
    lines = [f"| | {' | '.join(PLACES)} |", f"| --- |{' :-: |' * len(PLACES)}"]
    function = None
    for case in CASES:
        if case.function != function:
            function = case.function
            lines.append(f"| **`{function}`** |{' |' * len(PLACES)}")
        cells = ["yes" if works(case, place) else "" for place in PLACES]
        lines.append(f"| {case.argument} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def listed():
    """Return the calls that work, as the page says: pairs of a case and a place."""
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "**" not in line
    ]
    header, _, *lines = [row for row in rows if row]
    assert [line[0] for line in lines] == [case.argument for case in CASES]
    return [
        (case, place)
        for case, line in zip(CASES, lines, strict=True)
        for place, cell in zip(header[1:], line[1:], strict=True)
        if cell == "yes"
    ]


def main():
    """Write the table into the page."""
    with warnings.catch_warnings(action="ignore"):
        made = table()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    Path(PAGE).write_text(f"{before}{BEGIN}{made}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
