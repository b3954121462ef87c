"""The cache of calls: a call has the outcome that it has alone, whatever calls came before it.

Calls that differ in one thing are made in turn, for each thing, from a call that hypothesis chooses. Each
sequence runs in a forked child of a process that has made no call, and so does each kind of call alone. A
kind is what a plan may depend on: the function, its arguments, and the type and layout of every array. Its
outcome is a result with its type, compared bit by bit with plain NumPy, or the text of an error. From the
second call of a kind on, whatever its elements are, nothing may be planned, imported or opened.
"""

import collections
import contextlib
import enum
import functools
import importlib
import itertools
import json
import os
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dmlops
from tests import reference
from tests.data import assert_same, float_from_bits
from tests.kept_calls import known_calls, nothing_known, plans_counted, python_calls
from tests.marks import exhaustive, nightly
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each sequence runs in a forked child")

Pair = collections.namedtuple("Pair", "first second")
One = enum.IntEnum("One", "ONE")
FIELDS = [("a", "<i4"), ("b", "<i4")]
DTYPES = {
    "float32": "float32",
    "int32": "int32",
    "float64": "float64",
    "described": np.dtype("int32", metadata={"unit": "m"}),
    "seconds": "M8[s]",
    "described seconds": np.dtype("M8[s]", metadata={"tz": "UTC"}),
    "fields": np.dtype(FIELDS),
    "records": np.dtype((np.record, FIELDS)),
}
NUMBERS = ("float32", "int32", "float64", "described")
LAYOUTS = ("own", "strided", "transposed", "part", "backwards", "locked", "unaligned")
OUTS = ("plain", "list", "tuple", "pair", "nested", "empty", "generator", "one", "three", "array")
NAN, OTHER_NAN = float_from_bits([0x7FC00001, 0xFFC00000], "float32")
AXES = {
    "function": ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix", "built", "execute"),
    "dtype": tuple(DTYPES),
    "layout": LAYOUTS,
    # A kernel runs within the native call, is run by it, or runs after it.
    "shape": ((6, 8), (8, 6), (6, 2, 4), (150, 160)),
    "indices": ("int64", "int32", "uint32", "uint64"),
    "index_layout": LAYOUTS[:3],
    # The form in which outputs are given, and the layout of the first.
    "out": (None, *OUTS),
    "out_layout": LAYOUTS[:4],
    "k": (2, 3, np.int64(2), One.ONE),
    "axis": (-1, 0),
    "largest": (True, False),
    "sorted": (True, False),
    "lengths": (None, "int64", "int32", "uint32"),
    "starts": (None, "int64", "int32"),
    "max_length": (None, 3, 5),
    "numbers": (None, "int64", "uint32"),
    "nan_last": (False, True),
    "size": (None, 0, 5, 48, 60),
    "fill_value": (None, -1, 5),
    "mode": ("raise", "clip", "fill"),
    "batch_dims": (0, 1),
    "value": (0, 0.0, -0.0, 1, 1.0, True, np.int64(1), np.float32(1), One.ONE, np.inf, NAN, OTHER_NAN),
    "begin": (0, -1, 2),
    "end": (1, 2, -1),
    "threads": (1, 2),
    "level": (None, "EXTENDED", "DML_6_4", "DML_1_0"),
    "operator": ("top_k", "nonzero_coordinates"),
    "workspace": (None, 0, 8, 64, 800),
}
COMMON = ("function", "dtype", "layout", "shape", "out", "out_layout", "threads", "level")
RELEVANT = {
    "top_k": (
        *COMMON,
        "indices",
        "k",
        "axis",
        "largest",
        "sorted",
        "lengths",
        "starts",
        "max_length",
        "numbers",
        "nan_last",
    ),
    "nonzero_coordinates": (*COMMON, "indices", "size", "fill_value"),
    "gather_nd": (*COMMON, "indices", "index_layout", "mode", "batch_dims"),
    "diagonal_matrix": (*COMMON, "value", "begin", "end"),
    "built": (*COMMON[:1], "dtype", *COMMON[3:], "value", "begin", "end"),
    "execute": ("function", "operator", "layout", "workspace"),
}


