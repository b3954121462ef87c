"""Whatever the order of calls: each kind is planned once, and has one answer.

Calls of random kinds are made in turn, in processes that begin with different ones. A kind is what a plan may
depend on: the function, its arguments, and the type and layout of every array. Its outcome, a result with its
type or the text of an error, is the same each time, in all processes; results are those of plain NumPy. There
are never more plans than kinds.
"""

import collections
import contextlib
import enum
import functools
import importlib
import itertools
import json
import os
import random
import warnings

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, float_from_bits
from tests.marks import exhaustive
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each order starts in a forked child")

Pair = collections.namedtuple("Pair", "first second")
One = enum.IntEnum("One", "ONE")
FIELDS = [("a", "<i4"), ("b", "<i4")]
DTYPES = {
    "float32": "float32",
    "int32": "int32",
    "described": np.dtype("int32", metadata={"unit": "m"}),
    "seconds": "M8[s]",
    "described seconds": np.dtype("M8[s]", metadata={"tz": "UTC"}),
    "fields": np.dtype(FIELDS),
    "records": np.dtype((np.record, FIELDS)),
}
LAYOUTS = ("own", "strided", "transposed", "part", "backwards")
NAN, OTHER_NAN = float_from_bits([0x7FC00001, 0xFFC00000], "float32")
AXES = {
    "function": ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix", "built", "execute"),
    "library": ("numpy", "torch"),
    "dtype": tuple(DTYPES),
    "layout": LAYOUTS,
    "indices": ("int64", "int32", "uint32"),
    "index_layout": LAYOUTS[:3],
    # The form in which outputs are given, and the layout of the first.
    "out": (
        "none",
        "plain",
        "list",
        "tuple",
        "pair",
        "nested",
        "empty",
        "generator",
        "one",
        "three",
        "array",
    ),
    "out_layout": LAYOUTS[:4],
    "k": (2, 3, np.int64(2), One.ONE),
    "value": (
        0,
        0.0,
        -0.0,
        1,
        1.0,
        True,
        np.int64(1),
        np.float32(1),
        One.ONE,
        np.inf,
        -np.inf,
        NAN,
        OTHER_NAN,
    ),
    "threads": (1, 2),
    "level": (None, "EXTENDED", "DML_6_4"),
    "workspace": (None, 0, 8, 64, 800),
}
RELEVANT = {
    "top_k": ("indices", "k"),
    "nonzero_coordinates": ("indices",),
    "gather_nd": ("indices", "index_layout"),
    "diagonal_matrix": ("value",),
    "built": ("value",),
    "execute": ("workspace",),
}
COMMON = ("function", "library", "dtype", "layout", "out", "out_layout", "threads", "level")


def drawn(rng, **fixed):
    """Return a kind: a value of each axis that its function depends on."""
    kind = {axis: rng.choice(values) for axis, values in AXES.items()}
    kind["out"] = rng.choice(("none", "plain", "plain", kind["out"]))
    kind["level"] = rng.choice((None, kind["level"]))
    kind.update(fixed)
    function = kind["function"]
    is_opaque = kind["dtype"] not in ("float32", "int32", "described")
    if kind["library"] == "torch" and (is_opaque or kind["dtype"] == "described"):
        kind["dtype"] = "int32"
    if kind["library"] == "torch" and kind["layout"] == "backwards":
        kind["layout"] = "own"
    if function == "execute":
        kind.update(dtype="float32", layout="own", out="plain", out_layout="own", threads=1, level=None)
    if function == "built":
        kind["dtype"] = "float32" if is_opaque else kind["dtype"]
        kind["out"] = "plain" if kind["out"] == "array" else kind["out"]  # which is a batch of matrices
    if function == "diagonal_matrix" and is_opaque:
        kind["value"] = 0
    if function in ("top_k", "nonzero_coordinates") and "s" in kind["dtype"][-7:]:
        kind["dtype"] = "float32"
    if kind["dtype"] in ("int32", "described") and isinstance(kind["value"], (float, np.floating)):
        kind["value"] = 1
    if kind["out"] == "none":
        kind["out_layout"] = "own"
    axes = (*COMMON, *RELEVANT[function])
    return {axis: kind[axis] for axis in AXES if axis in axes}


