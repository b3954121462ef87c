"""Unsuitable arrays are refused before anything is written, in first calls and in repeated ones.

Every fault is tried at each place of each function and compiled operator, with and without outputs given, on
arrays that own their memory and on views, for each library. The error names the place, and says why.
"""

import contextlib
import functools
import itertools
import re

import numpy as np
import pytest
from ml_dtypes import float8_e8m0fnu, int4

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix1,
    DmlError,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from tests import reference
from tests.conftest import NEEDS_GPU
from tests.data import as_strided, assert_same, read_only, unaligned
from tests.kept_calls import place
from tests.marks import exhaustive

N_GOOD_CALLS = (0, 1, 3)  # before each refusal: the third call replays the first
MEMORIES = ("own", "view")
# One that no call had before, and that has other sizes when it is transposed.
SHAPES = ((6 + n % 13, 20 + n // 13) for n in itertools.count())


class Numpy:
    """Arrays of NumPy in memory of one kind."""

    def __init__(self, memory):
        self.make = lambda array: place(array, memory)


class Torch:
    """Tensors that begin their storage, or lie in a larger one."""

    def __init__(self, memory, device="cpu"):
        self.torch = pytest.importorskip("torch")
        self.memory, self.device = memory, device

    def make(self, array):
        elements = self.torch.from_numpy(array.copy()).to(self.device)
        if self.memory == "own":
            return elements
        whole = self.torch.zeros(array.size + 16, dtype=elements.dtype, device=self.device)
        return whole[8 : 8 + array.size].reshape(array.shape).copy_(elements)


LIBRARIES = {"numpy": Numpy, "torch": Torch, "cuda": functools.partial(Torch, device="cuda")}


def on_host(array):
    """Return the elements of an array of any of the libraries."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


class Subject:
    """A function or a compiled operator: arrays for its places by the words of errors, and a call of it."""

    def __init__(self, name, inputs, outputs, run):
        self.name, self.inputs, self.outputs, self.run = name, inputs, outputs, run
        self.seen_by = contextlib.nullcontext  # the context of calls that are refused

    def arrays(self, library, *, given=True):
        """Return new arrays that fit."""
        outputs = {where: np.full_like(answer, 77) for where, answer in self.outputs.items()}
        return {
            where: library.make(array) for where, array in (self.inputs | (outputs if given else {})).items()
        }

    def check(self, arrays):
        """Make a good call, and compare the answer with NumPy's."""
        for result, answer in zip(self.run(arrays), self.outputs.values(), strict=True):
            found = on_host(result)
            assert_same(found[: len(answer)] if answer.ndim else found, answer)

    def refuses(self, library, where, spoil, text, *, given=True):
        """Check that the call is refused, however many good ones came before it, and writes nothing."""
        for n_calls in N_GOOD_CALLS:
            for _ in range(n_calls):
                self.check(self.arrays(library, given=given))
            arrays = self.arrays(library, given=given)
            arrays[where] = spoil(arrays[where])
            with pytest.raises((DmlError, TypeError), match=text) as caught, self.seen_by():
                self.run(arrays)
            assert str(caught.value).startswith(f"{self.name}.{where}: got ")
            for other in self.outputs.keys() & arrays.keys() - {where}:
                assert (on_host(arrays[other]) == 77).all()
        self.check(self.arrays(library, given=given))


def numbers(shape):
    """Return inputs of every function: numbers with ties and zeros, and index tuples."""
    rng = np.random.default_rng(3)
    return rng.integers(-3, 4, shape).astype("float32"), rng.integers(-6, 6, (5, 2))


def of_function(name, places, call, answers):
    """Return a subject that calls a function on the arrays of its places."""

    def run(arrays):
        outputs = [array for where, array in arrays.items() if where.startswith("out")]
        options = {"out": tuple(outputs) if len(outputs) == 2 else outputs[0]} if outputs else {}
        results = call(*[arrays[where] for where in places], **options)
        return results if isinstance(results, tuple) else (results,)

    names = ["out"] if len(answers) == 1 else ["out[0]", "out[1]"]
    return Subject(name, places, dict(zip(names, answers, strict=True)), run)


def functions(shape):
    """Return the functions as subjects."""
    x, picks = numbers(shape)
    return {
        "top_k": of_function(
            "top_k", {"x": x}, lambda x, **out: dmlops.top_k(x, 3, **out), reference.top_k(x, 3)
        ),
        "nonzero_coordinates": of_function(
            "nonzero_coordinates", {"x": x}, dmlops.nonzero_coordinates, reference.nonzero_coordinates(x)
        ),
        "gather_nd": of_function(
            "gather_nd", {"x": x, "indices": picks}, dmlops.gather_nd, [reference.gather_nd(x, picks)]
        ),
        "diagonal_matrix": of_function(
            "diagonal_matrix",
            {"x": x},
            lambda x, **out: dmlops.diagonal_matrix(x, value=0, **out),
            [reference.diagonal_matrix(x, value=0)],
        ),
        "diagonal_matrix of a shape": of_function(
            "diagonal_matrix",
            {"like": x},
            lambda like, **out: dmlops.diagonal_matrix(shape=shape, like=like, dtype="float32", **out),
            [reference.diagonal_matrix(shape=shape, dtype="float32")],
        ),
    }


def executions(shape, *, has_workspace):
    """Return compiled operators as subjects, whose places are fields and the workspace."""
    x, picks = numbers(shape)
    floats = TensorDesc(TensorDataType.FLOAT32, shape)
    coordinates, count = reference.nonzero_coordinates(x)
    values, indices = reference.top_k(x, 3)
    descriptors = {
        TopK1(input_tensor=floats, axis=1, k=3, axis_direction=AxisDirection.DECREASING): {
            "output_value_tensor": values,
            "output_index_tensor": indices.astype("uint32"),
        },
        NonzeroCoordinates(input_tensor=floats): {
            "output_count_tensor": count.reshape(1, 1).astype("uint32"),
            "output_coordinates_tensor": coordinates.astype("uint32"),
        },
        GatherND1(
            input_tensor=floats,
            indices_tensor=TensorDesc(TensorDataType.INT64, picks.shape),
            input_dimension_count=2,
            indices_dimension_count=2,
            batch_dimension_count=0,
        ): {"output_tensor": reference.gather_nd(x, picks).reshape(1, 5)},
        DiagonalMatrix1(input_tensor=floats, value=0, diagonal_fill_begin=0, diagonal_fill_end=1): {
            "output_tensor": reference.diagonal_matrix(x, value=0)
        },
    }
    return {
        descriptor.name: Execution(
            descriptor, answers, {"input_tensor": x, "indices_tensor": picks}, has_workspace
        )
        for descriptor, answers in descriptors.items()
    }


class Execution(Subject):
    """A compiled operator; outputs have the sizes of the descriptor, of which an answer may fill a part."""

    def __init__(self, descriptor, outputs, inputs, has_workspace):
        self.operator = dmlops.compile(descriptor)
        self.has_workspace = has_workspace
        super().__init__(
            descriptor.name, {field: inputs[field] for field in self.operator.inputs}, outputs, self.execute
        )

    def arrays(self, library, *, given=True):
        made = {field: library.make(self.inputs[field]) for field in self.inputs}
        for field, desc in self.operator.outputs.items():
            made[field] = library.make(np.full(desc.sizes, 77, desc.data_type.name.lower()))
        if self.has_workspace:
            made["workspace"] = np.empty(max(self.operator.workspace_size, 16), np.uint8)
        return made

    def execute(self, arrays):
        tensors = {field: array for field, array in arrays.items() if field != "workspace"}
        self.operator.execute(tensors, arrays.get("workspace"))
        return [tensors[field] for field in self.outputs]


def nested(depth):
    """Return a list in lists."""
    array = [1]
    for _ in range(depth - 1):
        array = [array]
    return array


def endless(array):
    """Return a list that contains itself."""
    found = []
    found.append(found)
    return found


class OnDevice:
    """An array on a device, which would copy itself to the host if it were asked."""

    def __init__(self, device):
        self.device = device

    def __array__(self, dtype=None, copy=None):
        assert self.device == "cpu", "copied in silence"
        return np.ones((3, 4), "float32")


class OfDLPack:
    """An array of DLPack on some device."""

    def __init__(self, device):
        self.device_type = device

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, **options):
        assert self.device_type == 1, "the memory was touched"
        return np.ones((3, 4), "float32").__dlpack__(**options)


def of(module, make):
    """Return what makes an array of a module that may not be installed."""
    return lambda array: make(pytest.importorskip(module))


def torch_module(name):
    """Return a module of torch; skip the test where torch is not installed."""
    return pytest.importorskip(f"torch.{name}" if name else "torch")


def shrunk(tensor, n_bytes=None):
    """Return a tensor whose storage has become too small."""
    tensor = tensor.clone()
    n_bytes = tensor.numel() * tensor.element_size() - 1 if n_bytes is None else n_bytes
    tensor.untyped_storage().resize_(n_bytes)
    return tensor


def shrunk_view(tensor):
    """Return the second half of a tensor whose storage has become too small."""
    half = torch_module("").stack([tensor, tensor])[1]
    half.untyped_storage().resize_(2 * half.nbytes - 1)
    return half


def fake(tensor):
    """Return a tensor that has a shape and no elements."""
    mode = torch_module("_subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    return mode.from_tensor(tensor)


def wrapper(tensor):
    """Return an object that only looks like a tensor."""
    torch = torch_module("")

    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            raise NotImplementedError

    return torch.Tensor._make_wrapper_subclass(
        Wrapper, tensor.shape, dtype=tensor.dtype, device=tensor.device
    )


def subclass(tensor):
    """Return a tensor of a subclass that has memory."""
    return tensor.clone().as_subclass(type("Subclass", (torch_module("").Tensor,), {}))


def distributed(tensor):
    """Return a DTensor on one process."""
    processes, mesh = torch_module("distributed"), torch_module("distributed.device_mesh")
    if not processes.is_initialized():
        store = torch_module("testing._internal.distributed.fake_pg").FakeStore()
        processes.init_process_group("fake", store=store, rank=0, world_size=1)
    module = torch_module("distributed.tensor")
    return module.DTensor.from_local(
        tensor, mesh.init_device_mesh(tensor.device.type, (1,)), [module.Replicate()]
    )


def moved(tensor):
    """Return a tensor at an odd address."""
    memory = np.zeros(tensor.numel() * tensor.element_size() + 1, np.uint8)
    shifted = torch_module("").frombuffer(memory, dtype=tensor.dtype, offset=1, count=tensor.numel())
    return shifted.reshape(tensor.shape).copy_(tensor)


def negative(tensor):
    """Return a tensor that is stored with the other sign."""
    return conjugate(tensor).imag


def conjugate(tensor):
    """Return complex numbers that are stored conjugated."""
    return torch_module("").complex(tensor, tensor).conj()


DEVICES = {7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 99: "DLPack device 99"}
NULLS = "with 1 null.*; fill or drop|with no nulls"  # which pyarrow 25 says itself
MASK = r"masked.*the mask would be lost; pass (\S+\.filled\(value\) or )?\S+\.data"
# Each spoils an array, and errors say so: anywhere, ...
ANYWHERE = {
    "foreign": (lambda array: array.view(array.dtype.newbyteorder()), "in foreign byte order"),
    "other type": (lambda array: array.view(f"S{array.itemsize}"), "no operator takes that type"),
    "masked": (lambda array: np.ma.masked_array(array, array == array), MASK),
    "nothing masked": (np.ma.masked_array, MASK),
}


# ... where functions read, ...
class LazyFrame:
    """A table of polars that is computed when it is asked for."""

    __module__ = "polars.lazyframe.frame"

    def collect(self):
        """Compute it."""


INPUTS = {
    "masked rows": (lambda array: [np.ma.masked_array(row, row > 3) for row in array], MASK),
    "masked constants": (lambda array: [[1, 2], [np.ma.masked] * 2], MASK),
    "ragged": (lambda array: [*array.tolist(), [1]], "its rows differ in length"),
    "nested": (lambda array: nested(70), "list.*must be an array"),
    "endless": (endless, "list.*must be an array"),
    "text": (lambda array: "hello", "no operator takes that type"),
    "dict": (lambda array: {"x": array}, "a dict, but it is not an array"),
    "sparse": (of("scipy.sparse", lambda sparse: sparse.eye(3)), r"it is sparse; pass \w+\.toarray\(\)"),
    "bytes": (lambda array: [b"hello"], "no operator takes that type"),
    **{
        np.dtype(dtype).name: (
            lambda array, dtype=dtype: np.zeros((2, 2), dtype),
            "no operator takes that type",
        )
        for dtype in (object, "V4", [("a", "O")], float8_e8m0fnu, int4, np.longdouble)
    },
    "series": (of("polars", lambda polars: polars.Series([1, None, 3])), NULLS),
    "frame": (of("polars", lambda polars: polars.DataFrame({"a": [1.0, 2.0], "b": [3.0, None]})), NULLS),
    "list of series": (of("polars", lambda polars: [polars.Series([1, None])] * 2), NULLS),
    "lazy frame": (lambda array: LazyFrame(), "a lazy LazyFrame.*collect"),
    "arrow": (of("pyarrow", lambda arrow: arrow.array([1, None])), NULLS),
    "chunks": (of("pyarrow", lambda arrow: arrow.chunked_array([[1], [None]])), NULLS),
    "table": (of("pyarrow", lambda arrow: arrow.table({"a": [1, 2], "b": [None, 4]})), NULLS),
    "dask": (of("dask.array", lambda dask: dask.ones(3)), "a lazy Array.*compute"),
    "list of dask": (of("dask.array", lambda dask: [dask.ones(3)]), "a lazy Array.*compute"),
    "device": (lambda array: OnDevice("mps"), "an OnDevice on mps.*copy it to the CPU"),
    "list of device": (lambda array: [OnDevice("cuda:0")], "an OnDevice on cuda:0.*copy it to the CPU"),
    **{
        name: (lambda array, number=number: OfDLPack(number), f"an OfDLPack on {name}, .*no back-end serves")
        for number, name in DEVICES.items()
    },
}
# ... where they write, ...
OUTPUTS = {
    "read-only": (read_only, "it is written to; an output must be writable"),
    "misaligned": (unaligned, "not a multiple of the element size"),
    "other width": (
        lambda array: array.astype("float64" if array.itemsize == 4 else "float32"),
        "types must be equal|sizes must be equal|must be uint32",
    ),
    "complex": (lambda array: np.zeros(array.shape, "c8"), "types must be equal|must be uint32"),
    "one more dimension": (lambda array: array[..., None].repeat(2, -1), "(shapes|sizes) must be equal"),
    "one more element": (
        lambda array: np.resize(array, (*array.shape[:-1], (array.shape or (1,))[-1] + 1)),
        "(shapes|sizes) must be equal",
    ),
    "one address": (
        lambda array: as_strided(array.copy(), array.shape, [0] * array.ndim),
        "must not overlap|strides in elements must be equal",
    ),
    "list": (lambda array: array.tolist(), "an output must be an array"),
}
# ... and in executions, whose tensors are described.
EXECUTIONS = {
    "same width": (
        lambda array: array.view(f"i{array.itemsize}" if array.dtype.kind != "i" else "f8"),
        "types must",
    ),
    "strides": (np.asfortranarray, "strides in elements must be equal"),
    "sizes": (
        lambda array: array.reshape(*array.shape[1:], array.shape[0], 1)[..., 0],
        "sizes must be equal",
    ),
}
NOT_PLAIN = "only plain tensors are known to have elements in memory of their own"
# Whatever these are, their elements are not at an address; some of them once ended the process.
TORCH_INPUTS = {
    "shrunk": (shrunk, "its elements are not in memory"),
    "freed": (lambda tensor: shrunk(tensor, 0), "its elements are not in memory"),
    "shrunk view": (shrunk_view, "its elements are not in memory"),
    "sparse": (lambda tensor: tensor.to_sparse(), "its elements are not strided"),
    "compressed": (lambda tensor: tensor.to_sparse_csr(), "its elements are not strided"),
    "masked": (
        lambda tensor: torch_module("masked").masked_tensor(tensor, tensor > 1),
        "its mask would be lost",
    ),
    "nested": (lambda tensor: torch_module("nested").nested_tensor([*tensor]), "its rows differ in length"),
    "jagged": (
        lambda tensor: torch_module("nested").nested_tensor([*tensor], layout=torch_module("").jagged),
        "its rows differ in length",
    ),
}
TORCH_OUTPUTS = {
    **TORCH_INPUTS,
    "meta": (lambda tensor: tensor.to("meta"), "its elements are not in memory"),
    "fake": (fake, NOT_PLAIN),
    "zero": (
        lambda tensor: torch_module("")._efficientzerotensor(
            tensor.shape, dtype=tensor.dtype, device=tensor.device
        ),
        "its elements are not in memory",
    ),
    "wrapper": (wrapper, NOT_PLAIN),
    "subclass": (subclass, NOT_PLAIN),
    "distributed": (distributed, NOT_PLAIN),
    "int16": (lambda tensor: tensor.short(), "types must be equal|must be uint32"),
    "shape": (lambda tensor: tensor[..., None], "(shapes|sizes) must be equal"),
    "one address": (lambda tensor: tensor.flatten()[0].expand(tensor.shape), "must not overlap"),
    "unaligned": (moved, "not a multiple of the element size"),
    "negative": (negative, "what is written to it would be read negated"),
    "conjugate": (conjugate, "what is written to it would be read conjugated"),
    "derivative": (lambda tensor: tensor.clone().requires_grad_(), "it is written to in place"),
}
OF_SHAPES = {
    "one more dimension",
    "one address",
    "strides",
    "sizes",
    "shape",
    "compressed",
    "nested",
    "jagged",
}
FLOATS_ONLY = {"negative", "conjugate", "derivative", "masked"}


@functools.cache
def mode_of_torch():
    """Return a mode that sees the operators of torch, and changes nothing."""

    class Mode(torch_module("utils._python_dispatch").TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            return function(*arguments, **(options or {}))

    return Mode


def refuses(subject, library, where, fault, table):
    """Check a fault at a place in both kinds of memory, with outputs given and without."""
    spoil, text = table[fault]
    like = subject.outputs.get(where, subject.inputs.get(where))
    if fault in OF_SHAPES and (like.size == 1 or like.ndim < 2 or like.shape[0] == 1):
        return
    if fault in FLOATS_ONLY and like.dtype.kind != "f":
        return
    for memory in MEMORIES:
        made = LIBRARIES[library](memory)
        for given in {True, where in subject.outputs}:
            if where != "like" or not given:
                subject.refuses(made, where, spoil, text, given=given)


FUNCTIONS = tuple(functions((6, 8)))
NAMES = [pytest.param(name, marks=pytest.mark.quick) if name == "top_k" else name for name in FUNCTIONS]
OPERATORS = ("TopK1", "NonzeroCoordinates", "GatherND1", "DiagonalMatrix1")


@pytest.mark.parametrize("fault", [*ANYWHERE, *INPUTS])
@pytest.mark.parametrize("name", NAMES)
def test_inputs(name, fault):
    subject = functions(next(SHAPES))[name]
    for where in subject.inputs:
        refuses(subject, "numpy", where, fault, ANYWHERE | INPUTS)


@pytest.mark.parametrize("fault", [*ANYWHERE, *OUTPUTS])
@pytest.mark.parametrize("name", NAMES)
def test_outputs(name, fault):
    subject = functions(next(SHAPES))[name]
    for where in subject.outputs:
        refuses(subject, "numpy", where, fault, ANYWHERE | OUTPUTS)


@pytest.mark.parametrize("has_workspace", [exhaustive(False), True])
@pytest.mark.parametrize("fault", [*ANYWHERE, *OUTPUTS, *EXECUTIONS])
@pytest.mark.parametrize("name", OPERATORS)
def test_executions(name, fault, has_workspace):
    subject = executions(next(SHAPES), has_workspace=has_workspace)[name]
    are_copied = ("read-only", "misaligned", "list")
    for where in (*subject.inputs, *subject.outputs):
        if where in subject.outputs or fault not in are_copied:
            refuses(subject, "numpy", where, fault, ANYWHERE | OUTPUTS | EXECUTIONS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*", "ignore:.*(Sparse|PyTorch API):UserWarning")
@pytest.mark.parametrize("fault", TORCH_OUTPUTS)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "shape" not in name])
@pytest.mark.parametrize("library", ["torch", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("is_seen", [False, True])
def test_tensors(library, name, fault, is_seen):
    subject = functions(next(SHAPES))[name]
    if is_seen:
        pytest.importorskip("torch")
        subject.seen_by = mode_of_torch()
    for where in (*(subject.inputs if fault in TORCH_INPUTS else ()), *subject.outputs):
        refuses(subject, library, where, fault, TORCH_OUTPUTS)


COPIES = r"astype|filled|resolve|to_dense|padd|to_tensor"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.astype(x.dtype.newbyteorder()),
        np.ma.masked_array,
        lambda x: torch_module("").from_numpy(x).to_sparse(),
        lambda x: torch_module("nested").nested_tensor([torch_module("").from_numpy(row) for row in x]),
        lambda x: torch_module("masked").masked_tensor(*[torch_module("").from_numpy(a) for a in (x, x > 0)]),
        lambda x: negative(torch_module("").from_numpy(x)),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_remedies_for_outputs_make_no_copies(spoil):
    """Nobody would see what is written to a copy."""
    x = np.ones((2, 2), "float32")
    spoiled = spoil(x)
    for write in (
        lambda: dmlops.tril(x, out=spoiled),
        lambda: dmlops.gather_nd(x, [[0], [1]], out=spoiled),
        lambda: dmlops.top_k(x, 2, out=(spoiled, np.zeros((2, 2), int))),
    ):
        with pytest.raises((TypeError, InvalidDescriptorError), match=r"\.out") as refused:
            write()
        assert not re.search(COPIES, str(refused.value))


@pytest.mark.parametrize("name", OPERATORS)
def test_inputs_of_executions_that_are_copied(name):
    subject = executions(next(SHAPES), has_workspace=False)[name]
    for spoil in (read_only, unaligned, np.ndarray.tolist, read_only):
        arrays = subject.arrays(Numpy("own"))
        for field in subject.inputs:
            spoiled = spoil(arrays[field])
            arrays[field] = np.array(spoiled, arrays[field].dtype) if isinstance(spoiled, list) else spoiled
        subject.check(arrays)


def overlapping(arrays, first, second):
    """Put two arrays into one block of memory, the second into the last bytes of the first."""
    memory = np.full(1 << 16, 77, np.uint8)
    begin = (arrays[first].nbytes - 1) // 8 * 8
    for where, start in ((first, 0), (second, begin)):
        part = memory[start : start + arrays[where].nbytes].view(arrays[where].dtype)
        arrays[where] = part.reshape(arrays[where].shape)
    return memory


@pytest.mark.parametrize(
    ("name", "library"),
    [
        *itertools.product([*FUNCTIONS[:4], *OPERATORS], ["numpy", "torch"]),
        *((name, "torch in a mode") for name in FUNCTIONS[:4]),
    ],
)
def test_memory_that_is_shared(name, library):
    library, _, is_seen = library.partition(" ")
    make, shape = LIBRARIES[library]("own"), next(SHAPES)
    seen_by = mode_of_torch() if is_seen else contextlib.nullcontext
    subject = (functions(shape) | executions(shape, has_workspace=False))[name]
    places = subject.inputs | subject.outputs
    for output, other in itertools.product(subject.outputs, places):
        for first, second in ((output, other), (other, output)) if output != other else ():
            for n_calls in N_GOOD_CALLS:
                for _ in range(n_calls):
                    subject.check(subject.arrays(make))
                arrays = subject.arrays(Numpy("own"))
                memory = overlapping(arrays, first, second)
                if library == "torch":
                    arrays = {where: make.torch.from_numpy(array) for where, array in arrays.items()}
                text = r": got an overlapping array, but it shares memory"
                with pytest.raises(InvalidDescriptorError, match=text), seen_by():
                    subject.run(arrays)
                assert (memory == 77).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_workspaces(name):
    subject = executions(next(SHAPES), has_workspace=True)[name]
    size = subject.operator.workspace_size
    if not size:
        return
    # All are parts of a larger block, so that a defect cannot damage other memory.
    block = np.empty(4 * size, np.uint8)
    for workspace, text in (
        (block[size:][: size - 1], "bytes are needed"),
        (block[size : 3 * size : 2], "must be contiguous"),
        (block[size : 2 * size][::-1], "must be contiguous"),
        (read_only(block[size : 2 * size]), "read-only"),
        *((no_array, "an output must be an array") for no_array in ([0] * size, 3, True)),
        ("hello", "no operator takes|must be"),
    ):
        subject.refuses(Numpy("own"), "workspace", lambda _, workspace=workspace: workspace, text)
    for where in (*subject.inputs, *subject.outputs):
        arrays = subject.arrays(Numpy("own"))
        block = np.full(size + arrays[where].nbytes, 77, np.uint8)
        part = block[size - 8 :][: arrays[where].nbytes]
        arrays[where] = part.view(arrays[where].dtype).reshape(arrays[where].shape)
        arrays["workspace"] = block[:size]
        with pytest.raises(InvalidDescriptorError, match="shares memory"):
            subject.run(arrays)
        assert (block == 77).all()


def test_interleaved_arrays_do_not_overlap():
    x, memory = numbers((3, 4))[0], np.zeros((3, 8), "float32")
    memory[:, ::2] = x
    assert dmlops.diagonal_matrix(memory[:, ::2], value=5, out=memory[:, 1::2]).base is memory
    assert_same(memory[:, ::2], x)
    assert_same(memory[:, 1::2], reference.diagonal_matrix(x, value=5))


@pytest.mark.parametrize("first", ["x", "out"])
def test_overlap_of_arrays_that_run_backwards(first):
    memory = np.zeros(40, "float32")
    for start in range(25):
        places = {first: memory[12:24], "x" if first == "out" else "out": memory[start : start + 12]}
        x, out = (places[name][::-1].reshape(3, 4) for name in ("x", "out"))
        x[...] = before = numbers((3, 4))[0]
        if start in (0, 24):
            assert_same(
                dmlops.diagonal_matrix(x, value=5, out=out), reference.diagonal_matrix(before, value=5)
            )
        else:
            with pytest.raises(InvalidDescriptorError, match="shares memory"):
                dmlops.diagonal_matrix(x, value=5, out=out)
        assert_same(x, before)


@pytest.mark.exhaustive
def test_overlap_that_is_too_hard_to_rule_out():
    """From the tests of NumPy: whether these share an address would take minutes to find out."""
    memory = np.zeros(192_163_377, "int8")
    x = as_strided(memory, (1049, 1049, 1049), (36674, 61119, 85569))
    out = as_strided(memory[64_023_025:], (30, 30), (366_750, 12_224))
    with pytest.raises(InvalidDescriptorError, match=r"gather_nd\.out: .* shares memory with gather_nd\.x"):
        dmlops.gather_nd(x, np.broadcast_to(0, (30, 30, 3)), out=out)


def test_where_an_array_is_depends_on_the_object():
    """Not on its class, whose objects on the CPU are read."""
    for _ in range(3):
        for array in (OnDevice("cpu"), OfDLPack(1)):
            assert (dmlops.top_k(array, 2).values == 1).all()
        for array in (OnDevice("gpu"), OfDLPack(8)):
            with pytest.raises((DmlError, TypeError), match=r"^top_k\.x: got an? On?"):
                dmlops.top_k(array, 2)


ROWS = np.arange(12, dtype="float32").reshape(3, 4)
CALLS = {
    "top_k": lambda **options: dmlops.top_k(ROWS, 2, **options),
    "nonzero_coordinates": lambda **options: dmlops.nonzero_coordinates(ROWS, **options),
    "gather_nd": lambda **options: dmlops.gather_nd(ROWS, [[0], [2]], **options),
    "diagonal_matrix": lambda **options: dmlops.diagonal_matrix(ROWS, **options),
    "diagonal_matrix of a shape": lambda **options: dmlops.diagonal_matrix(shape=(2, 2), **options),
}
FOREIGN = ">" if np.little_endian else "<"
UNEQUAL = [
    *((name, "out", None, out) for name in CALLS for out in ((), [], (None, None), {}, 0, False, "")),
    *((name, "out", None, (np.zeros(5),) * 3) for name in CALLS),
    *(
        (name, "index_dtype", TensorDataType.UINT32, number)
        for name in ("top_k", "nonzero_coordinates")
        for number in (3, True, 3.0, f"{FOREIGN}i4")
    ),
    *(
        ("diagonal_matrix of a shape", "dtype", TensorDataType.FLOAT32, number)
        for number in (1, True, 1.0, f"{FOREIGN}f4")
    ),
]


@pytest.mark.parametrize(("name", "option", "good", "bad"), UNEQUAL, ids=str)
def test_arguments_that_are_equal_only(name, option, good, bad):
    """The key of a call contains types: what is refused at first is refused after an equal one, too."""
    found = set()
    for n_calls in N_GOOD_CALLS:
        for _ in range(n_calls):
            CALLS[name](**{option: good})
        with pytest.raises((TypeError, DmlError)) as caught:
            CALLS[name](**{option: bad})
        found.add(str(caught.value))
    (text,) = found
    assert text.startswith(f"{name.partition(' ')[0]}.{option}")


def test_true_is_one():
    """As everywhere in Python, and so is NumPy's."""
    for one in (1, True, np.array(1), np.int8(1), 1, True, np.True_):
        assert_same(dmlops.top_k(ROWS, one).values, reference.top_k(ROWS, 1)[0])
        assert dmlops.nonzero_coordinates(ROWS, size=one).coordinates.shape == (1, 2)
        assert_same(dmlops.gather_nd(ROWS[None], [[[2]]], batch_dims=one), ROWS[None, [2]])
        with pytest.raises(TypeError, match=r"^top_k\.k: got array\(\[1\]\), but it is not an integer"):
            dmlops.top_k(ROWS, np.array([1]))


def test_sizes_beyond_64_bits():
    for size in (2**70, 2**62):
        with pytest.raises(InvalidDescriptorError, match=r"^nonzero_coordinates\.size: got "):
            dmlops.nonzero_coordinates(ROWS, size=size)
    for shape in ((2**40, 2**40), (2**70, 1)):
        with pytest.raises(InvalidDescriptorError, match=r"^diagonal_matrix\.shape: got "):
            dmlops.diagonal_matrix(shape=shape)


@pytest.mark.parametrize(("module", "library"), [("torch", "torch"), ("jax.numpy", "JAX")])
def test_types_that_the_library_of_a_new_array_lacks(module, library):
    like = pytest.importorskip(module).ones((2, 2))
    for dtype in ("M8[s]", "f4,f4"):
        with pytest.raises(TypeError, match=rf"^diagonal_matrix\.dtype: .* but {library} has no such type; "):
            dmlops.diagonal_matrix(shape=(2, 2), like=like, dtype=dtype, value=0)


NO_TENSORS = (None, 3, "hello", [ROWS], (), nested(70), {ROWS.shape}, object())
NO_FIELDS = (1, None, b"input_tensor", ("input_tensor",), "")


@pytest.mark.quick
def test_coordinates_beyond_64_bits():
    """In the function's words, on a first call and after hits, which must not run it either."""
    expected = "nonzero_coordinates.x: got shape (1073741824, 1073741824), but a row for each element would"
    for dtype in ("float32", "uint8"):
        for is_known in (False, True):
            if is_known:
                for n in (2, 3):
                    dmlops.nonzero_coordinates(np.ones((n, n), dtype), size=1)
            with pytest.raises(InvalidDescriptorError, match="^" + re.escape(expected)):
                dmlops.nonzero_coordinates(np.broadcast_to(np.zeros((), dtype), (2**30, 2**30)), size=1)


def test_mappings_of_executions():
    subject = executions((6, 8), has_workspace=False)["TopK1"]
    for n_calls in N_GOOD_CALLS:
        for _ in range(n_calls):
            subject.check(subject.arrays(Numpy("own")))
        for wrong in NO_TENSORS:
            with pytest.raises(TypeError, match=r"(?s)^TopK1\.execute: got .*, but it is not a mapping; "):
                subject.operator.execute(wrong)
        good = subject.arrays(Numpy("own"))
        without = {field: array for field, array in good.items() if field != "input_tensor"}
        for wrong in (
            {},
            without,
            *(each | {key: ROWS} for key in NO_FIELDS for each in (good, without, {})),
        ):
            with pytest.raises(InvalidDescriptorError, match=r"^TopK1\.execute: got arrays for "):
                subject.operator.execute(wrong)
        for field in good:
            for wrong in ("hello", nested(70), None):
                with pytest.raises(TypeError, match=rf"^TopK1\.{field}: got "):
                    subject.operator.execute(good | {field: wrong})
        assert (good["output_value_tensor"] == 77).all()
