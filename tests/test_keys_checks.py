"""The cache of calls: an invalid array is refused, however many valid ones came before it."""

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, DiagonalMatrix1, DmlError, GatherND1, NonzeroCoordinates, TopK1
from dmlops import TensorDataType as Type
from dmlops import TensorDesc as Desc
from tests import reference
from tests.data import as_strided, assert_same, unaligned
from tests.kept_calls import needs_gil, place, python_calls, settle

pytestmark = pytest.mark.quick

X = np.random.default_rng(3).integers(-3, 4, (6, 8)).astype("float32")
PICKS = np.random.default_rng(4).integers(-6, 6, (5, 2))
MEMORIES = ["own", "view"]
GIVEN = [False, True]
# Each function on its inputs, what NumPy answers, and what error texts call the arrays.
FUNCTIONS = {
    "top_k": (lambda x, **out: dmlops.top_k(x, 3, **out), reference.top_k(X, 3), ["x"]),
    "nonzero_coordinates": (dmlops.nonzero_coordinates, reference.nonzero_coordinates(X), ["x"]),
    "gather_nd": (dmlops.gather_nd, [reference.gather_nd(X, PICKS)], ["x", "indices"]),
    "diagonal_matrix": (
        lambda x, **out: dmlops.diagonal_matrix(x, value=0, **out),
        [reference.diagonal_matrix(X, value=0)],
        ["x"],
    ),
}


def locked(array):
    """Return the array itself, which may no longer be written to."""
    array.flags.writeable = False
    return array


def foreign(array):
    """Return the same bytes, to be read in the other order."""
    return array.view(array.dtype.newbyteorder())


def other_type(array):
    """Return the same bytes as elements of a type that is as wide, and that no operator takes."""
    return array.view(f"S{array.itemsize}")


def other_width(array):
    """Return an array of the same sizes with elements of another width."""
    return array.astype("float64" if array.itemsize == 4 else "float32")


def at_one_address(array):
    """Return an array of that kind whose elements share memory."""
    return as_strided(array.copy(), array.shape, [0] * array.ndim)


OUTPUTS = {
    "read_only": (locked, "it is written to; an output must be writable"),
    "misaligned": (unaligned, "not a multiple of the element size"),
    "foreign": (foreign, "in foreign byte order"),
    "other_type": (other_type, "no operator takes that type"),
    "other_width": (other_width, "types must be equal|sizes must be equal|it must be uint32"),
    "other_sizes": (lambda array: array[..., None].repeat(2, -1), "(shapes|sizes) must be equal"),
    "at_one_address": (at_one_address, "must not overlap|strides in elements must be equal"),
    "list": (lambda array: array.tolist(), "an output must be an array"),
    "masked": (lambda array: np.ma.masked_array(array, array == array), "the mask would be lost"),
}
INPUTS = {
    "foreign": (foreign, "in foreign byte order"),
    "other_type": (other_type, "no operator takes that type"),
    "masked": (lambda array: np.ma.masked_array(array, array == array), "the mask would be lost"),
    "ragged": (lambda array: [*array.tolist(), [1]], "its rows differ in length"),
}


def in_memory(arrays, memory):
    """Return copies in memory of their own, or in that of larger arrays."""
    return [place(array, memory) for array in arrays]


def results_for(expected, memory):
    """Return outputs to give, of the types that functions make them in."""
    return in_memory([np.full_like(array, 77) for array in expected], memory)