def settled(kind, library):
    """Return the kind with what is possible in place of what is not."""
    kind = dict(kind)
    function, is_opaque = kind["function"], kind["dtype"] not in NUMBERS
    if library == "torch":
        kind["dtype"] = "int32" if is_opaque or kind["dtype"] == "described" else kind["dtype"]
        kind["layout"] = kind["layout"] if kind["layout"] in LAYOUTS[:4] else "own"
    if function in ("top_k", "nonzero_coordinates") and kind["dtype"] not in NUMBERS:
        kind["dtype"] = "float32"
    if function == "built":
        kind["dtype"] = "float32" if is_opaque else kind["dtype"]
        kind["out"] = "plain" if kind["out"] == "array" else kind["out"]  # which is a batch of matrices
    if function == "diagonal_matrix" and is_opaque:
        kind["value"] = 0
    if kind["dtype"] in ("int32", "described") and isinstance(kind["value"], (float, np.floating)):
        kind["value"] = 1
    if function == "execute":
        kind["layout"] = kind["layout"] if kind["layout"] in ("own", "locked") else "own"
    if kind["size"] is None or kind["indices"].startswith("u"):
        kind["fill_value"] = None
    if kind["out"] is None:
        kind["out_layout"] = "own"
    elif function == "nonzero_coordinates":
        kind["size"] = kind["fill_value"] = None
    return {axis: kind[axis] for axis in RELEVANT[function]}


def bases(function):
    """Return a strategy for calls of a function. The simplest one is given outputs."""
    drawn = {axis: st.sampled_from(values) for axis, values in AXES.items()}
    drawn["function"] = st.just(function)
    drawn["out"] = st.sampled_from(("plain", None, *OUTS))
    return st.fixed_dictionaries(drawn)


def name_of(kind):
    """Return a text that tells kinds apart, even if their values are equal."""
    return repr({axis: (type(value).__name__, repr(value)) for axis, value in kind.items()})


def placed(array, layout, library="numpy"):
    """Return an array with the same elements in another layout."""
    shape, dtype = array.shape, array.dtype
    if layout == "strided":
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    elif layout == "transposed":
        wide = np.zeros(shape[::-1], dtype).T
    elif layout == "part":
        wide = np.zeros((len(array) + 1, *shape[1:-1], shape[-1] + 3), dtype)[: len(array), ..., : shape[-1]]
    elif layout == "backwards":
        wide = np.zeros(shape, dtype)[::-1]
    elif layout == "unaligned":
        wide = np.zeros(array.nbytes + 1, np.uint8)[1:].view(dtype).reshape(shape)
    else:
        wide = np.zeros(shape, dtype)
    wide[...] = array
    wide.flags.writeable = layout != "locked"
    return wide if library == "numpy" else importlib.import_module("torch").from_numpy(wide)


def given_as(arrays, form, layout, library):
    """Return an argument for ``out``, and the arrays in it if it is one that is accepted."""
    outs = [
        placed(array, where if array.ndim else "own", library)
        for array, where in zip(arrays, (layout, "own"), strict=False)
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


def numbers(shape, dtype, number):
    """Return an array of a type: zeros in a first call, ties and zeros in later ones."""
    x = np.random.default_rng(number).integers(-2, 3, shape).astype("int32") * (number > 0)
    if dtype.kind == "V":
        return np.stack([x, x + 1], -1).view(np.dtype(FIELDS))[..., 0].astype(dtype)
    return x.astype(dtype)


@functools.cache
def compiled(operator):
    """Return a compiled operator of a matrix."""
    desc = dmlops.TensorDesc("FLOAT32", (6, 8))
    if operator == "top_k":
        return dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=1, k=2, axis_direction=1))
    return dmlops.compile(dmlops.NonzeroCoordinates(input_tensor=desc))