def name_of(kind):
    """Return a text that tells kinds apart, even if their values are equal."""
    return repr({axis: (type(value).__name__, repr(value)) for axis, value in kind.items()})


def placed(array, layout, library="numpy"):
    """Return an array with the same elements in another layout."""
    if layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
    elif layout == "transposed":
        wide = np.zeros(array.shape[::-1], array.dtype).T
    elif layout == "part":
        wide = np.zeros((len(array) + 1, *array.shape[1:-1], array.shape[-1] + 3), array.dtype)
        wide = wide[: len(array), ..., : array.shape[-1]]
    elif layout == "backwards":
        wide = np.zeros(array.shape, array.dtype)[::-1]
    else:
        wide = np.zeros(array.shape, array.dtype)
    wide[...] = array
    return wide if library == "numpy" else importlib.import_module("torch").from_numpy(wide)


def given(arrays, form, layout, library):
    """Return an argument for ``out``, and the arrays in it if it is one that is accepted."""
    if form == "none":
        return None, None
    layouts = (layout, "own")
    outs = [
        placed(array, where if array.ndim else "own", library)
        for array, where in zip(arrays, layouts, strict=False)
    ]
    is_pair = len(outs) == 2
    plain = tuple(outs) if is_pair else outs[0]
    forms = {
        "plain": plain,
        "list": [*outs],
        "tuple": (*outs,),
        "pair": Pair(*outs) if is_pair else Pair(outs[0], outs[0]),
        "nested": (plain,),
        "empty": (),
        "generator": (array for array in outs),
        "one": outs[0] if is_pair else [outs[0]],
        "three": (*outs, outs[-1]) if is_pair else (outs[0],) * 3,
        "array": np.zeros((2, *arrays[0].shape), arrays[0].dtype),
    }
    is_accepted = form == "plain" or (is_pair and form in ("list", "tuple", "pair"))
    return forms[form], outs if is_accepted else None


def numbers(dtype):
    """Return an array of a type, with ties and zeros."""
    x = np.random.default_rng(5).integers(-2, 3, (6, 8)).astype("int32")
    if dtype.kind == "V":
        return np.stack([x, x + 1], -1).view(np.dtype(FIELDS))[..., 0].astype(dtype)
    return x.astype(dtype)


@functools.cache
def executed():
    """Return a compiled top-k, with its inputs and outputs as NumPy's arrays."""
    x = numbers(np.dtype("float32"))
    desc = dmlops.TensorDesc("FLOAT32", x.shape)
    operator = dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=1, k=2, axis_direction=1))
    values, indices = reference.top_k(x, 2)
    return operator, x, (values, indices.astype("uint32"))


def call_of(kind):
    """Return a call of a kind, what NumPy answers, and the outputs that are given, if they are accepted."""
    function, library = kind["function"], kind["library"]
    dtype = np.dtype(DTYPES[kind["dtype"]])
    if function == "execute":
        operator, x, expected = executed()
        outs = [placed(array, "own", library) for array in expected]
        arrays = dict(zip(operator.outputs, outs, strict=True)) | {"input_tensor": placed(x, "own", library)}
        size = kind["workspace"]
        workspace = (
            None if size is None else placed(np.zeros(operator.workspace_size + size, np.uint8), "own")
        )
        return lambda: operator.execute(arrays, workspace) or tuple(outs), expected, outs
    x = numbers(dtype)
    options = {}
    if function == "top_k":
        expected = list(reference.top_k(x, int(kind["k"])))
    elif function == "nonzero_coordinates":
        expected = list(reference.nonzero_coordinates(x))
    elif function == "gather_nd":
        picks = np.array([[1], [5], [0]])
        expected = [x[picks[:, 0]]]
    else:
        options["value"] = kind["value"]
        plain = x.view("int64") if dtype.kind in "MV" else x
        plain = plain if function == "diagonal_matrix" else np.zeros_like(plain)
        expected = [reference.diagonal_matrix(plain, value=kind["value"]).astype(plain.dtype).view(dtype)]
    if function in ("top_k", "nonzero_coordinates"):
        if kind["out"] == "none":
            options["index_dtype"] = kind["indices"]
        for place in (1,) if function == "top_k" else (0, 1):
            expected[place] = expected[place].astype(kind["indices"])
    out, outs = given(expected, kind["out"], kind["out_layout"], library)
    if kind["out"] != "none":
        options["out"] = out
    arrays = [placed(x, kind["layout"], library)]
    if function == "top_k":
        arrays.append(kind["k"])
    elif function == "gather_nd":
        arrays.append(placed(picks.astype(kind["indices"]), kind["index_layout"], library))
    elif function == "built":
        arrays = []
        if out is None:
            options |= {"shape": x.shape, "dtype": dtype}
    run = getattr(dmlops, "diagonal_matrix" if function == "built" else function)
    return lambda: run(*arrays, **options), expected, outs


