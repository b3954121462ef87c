"""What the second to the hundredth call of a kind may need is ready after the first.

Each kind of call is made in a forked child of a process that has made none. The first call finds nothing, or
is in range; later ones have other elements. No later one may compile a kernel, open a file, import a module
or plan anything.
"""

import importlib
import logging
import os
import sys
import warnings

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, GatherND1, NonzeroCoordinates, TensorDesc, TopK1
from tests.marks import exhaustive
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each kind of call starts in a forked child")

N_CALLS = 20  # more change nothing: a call is kept after the first, and replayed from the second on
PICKS = np.array([[1], [-2]])
OPERATORS = ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")


def contiguous(*shape):
    """Return a function that makes arrays of a shape."""
    return lambda elements: np.resize(elements, shape).astype("float32")


def strided(*shape):
    """Return a function that makes arrays whose elements are two apart."""
    return lambda elements: contiguous(*shape[:-1], 2 * shape[-1])(np.repeat(elements, 2))[..., ::2]


# The larger ones list their coordinates in two passes: in less than 1 MiB, and in more.
LAYOUTS = {
    "small": contiguous(5, 70),
    "small strided": strided(5, 70),
    "row": contiguous(350),
    "strided row": strided(350),
    "strided, larger": strided(150, 160),
    "large": contiguous(700, 800),
    "large strided": strided(700, 800),
}
FEW = ("small", "small strided", "large")


def executed(descriptor, *, has_workspace):
    """Return a call that executes an operator on an input, with new outputs of which nothing is compared."""
    operator = dmlops.compile(descriptor)
    workspace = np.empty(max(operator.workspace_size, 1), np.uint8) if has_workspace else None

    def call(x, convert):
        arrays = {"input_tensor": x, "indices_tensor": convert(PICKS)}
        arrays = {field: arrays[field] for field in operator.inputs}
        for field, desc in operator.outputs.items():
            arrays[field] = convert(np.empty(desc.sizes, desc.data_type.name.lower()))
        operator.execute(arrays, None if workspace is None else convert(workspace))

    return call


def of_descriptor(make, *, has_workspace):
    """Return a call that compiles the descriptor of its input, once."""
    calls = []

    def call(x, convert):
        if not calls:
            strides = x.stride() if callable(getattr(x, "stride", None)) else [n // 4 for n in x.strides]
            desc = TensorDesc("FLOAT32", tuple(x.shape), tuple(strides))
            calls.append(executed(make(desc), has_workspace=has_workspace))
        calls[0](x, convert)

    return call


def top_k_of(desc):
    """Return the descriptor of a top-k along the last axis."""
    axis = len(desc.sizes) - 1
    return TopK1(input_tensor=desc, axis=axis, k=3, axis_direction=AxisDirection.DECREASING)


def gather_of(desc):
    """Return the descriptor of a gather along the first axis."""
    return GatherND1(
        input_tensor=desc,
        indices_tensor=TensorDesc("INT64", PICKS.shape),
        input_dimension_count=len(desc.sizes),
        indices_dimension_count=2,
        batch_dimension_count=0,
    )


def refused_gather(x, convert, **options):
    """Gather with an index that is out of range."""
    with pytest.raises(dmlops.IndexOutOfRangeError):
        dmlops.gather_nd(x, convert(PICKS + x.shape[0]), **options)


def rows_of(x, convert):
    """Return an output for a gather."""
    return convert(np.empty((2, *x.shape[1:]), "float32"))


def outputs_of(x, convert):
    """Return outputs for a listing."""
    return convert(np.empty((12, x.ndim), "int64")), convert(np.empty((), "int64"))


# The first call and the later ones, each of an input and of what converts NumPy's arrays to its library.
CALLS = {
    "top_k": [lambda x, convert: dmlops.top_k(x, 3)],
    "all": [lambda x, convert: dmlops.top_k(x, x.shape[-1])],
    "first axis": [lambda x, convert: dmlops.top_k(x, 2, axis=0, largest=False)],
    "listing": [lambda x, convert: dmlops.nonzero_coordinates(x)],
    "listing of a size": [lambda x, convert: dmlops.nonzero_coordinates(x, size=9, fill_value=-1)],
    "listing to out": [lambda x, convert: dmlops.nonzero_coordinates(x, out=outputs_of(x, convert))],
    "gather": [lambda x, convert: dmlops.gather_nd(x, convert(PICKS)), refused_gather],
    "gather to out": [
        lambda x, convert: dmlops.gather_nd(x, convert(PICKS), out=rows_of(x, convert)),
        lambda x, convert: refused_gather(x, convert, out=rows_of(x, convert)),
    ],
    "clipped gather": [lambda x, convert: dmlops.gather_nd(x, convert(PICKS), mode="clip")],
    "matrix": [lambda x, convert: dmlops.diagonal_matrix(x[None] if x.ndim == 1 else x, value=3)],
    "matrix to out": [
        lambda x, convert: dmlops.diagonal_matrix(value=3, out=convert(np.empty((4, x.shape[-1]))))
    ],
    "top_k, executed": [of_descriptor(top_k_of, has_workspace=False)],
    "top_k in a workspace": [of_descriptor(top_k_of, has_workspace=True)],
    "listing, executed": [
        of_descriptor(lambda desc: NonzeroCoordinates(input_tensor=desc), has_workspace=True)
    ],
    "gather, executed": [of_descriptor(gather_of, has_workspace=False)],
}


def events_after_the_first(calls, make, convert):
    """Return what happens in later calls that only a first one may do."""
    first, *others = calls
    first(convert(make([0])), convert)
    events, modules = [], set(sys.modules)

    def note(event, arguments):
        if event == "open":
            events.append(f"opened {arguments[0]}")

    class Messages(logging.Handler):
        def emit(self, record):
            events.append(record.getMessage())

    logger = logging.getLogger("dmlops.store.kernel_store")
    logger.addHandler(Messages())
    logger.setLevel(logging.INFO)
    sys.addaudithook(note)
    for operator in OPERATORS:  # one that is imported only now is noted as such
        package = sys.modules.get(f"kernels_cpu.{operator}")
        if package is not None:
            package.plan = lambda operator=operator, **problem: pytest.fail(f"planned {operator}")
    x = convert(make([0, 1, 2, 0, 0, 3]))
    for number in range(N_CALLS):
        first(x, convert)
        if number in (0, 9):
            for call in others:
                call(x, convert)
    return events + [f"imported {name}" for name in sorted(sys.modules.keys() - modules)]


def check_in_children(library, layouts):
    """Print what later calls of each kind do that only the first may."""
    warnings.simplefilter("ignore", DeprecationWarning)  # the children only run kernels
    convert = np.asarray if library == "numpy" else importlib.import_module(library).from_numpy
    for layout in layouts:
        for name, calls in CALLS.items():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for event in events_after_the_first(calls, LAYOUTS[layout], convert):
                        print(f"{name}, {layout}: {event}", flush=True)
                    status = 0
                except BaseException as error:  # the child must not go on as its parent would
                    print(f"{name}, {layout}: {error!r}", flush=True)
                finally:
                    os._exit(status)
            os.waitpid(child, 0)


@pytest.mark.parametrize("layouts", [FEW, exhaustive(tuple(LAYOUTS))], ids=len)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_nothing_is_left_to_later_calls(library, layouts):
    pytest.importorskip(library)
    code = f"""
    from tests.test_later_calls import check_in_children
    check_in_children({library!r}, {layouts!r})
    """
    assert run_script(code) == ""