def execution_of(kind, number, library):
    """Return an execution, what NumPy answers, and the outputs."""
    operator, x = compiled(kind["operator"]), numbers((6, 8), np.dtype("float32"), number)
    if kind["operator"] == "top_k":
        expected = list(reference.top_k(x, 2))
    else:
        expected = [*reference.nonzero_coordinates(x, size=48)][::-1]
        expected[0] = expected[0].reshape(1, 1)
    expected = [
        array.astype(desc.data_type.name.lower())
        for array, desc in zip(expected, operator.outputs.values(), strict=True)
    ]
    outs = [placed(np.zeros_like(array), "own", library) for array in expected]
    arrays = dict(zip(operator.outputs, outs, strict=True))
    arrays["input_tensor"] = placed(x, kind["layout"], library)
    size = kind["workspace"]
    workspace = None if size is None else placed(np.zeros(operator.workspace_size + size, np.uint8), "own")
    return lambda: operator.execute(arrays, workspace) or tuple(outs), expected, outs


def call_of(kind, number, library):
    """Return a call of a kind, what NumPy answers, and the outputs that are given, if they are accepted."""
    if kind["function"] == "execute":
        return execution_of(kind, number, library)
    function, dtype, options = kind["function"], np.dtype(DTYPES[kind["dtype"]]), {}
    x = numbers(kind["shape"], dtype, number)
    arrays = [placed(x, kind.get("layout", "own"), library)]
    is_typed = kind["out"] is None
    if function == "top_k":
        options = {name: kind[name] for name in ("axis", "largest", "sorted", "nan_last")}
        rng, rows = np.random.default_rng(number), np.delete(x.shape, kind["axis"])
        for name in ("lengths", "starts"):
            if kind[name] is not None:
                options[name] = rng.integers(0, 9, rows).astype(kind[name])
                options["max_length"] = kind["max_length"]
        if kind["numbers"] is not None:
            options["indices"] = rng.integers(0, 99, x.shape).astype(kind["numbers"])
        expected = list(reference.top_k(x, int(kind["k"]), **options))
        arrays.append(kind["k"])
    elif function == "nonzero_coordinates":
        options = {name: kind[name] for name in ("size", "fill_value") if kind[name] is not None}
        if not is_typed:  # outputs for as many rows as there can be
            expected = list(reference.nonzero_coordinates(x, size=x.size))
        else:
            expected = list(reference.nonzero_coordinates(x, **options))
    elif function == "gather_nd":
        batch, bad = kind["batch_dims"], number == 2
        rows = x.shape[0] if batch else 3
        bound = x.shape[batch]
        picks = np.random.default_rng(number).integers(0, bound, (rows, 1)) + bad * bound
        picks = picks.astype(kind["indices"])
        options = {"mode": kind["mode"], "batch_dims": batch}
        expected = [
            reference.gather_nd(
                x, picks, batch_dims=batch, mode="clip" if bad and kind["mode"] == "raise" else kind["mode"]
            )
        ]
        arrays.append(placed(picks, kind["index_layout"], library))
    else:
        options = {name: kind[name] for name in ("value", "begin", "end")}
        plain = x.view("int64") if dtype.kind in "MV" else x
        plain = plain if function == "diagonal_matrix" else np.zeros_like(plain)
        expected = [reference.diagonal_matrix(plain, **options).astype(plain.dtype).view(dtype)]
    if function in ("top_k", "nonzero_coordinates"):
        if is_typed:
            options["index_dtype"] = kind["indices"]
        for place in (1,) if function == "top_k" else (0, 1):
            expected[place] = expected[place].astype(kind["indices"])
    outs = None
    if kind["out"] is not None:
        options["out"], outs = given_as(expected, kind["out"], kind["out_layout"], library)
    if function == "built":
        arrays = []
        if kind["out"] is None:
            options |= {"shape": x.shape, "dtype": dtype}
    run = getattr(dmlops, "diagonal_matrix" if function == "built" else function)
    return lambda: run(*arrays, **options), expected, outs