def outcome(kind):
    """Make a call of a kind; return the types of its results, or its error, after a look at each element."""
    call, expected, outs = call_of(kind)
    dmlops.set_num_threads(kind["threads"])
    level = kind["level"]
    try:
        with dmlops.feature_level(level) if level else contextlib.nullcontext():
            results = call()
    except (dmlops.DmlError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dmlops.set_num_threads(None)
    is_refused = kind["out"] != "none" and outs is None
    assert not is_refused, results
    results = results if isinstance(results, tuple) else (results,)
    described = []
    for place, (result, array) in enumerate(zip(results, expected, strict=True)):
        assert outs is None or result is outs[place]
        got = np.asarray(result)
        if got.dtype.kind in "MV":
            assert_same(got.view("int64"), array.view("int64"))
        else:
            assert_same(got, array)
        described.append(f"{type(result).__name__} {got.dtype} {got.dtype.type} {got.dtype.metadata}")
    return described


def walk(seed, n_rounds, library):
    """Call kinds that differ in one thing in turn; return the outcome of each kind."""
    n_plans = 0

    def counted(plan):
        def count(problem, target):
            nonlocal n_plans
            n_plans += 1
            return plan(problem, target)

        return count

    for operator in ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix"):
        package = importlib.import_module(f"kernels_cpu.{operator}")
        package.plan = counted(package.plan)
    rng, order = random.Random(7), random.Random(seed)  # the same kinds in other orders
    rounds = []
    for _ in range(n_rounds):
        base = drawn(rng, library=library)
        axis = rng.choice([axis for axis in base if axis not in ("function", "library")])
        others = [drawn(rng, **base | {axis: value}) for value in AXES[axis]]
        rounds.append([base, *rng.sample(others, min(len(others), 4))])
    order.shuffle(rounds)
    outcomes = {}
    for kinds in rounds:
        order.shuffle(kinds)
        for kind in itertools.chain(*[kinds] * 3):
            name = name_of(kind)
            found = outcome(kind)
            assert outcomes.setdefault(name, found) == found, (name, found, outcomes[name])
            assert n_plans <= len(outcomes), f"{n_plans} plans of {len(outcomes)} kinds, the last {name}"
    return outcomes


def print_outcomes(library, seeds, n_rounds):
    """Walk in a child for each seed; print what is wrong in one of them, or differs between them."""
    warnings.simplefilter("ignore", DeprecationWarning)  # the children only run kernels
    importlib.import_module(library)
    answers = []
    for seed in seeds:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = walk(seed, n_rounds, library)
            except BaseException as error:  # the child must not go on as its parent would
                answer = {"": f"{type(error).__name__}: {error}"}
            with open(writer, "w") as file:
                json.dump(answer, file)
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            answers.append(json.load(file))
        os.waitpid(child, 0)
    for seed, answer in zip(seeds, answers, strict=True):
        if "" in answer:
            print(f"seed {seed}: {answer['']}")
        for kind in (answer.keys() & answers[0].keys()) - {""}:
            if answer[kind] != answers[0][kind]:
                print(f"{kind}: {answers[0][kind]}, and after other calls {answer[kind]}")


@pytest.mark.parametrize(("seeds", "n_rounds"), [(range(3), 60), exhaustive(range(20), 400)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_each_kind_has_one_plan_and_one_answer(library, seeds, n_rounds):
    pytest.importorskip(library)
    code = f"""
    from tests.test_call_order import print_outcomes
    print_outcomes({library!r}, {[*seeds]!r}, {n_rounds})
    """
    assert run_script(code) == ""