def check(call, inputs, out, expected):
    """Make a call, and return how many Python functions that took."""
    options = {} if out is None else {"out": tuple(out) if len(out) == 2 else out[0]}
    results, count = python_calls(lambda: call(*inputs, **options))
    for got, array in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
        assert_same(got, array)
    return count


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("fault", OUTPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs(name, fault, memory):
    call, expected, names = FUNCTIONS[name]
    inputs = in_memory([X, PICKS][: len(names)], memory)
    spoil, text = OUTPUTS[fault]

    def good():
        return check(call, inputs, results_for(expected, memory), expected)

    for number, result in enumerate(expected):
        if result.ndim == 0 and fault in ("at_one_address", "other_sizes"):
            continue
        settle(good)
        out = results_for(expected, memory)
        intact = [array for i, array in enumerate(out) if i != number]
        out[number] = spoil(out[number])
        where = f"out[{number}]" if len(out) == 2 else "out"
        with pytest.raises((DmlError, TypeError), match=text) as caught:
            check(call, inputs, out, expected)
        assert str(caught.value).startswith(f"{name}.{where}: ")
        assert all((array == 77).all() for array in intact)
        good()


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("fault", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs(name, fault, given):
    call, expected, names = FUNCTIONS[name]
    spoil, text = INPUTS[fault]
    for memory in MEMORIES:
        inputs = in_memory([X, PICKS][: len(names)], memory)

        def good(inputs=inputs, memory=memory):
            return check(call, inputs, results_for(expected, memory) if given else None, expected)

        for number, wrong in enumerate(names):
            settle(good)
            spoiled = [spoil(array) if i == number else array for i, array in enumerate(inputs)]
            with pytest.raises(TypeError, match=text) as caught:
                check(call, spoiled, results_for(expected, memory) if given else None, expected)
            assert str(caught.value).startswith(f"{name}.{wrong}: ")
            good()


SHARED = {
    "top_k-values": lambda x, free: dmlops.top_k(x, 8, out=(free, np.zeros((6, 8), "int64"))),
    "top_k-indices": lambda x, free: dmlops.top_k(
        x, 8, out=(np.zeros((6, 8), "float32"), free.view("int32"))
    ),
    "gather-x": lambda x, free: dmlops.gather_nd(x, np.arange(6)[:, None], out=free),
    "diagonal": lambda x, free: dmlops.diagonal_matrix(x, value=0, out=free),
    "nonzero-coordinates": lambda x, free: dmlops.nonzero_coordinates(
        x, out=(free.view("int32").reshape(24, 2), np.zeros((), "int32"))
    ),
    "nonzero-count": lambda x, free: dmlops.nonzero_coordinates(
        x, out=(np.zeros((24, 2), "int32"), free.view("int32")[0, :1])
    ),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", SHARED)
def test_memory_that_is_shared(name, memory):
    call = SHARED[name]
    settle(lambda: python_calls(lambda: call(place(X, memory), place(X, memory)))[1])
    x = place(X, memory)
    with pytest.raises(DmlError, match="shares memory"):
        call(x, x)
    assert_same(x, X)
    call(x, place(X, memory))


FLOATS = Desc(Type.FLOAT32, (6, 8))
DESCRIPTORS = {
    "TopK1": TopK1(input_tensor=FLOATS, axis=1, k=3, axis_direction=AxisDirection.DECREASING),
    "NonzeroCoordinates": NonzeroCoordinates(input_tensor=FLOATS),
    "GatherND1": GatherND1(
        input_tensor=FLOATS,
        indices_tensor=Desc(Type.INT64, (5, 2)),
        input_dimension_count=2,
        indices_dimension_count=2,
        batch_dimension_count=0,
    ),
    "DiagonalMatrix1": DiagonalMatrix1(
        input_tensor=FLOATS, value=0, diagonal_fill_begin=0, diagonal_fill_end=1
    ),
}
ANSWERS = {
    "TopK1": dict(zip(["output_value_tensor", "output_index_tensor"], reference.top_k(X, 3), strict=True)),
    "NonzeroCoordinates": {
        "output_coordinates_tensor": np.argwhere(X),
        "output_count_tensor": np.full((1, 1), np.count_nonzero(X)),
    },
    "GatherND1": {"output_tensor": reference.gather_nd(X, PICKS).reshape(1, 5)},
    "DiagonalMatrix1": {"output_tensor": reference.diagonal_matrix(X, value=0)},
}
EXECUTION_FAULTS = {
    "same_width": (
        lambda array: array.view(f"i{array.itemsize}" if array.dtype.kind != "i" else "f8"),
        "types must",
    ),
    "strides": (np.asfortranarray, "strides in elements must be equal"),
    "sizes": (
        lambda array: array.reshape(*array.shape[1:], array.shape[0], 1)[..., 0],
        "sizes must be equal",
    ),
    **OUTPUTS,
}


class Execution:
    """A compiled operator with arrays that fit it."""

    def __init__(self, name, memory, *, has_workspace):
        self.name, self.memory = name, memory
        self.operator = dmlops.compile(DESCRIPTORS[name])
        self.workspace = np.empty(max(self.operator.workspace_size, 16), np.uint8) if has_workspace else None

    def arrays(self):
        """Return new arrays for all fields."""
        inputs = {"input_tensor": X, "indices_tensor": PICKS}
        outputs = {
            field: np.full(desc.sizes, 77, desc.data_type.name.lower())
            for field, desc in self.operator.outputs.items()
        }
        arrays = {field: inputs[field] for field in self.operator.inputs} | outputs
        return {field: place(array, self.memory) for field, array in arrays.items()}

    def good(self):
        """Execute on arrays that fit; return how many Python functions that took."""
        arrays = self.arrays()
        _, count = python_calls(lambda: self.operator.execute(arrays, self.workspace))
        for field, answer in ANSWERS[self.name].items():
            rows = slice(len(answer))
            np.testing.assert_array_equal(arrays[field][rows], answer)
        return count

    def refuses(self, changes, text, workspace=None):
        """Check that an execution with some other arrays is refused and writes nothing; then a good one."""
        settle(self.good)
        arrays = self.arrays() | changes
        with pytest.raises((DmlError, TypeError), match=text):
            self.operator.execute(arrays, self.workspace if workspace is None else workspace)
        for field in self.operator.outputs.keys() - changes.keys():
            assert (arrays[field] == 77).all()
        self.good()


@pytest.mark.parametrize("has_workspace", [False, True])
@pytest.mark.parametrize("name", DESCRIPTORS)
class TestExecutions:
    @needs_gil
    def test_they_take_a_shorter_way(self, name, has_workspace):
        for memory in MEMORIES:
            counts = settle(Execution(name, memory, has_workspace=has_workspace).good)
            assert counts[-1] < counts[1] // 2 < counts[0]

    @pytest.mark.parametrize("fault", EXECUTION_FAULTS)
    def test_arrays(self, name, has_workspace, fault):
        spoil, text = EXECUTION_FAULTS[fault]
        for memory in MEMORIES:
            execution = Execution(name, memory, has_workspace=has_workspace)
            for field, array in execution.arrays().items():
                is_output = field in execution.operator.outputs
                if not is_output and fault in ("read_only", "misaligned", "list"):
                    continue  # such inputs are read
                if array.size == 1 and fault in ("strides", "sizes", "at_one_address"):
                    continue
                if array.shape[0] == 1 and fault in ("strides", "sizes"):
                    continue
                execution.refuses({field: spoil(array)}, text)

    def test_inputs_that_are_copied(self, name, has_workspace):
        execution = Execution(name, "own", has_workspace=has_workspace)
        settle(execution.good)
        for spoil in (locked, unaligned, np.ndarray.tolist):
            arrays = execution.arrays()
            for field in execution.operator.inputs:
                wanted = arrays[field].dtype
                spoiled = spoil(arrays[field])
                arrays[field] = np.array(spoiled, wanted) if isinstance(spoiled, list) else spoiled
            execution.operator.execute(arrays, execution.workspace)
            for field, answer in ANSWERS[name].items():
                np.testing.assert_array_equal(arrays[field][: len(answer)], answer)

    def test_memory_that_is_shared(self, name, has_workspace):
        execution = Execution(name, "own", has_workspace=has_workspace)
        for field in execution.operator.outputs:
            for other in execution.arrays().keys() - {field}:
                for first, second in ((field, other), (other, field)):
                    arrays = execution.arrays()
                    memory = np.full(1000, 77, np.uint8)
                    # The second begins within the last bytes of the first.
                    begin = (arrays[first].nbytes - 1) // 8 * 8
                    for kind, start in ((first, 0), (second, begin)):
                        part = memory[start : start + arrays[kind].nbytes].view(arrays[kind].dtype)
                        arrays[kind] = part.reshape(arrays[kind].shape)
                    changes = {first: arrays[first], second: arrays[second]}
                    execution.refuses(changes, "shares memory")
                    assert (memory == 77).all()

    def test_workspaces(self, name, has_workspace):
        execution = Execution(name, "own", has_workspace=has_workspace)
        size = execution.operator.workspace_size
        if not size:
            return
        # All arrays are parts of a larger block, so that a defect cannot damage other memory.
        memory = np.empty(4 * size, np.uint8)
        for workspace, text in (
            (memory[size:][: size - 1], "bytes are needed"),
            (memory[size : 3 * size : 2], "must be contiguous"),
            (memory[size : 2 * size][::-1], "must be contiguous"),
            (locked(memory[size : 2 * size]), "read-only"),
            ([0] * size, "an output must be an array"),
        ):
            execution.refuses({}, text, workspace)
        memory = np.zeros(size + X.nbytes, np.uint8)
        memory[-X.nbytes :] = place(X, "own").reshape(-1).view(np.uint8)
        x = memory[-X.nbytes :].view("float32").reshape(X.shape)
        execution.refuses({"input_tensor": x}, "shares memory", memory[8 : size + 8])