def outcome(kind, number, library):
    """Make a call of a kind; return the types of its results, or its error, after a look at each element."""
    call, expected, outs = call_of(kind, number, library)
    dmlops.set_num_threads(kind.get("threads", 1))
    level = kind.get("level")
    try:
        with dmlops.feature_level(level) if level else contextlib.nullcontext():
            results = call()
    except (dmlops.DmlError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    assert kind.get("out") is None or outs is not None, "accepted"
    results = results if isinstance(results, tuple) else (results,)
    n_rows = None
    if kind["function"] == "nonzero_coordinates" and kind["fill_value"] is None:
        n_rows = int(expected[1])  # the others are undefined
    if kind.get("operator") == "nonzero_coordinates":
        n_rows = int(expected[0][0, 0])
    described = []
    for place, (result, answer) in enumerate(zip(results, expected, strict=True)):
        assert outs is None or result is outs[place]
        got = np.asarray(result)
        assert got.shape == answer.shape
        rows = ... if n_rows is None or got.ndim == 0 or answer.size == 1 else slice(n_rows)
        if got.dtype.kind in "MV":
            assert_same(got.view("int64"), answer.view("int64"))
        else:
            assert_same(got[rows], answer[rows])
        described.append(f"{type(result).__name__} {got.dtype} {got.dtype.type} {got.dtype.metadata}")
    return described


def walk(kinds, library):
    """Call each kind several times in turn, on other elements; return the outcomes of each call."""
    events, is_first = [], True

    def note(event, arguments):
        if event in ("open", "import") and not is_first:
            events.append(f"{event} {arguments[0]}")

    sys.addaudithook(note)
    outcomes, accepted = {}, set()
    with plans_counted() as plans:
        for number, kind in itertools.product((0, 1, 2, 3), kinds):
            name = name_of(kind)
            is_first = f"{name} {number}" in outcomes or name not in accepted
            n_before = len(plans)
            found = outcome(kind, number, library)
            if isinstance(found, list):
                accepted.add(name)
            assert outcomes.setdefault(f"{name} {number}", found) == found, (name, number, found, outcomes)
            assert is_first or not events, (name, number, events)
            assert len(plans) == n_before or name not in accepted or number == 0, f"planned again: {name}"
    assert len(plans) <= len({name_of(kind) for kind in kinds}), f"{len(plans)} plans"
    return outcomes


def in_child(function, *arguments):
    """Return what a function returns in a forked child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = function(*arguments)
        except BaseException as error:  # the child must not go on as its parent would
            answer = {"failure": f"{type(error).__name__}: {error}"}
        with open(writer, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        answer = json.load(file)
    os.waitpid(child, 0)
    assert "failure" not in answer, answer["failure"]
    return answer


def modules_of_first_calls():
    """Return what first calls import."""
    x = np.ones((2, 3), "float32")
    dmlops.top_k(x, 1), dmlops.nonzero_coordinates(x), dmlops.gather_nd(x, [[0]]), dmlops.diagonal_matrix(x)
    return [*sys.modules]


def check_sequences(library, function, n_examples):
    """Check sequences of calls of a function in this process, which must not have made a call."""
    warnings.simplefilter("ignore", DeprecationWarning)  # the children only run kernels
    importlib.import_module(library)
    for name in in_child(modules_of_first_calls):  # so that no child has to
        if name.partition(".")[0] in ("dmlops", "kernels_cpu", "llvmlite"):
            importlib.import_module(name)
    alone = {}

    def check(axis, base):
        # The types of new results depend on those of inputs.
        forms = (base["out"], None) if axis == "dtype" else (base["out"],)
        kinds = [
            settled(base | {"out": form, axis: value}, library) for form in forms for value in AXES[axis]
        ]
        kinds = list({name_of(kind): kind for kind in kinds}.values())
        for kind in kinds:
            if name_of(kind) not in alone:
                alone[name_of(kind)] = in_child(walk, [kind], library)
        for order in (kinds, kinds[::-1]):
            outcomes = in_child(walk, order, library)
            for kind in kinds:
                for call, found in alone[name_of(kind)].items():
                    assert outcomes[call] == found, f"{call}: alone {found}, after others {outcomes[call]}"

    for axis in RELEVANT[function][1:]:
        run = given(st.just(axis), bases(function))(check)
        settings(
            max_examples=n_examples, suppress_health_check=[*HealthCheck], derandomize=True, deadline=None
        )(run)()


@pytest.mark.parametrize(
    ("library", "function", "n_examples"),
    [
        exhaustive("torch", "top_k", 1),
        exhaustive("numpy", "gather_nd", 1),
        *(nightly(library, name, 8) for library in ("numpy", "torch") for name in RELEVANT),
    ],
)
def test_a_call_has_the_outcome_that_it_has_alone(library, function, n_examples):
    pytest.importorskip(library)
    arguments = library, function, n_examples
    run_script(f"from tests.test_call_cache import check_sequences; check_sequences{arguments}")


@pytest.mark.quick
def test_the_newest_calls_are_kept():
    """Alternating calls that native code does not serve stay in the cache, whatever other entries leave."""
    x = np.ones((2, 3), "complex128")
    for value in range(300):
        for _ in range(2):
            dmlops.diagonal_matrix(x, value=value)
    assert known_calls() == 256
    for value in (-1, -2, 299) * 2:
        dmlops.diagonal_matrix(x, value=value)
    with plans_counted() as plans:
        counts = [
            len(python_calls(lambda value=value: dmlops.diagonal_matrix(x, value=value)))
            for value in (-1, -2, 299) * 2
        ]
    assert not plans
    assert counts[3:] == [min(counts)] * 3


@pytest.mark.parametrize("library", [np, "torch", "jax.numpy"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: dmlops.gather_nd(x, [[0], [1]]),
        lambda x: dmlops.gather_nd(x, [[0, 1]], mode="clip"),
        lambda x: dmlops.top_k(x, 2, lengths=[1] * len(x)),
        lambda x: dmlops.top_k(x, 2, starts=1, indices=[5, 6, 7]),
        lambda x: dmlops.sample(x, [1] * len(x)),
    ],
)
def test_new_sizes_beside_lists_and_numbers_are_not_planned_again(library, call):
    if isinstance(library, str):
        library = pytest.importorskip(library)
    with nothing_known():
        for n in (4, 5):
            call(library.ones((n, 3)))
        with plans_counted() as plans:
            results = [(x, call(x)) for x in (library.ones((n, 3)) for n in (6, 7))]
    assert not plans
    for x, found in results:
        expected = call(np.ones(x.shape))
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for got, right in pairs:
            assert type(got) is type(x)
            assert np.asarray(got).tolist() == right.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_new_sizes_of_registered_types_are_not_planned_again(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    calls = [
        lambda x: dmlops.gather_nd(x, [[0], [1]]),
        dmlops.nonzero_coordinates,
        lambda x: dmlops.gather_nd(x, [[1]], out=np.zeros((1, 3), x.dtype)),
    ]
    if name == "bfloat16":
        calls += [lambda x: dmlops.top_k(x, 2), lambda x: dmlops.tril(x, 1), lambda x: dmlops.sample(x, 1)]
    arrays = [np.arange(3 * n).reshape(n, 3).astype(dtype) for n in (4, 5, 6, 7)]
    for call in calls:
        with nothing_known():
            for x in arrays[:2]:
                call(x)
            with plans_counted() as plans:
                results = [call(x) for x in arrays[2:]]
            assert not plans
            # Another type of the same width is another kind, which none takes.
            with pytest.raises(TypeError, match="no operator takes that type"):
                call(arrays[2].view(f"V{dtype.itemsize}"))
        for x, found in zip(arrays[2:], results, strict=True):
            expected = call(x.astype("float32"))
            pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
            for got, right in pairs:
                assert_same(got, right.astype(dtype) if right.dtype == "float32" else right)


def test_new_shapes_are_no_programs_that_jax_compiles():
    jax = pytest.importorskip("jax")
    compiled = []
    arrays = [jax.numpy.asarray(np.arange(n)) for n in (201, 203)]
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    for x in arrays:
        dmlops.top_k(x, len(x) - 2)
    assert not [event for event in compiled if "compile" in event]


def test_the_default_integer_of_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((6, 8))
    before = jax.config.jax_enable_x64
    try:
        for is_wide in (False, True) * 2:
            jax.config.update("jax_enable_x64", is_wide)
            for _ in range(3):
                dtypes = {dmlops.top_k(x, 2).indices.dtype, dmlops.nonzero_coordinates(x).count.dtype}
                assert dtypes == {np.dtype("int64" if is_wide else "int32")}
    finally:
        jax.config.update("jax_enable_x64", before)
