"""Calls touch only elements of their arrays: the memory around them is inaccessible.

Every array of a problem is flush against pages that end the process when they are touched, at either end and
between its rows. Inputs are read-only, and canaries fill the rest of their pages.
`DMLOPS_GUARDED_PROBLEMS` asks for more problems than in the ordinary suite, and `DMLOPS_STRESS_SEED` for
others.
"""

import os
import signal
import sys
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix1,
    FeatureLevel,
    GatherND1,
    NonzeroCoordinates,
    TensorDesc,
    TopK1,
)
from dmlops.types.data_types import SUPPORTED
from tests import opaque_data, reference
from tests.data import DTYPES, FLOATS, INDEX_DTYPES, assert_same, random, sample
from tests.guarded import Guarded
from tests.marks import exhaustive
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")

PROBLEMS = int(os.environ.get("DMLOPS_GUARDED_PROBLEMS", "160"))
SEED = int(os.environ.get("DMLOPS_STRESS_SEED", "0"))
# Rows of 16 to 63 elements are read in pieces of 16, longer ones in words of 64.
ROW_SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 128, 200, 255, 257, 700, 1025, 4100)
MOST_ELEMENTS = 60_000


class Problem:
    """One random problem: its arrays, as NumPy or torch has them."""

    def __init__(self, number, library):
        self.rng = random(("guarded", SEED, number))
        self.library = library
        self.number = number
        self.arrays = {}

    def pick(self, values):
        return values[self.rng.integers(len(values))]

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def shape(self, rank):
        """Return a shape whose last size is one of `ROW_SIZES`."""
        sizes = [int(self.pick((1, 1, 2, 3, 5, 9))) for _ in range(rank - 1)]
        sizes.append(int(self.pick(ROW_SIZES)))
        while np.prod(sizes) > MOST_ELEMENTS:
            sizes[int(np.argmax(sizes))] //= 2
        if self.chance(0.02):
            sizes[self.rng.integers(rank)] = 0
        return tuple(sizes)

    def place(self, name, shape, dtype):
        """Return a guarded array of any layout, with no element written yet."""
        rank = len(shape)
        order = list(range(rank))
        if rank > 1 and self.chance(0.3):
            order = [int(d) for d in self.rng.permutation(rank)]
        n_outer = rank - 1 if rank and self.chance(0.5) else int(self.rng.integers(max(rank, 1)))
        while np.prod([shape[d] for d in order[:n_outer]], dtype=np.int64) > 600:
            n_outer -= 1
        backwards = [d for d in order if self.chance(0.15)] if self.library == "numpy" else []
        self.arrays[name] = Guarded(
            shape, dtype, n_outer=n_outer, at_end=self.chance(0.5), order=order, backwards=backwards
        )
        return self.arrays[name]

    def given(self, name, values):
        """Return a guarded input."""
        array = self.place(name, values.shape, values.dtype).fill(values, read_only=True)
        return self.wrapped(array)

    def wrapped(self, array):
        """Return an array as the library has it, in the same memory."""
        if self.library == "numpy":
            return array
        torch = sys.modules["torch"]
        data_type = getattr(torch, array.dtype.name)
        if array.size == 0:
            return torch.empty(array.shape, dtype=data_type)
        steps = [stride // array.itemsize for stride in array.strides]
        reach = 1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
        memory = np.asarray(_Bytes(array.ctypes.data, reach * array.itemsize))
        return torch.from_numpy(memory).view(data_type).as_strided(array.shape, steps)

    def check(self, expected):
        """Check every element of the outputs, and the memory around all arrays."""
        for name, answer in expected.items():
            assert_same(self.arrays[name].array, answer)
        for name, guarded in self.arrays.items():
            guarded.check(name)


class _Bytes:
    def __init__(self, address, size):
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
        }


def values_of(problem, shape, dtype):
    x = sample(dtype, shape, ("values", SEED, problem.number))
    keep = problem.rng.random(shape) < problem.pick((0, 0.01, 0.2, 0.9, 1))
    return np.where(keep, x, np.zeros((), dtype))


def _top_k(problem):
    dtype, index_dtype = problem.pick(DTYPES), problem.pick(INDEX_DTYPES)
    shape = problem.shape(int(problem.pick((1, 2, 2, 3))))
    axis = -1 if problem.chance(0.7) else int(problem.rng.integers(len(shape)))
    size = shape[axis]
    k = min(int(problem.pick((1, 2, 8, 60, 100, 170, max(size // 2, 1), size, size))), size)
    values = values_of(problem, shape, dtype)
    largest = problem.chance(0.5)
    x = problem.given("x", values)
    expected = reference.top_k(values, k, axis=axis, largest=largest)
    expected = expected[0], expected[1].astype(index_dtype)
    out = [problem.place(f"out[{i}]", answer.shape, answer.dtype) for i, answer in enumerate(expected)]
    out = tuple(problem.wrapped(guarded.fill(bits_of_77(guarded.dtype))) for guarded in out)
    yield lambda: dmlops.top_k(x, k, axis=axis, largest=largest, out=out)
    yield {f"out[{i}]": answer for i, answer in enumerate(expected)}


def _nonzero_coordinates(problem):
    dtype, index_dtype = problem.pick(DTYPES), problem.pick(INDEX_DTYPES)
    shape = problem.shape(int(problem.pick((0, 1, 2, 2, 3, 4))) or 1)
    values = values_of(problem, shape, dtype)
    x = problem.given("x", values)
    n_found = reference.nonzero_coordinates(values)[1].item()
    if problem.chance(0.3):
        # Trimmed: what comes back was allocated, and is compared where it is.
        found = []
        yield lambda: found.append(dmlops.nonzero_coordinates(x))
        for got, answer in zip(found[0], reference.nonzero_coordinates(values), strict=True):
            assert_same(np.asarray(got), answer)
        yield {}
        return
    size = int(problem.pick((n_found, n_found + 5, n_found // 2, values.size)))
    expected = reference.nonzero_coordinates(values, size=size, fill_value=7)
    expected = [answer.astype(index_dtype) for answer in expected]
    out = [problem.place(f"out[{i}]", answer.shape, answer.dtype) for i, answer in enumerate(expected)]
    out = tuple(problem.wrapped(guarded.fill(77)) for guarded in out)
    yield lambda: dmlops.nonzero_coordinates(x, fill_value=7, size=size, out=out)
    yield {f"out[{i}]": answer for i, answer in enumerate(expected)}


def _gather_nd(problem):
    dtype, index_dtype = problem.pick(DTYPES), problem.pick(INDEX_DTYPES)
    shape = problem.shape(int(problem.pick((1, 2, 2, 3))))
    width = int(problem.rng.integers(1, len(shape) + 1))
    batch = int(problem.rng.integers(0, len(shape) - width + 1))
    leading = tuple(int(problem.pick((1, 3, 17, 64, 70))) for _ in range(problem.rng.integers(1, 3)))
    values = values_of(problem, shape, dtype)
    bounds = shape[batch : batch + width]
    mode = "fill" if 0 in bounds else problem.pick(("raise", "clip", "fill"))
    tuples_shape = (*shape[:batch], *leading, width)
    low = -1 if mode != "raise" else 0
    tuples = np.stack(
        [problem.rng.integers(low, max(n - low, 1), tuples_shape[:-1]) for n in bounds], -1
    ).astype(index_dtype)
    if mode == "raise":
        tuples = np.minimum(tuples, np.array(bounds, index_dtype) - 1).astype(index_dtype)
    if tuples.size // width * int(np.prod(shape[batch + width :], dtype=np.int64)) > MOST_ELEMENTS:
        tuples = tuples[tuple(slice(0, 3) if d >= batch else slice(None) for d in range(tuples.ndim - 1))]
    answer = reference.gather_nd(values, tuples, batch_dims=batch, mode=mode)
    x, indices = problem.given("x", values), problem.given("indices", tuples)
    guarded = problem.place("out", answer.shape, dtype)
    out = problem.wrapped(guarded.fill(bits_of_77(guarded.dtype)))
    yield lambda: dmlops.gather_nd(x, indices, batch_dims=batch, mode=mode, out=out)
    yield {"out": answer}


def _diagonal_matrix(problem):
    dtype = problem.pick(DTYPES)
    shape = problem.shape(int(problem.pick((2, 2, 3))))
    begin, end = (int(problem.rng.integers(-shape[-2] - 2, shape[-1] + 3)) for _ in range(2))
    value = -5.5 if dtype in FLOATS else 1
    values = values_of(problem, shape, dtype)
    answer = reference.diagonal_matrix(values, value=value, begin=begin, end=end)
    x = problem.given("x", values)
    guarded = problem.place("out", shape, dtype)
    out = problem.wrapped(guarded.fill(bits_of_77(guarded.dtype)))
    yield lambda: dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)
    yield {"out": answer}


def bits_of_77(dtype):
    """Return what no operator writes, of any data type."""
    return np.full(1, 77, "uint8").astype(dtype)[0]


OPERATORS = (_top_k, _nonzero_coordinates, _gather_nd, _diagonal_matrix)


def call_functions(first, last, library):
    """Call the functions on problems `first` to `last`; a stray access ends the process."""
    if library == "torch":
        __import__("torch")
    for number in range(first, last):
        make = OPERATORS[number % len(OPERATORS)]
        print(library, number, make.__name__, flush=True)
        problem = Problem(number, library)
        steps = make(problem)
        call = next(steps)
        for _ in range(3):  # the first call binds, the second learns, the third replays
            call()
        problem.check(next(steps))


def call_on_rows():
    """Call every function on rows of each length up to 130, with pages that end the process between them."""
    for size in range(1, 131):
        for dtype in ("uint8", "float16", "float32", "float64"):
            values = sample(dtype, (3, size), ("rows", size))
            values[random((size, dtype)).random((3, size)) < 0.5] = 0
            for at_end in (False, True):
                print(size, dtype, at_end, flush=True)
                x = Guarded((3, size), dtype, n_outer=1, at_end=at_end).fill(values, read_only=True)
                found, _ = dmlops.nonzero_coordinates(x)
                assert_same(found, reference.nonzero_coordinates(values)[0])
                band = Guarded((3, size), dtype, n_outer=1, at_end=at_end)
                dmlops.diagonal_matrix(x, value=1, begin=-1, end=size // 2, out=band.array)
                assert_same(band.array, reference.diagonal_matrix(values, value=1, begin=-1, end=size // 2))
                k = min(size, 4)
                best = Guarded((3, k), dtype, n_outer=1, at_end=at_end)
                places = Guarded((3, k), "int64", n_outer=1, at_end=at_end)
                dmlops.top_k(x, k, out=(best.array, places.array))
                assert_same(places.array, reference.top_k(values, k)[1])
                taken = Guarded((2, size), dtype, n_outer=1, at_end=at_end)
                tuples = Guarded((2, 1), "int64", n_outer=1, at_end=at_end).fill([[2], [-3]], read_only=True)
                dmlops.gather_nd(x, tuples, out=taken.array)
                assert_same(taken.array, values[[2, 0]])
                for guarded in (band, best, places, taken):
                    guarded.check((size, dtype))


def _tensor(guarded):
    """Return the description of an array in the memory of a guarded one."""
    array = guarded.array
    steps = [stride // array.itemsize for stride in array.strides]
    return TensorDesc(SUPPORTED[array.dtype.name], array.shape, steps)


def _descriptor(problem, kind):
    """Place the arrays of a descriptor; return it, and what its outputs must hold."""
    dtype = problem.pick(DTYPES)
    shape = problem.shape(3 if kind == "diagonal" else int(problem.pick((1, 2, 3))))
    shape = tuple(max(size, 1) for size in shape)
    values = values_of(problem, shape, dtype)
    problem.given("input_tensor", values)
    x = _tensor(problem.arrays["input_tensor"])

    def outputs(answers):
        for field, answer in answers.items():
            guarded = problem.place(field, answer.shape, answer.dtype)
            guarded.fill(bits_of_77(guarded.dtype))
        return {field: _tensor(problem.arrays[field]) for field in answers}

    if kind == "top_k":
        axis = int(problem.rng.integers(len(shape)))
        k = min(int(problem.pick((1, 8, 200, shape[axis]))), shape[axis])
        found = reference.top_k(values, k, axis=axis)
        answers = {"output_value_tensor": found[0], "output_index_tensor": found[1].astype("uint32")}
        fields = {"axis": axis, "k": k, "axis_direction": AxisDirection.DECREASING}
        return TopK1(input_tensor=x, **fields, **outputs(answers)), answers
    if kind == "nonzero":
        found, count = reference.nonzero_coordinates(values, size=values.size, fill_value=77)
        answers = {
            "output_count_tensor": count.astype("uint32").reshape(1),
            "output_coordinates_tensor": found.astype("uint32"),
        }
        return NonzeroCoordinates(input_tensor=x, **outputs(answers)), answers
    if kind == "gather":
        rank = len(shape)
        tuples = problem.rng.integers(-3, shape[0] + 3, (*(1,) * (rank - 1), 1)).astype("int64")
        problem.given("indices_tensor", tuples)
        answer = reference.gather_nd(values, tuples.reshape(-1, 1), mode="clip")
        answers = {"output_tensor": answer.reshape((shape[1:] and (1, *shape[1:])) or (1,))}
        counts = {"input_dimension_count": rank, "indices_dimension_count": 2 if rank > 1 else 1}
        if rank == 1:
            answers = {"output_tensor": answer.reshape(1)}
        descriptor = GatherND1(
            input_tensor=x,
            indices_tensor=_tensor(problem.arrays["indices_tensor"]),
            batch_dimension_count=0,
            **counts,
            **outputs(answers),
        )
        return descriptor, answers
    answers = {"output_tensor": reference.diagonal_matrix(values, value=1, begin=-2, end=3)}
    band = {"value": 1, "diagonal_fill_begin": -2, "diagonal_fill_end": 3}
    return DiagonalMatrix1(input_tensor=x, **band, **outputs(answers)), answers


def execute_operators(first, last):
    """Execute operators with a workspace of just the size that they ask for, flush against a page as well."""
    kinds = ("top_k", "nonzero", "gather", "diagonal")
    for number in range(first, last):
        kind = kinds[number % len(kinds)]
        print("execute", number, kind, flush=True)
        problem = Problem(("execute", number), "numpy")
        descriptor, answers = _descriptor(problem, kind)
        operator = dmlops.compile(descriptor, feature_level=FeatureLevel.EXTENDED)
        workspace = Guarded((operator.workspace_size,), "uint8", at_end=problem.chance(0.5))
        problem.arrays["workspace"] = workspace
        workspace.array[...] = problem.rng.integers(0, 256, operator.workspace_size)
        arrays = {field: problem.arrays[field].array for field in (*operator.inputs, *operator.outputs)}
        for _ in range(2):
            operator.execute(arrays, workspace=workspace.array)
        problem.check(answers)


LIBRARIES = ("numpy", "torch") if find_spec("torch") else ("numpy",)
# Problems of all types need all kernels; the ordinary run tests scalar kernels in test_bounds.py only.
SIMD = pytest.mark.parametrize("simd", [exhaustive("0"), "1"])


@SIMD
@pytest.mark.parametrize("library", LIBRARIES)
def test_functions(library, simd):
    run_script(
        f"from tests.test_guard_pages import call_functions; call_functions(0, {PROBLEMS}, {library!r})",
        DMLOPS_SIMD=simd,
        DMLOPS_NUM_THREADS="2",
    )


@SIMD
def test_rows_of_every_length(simd):
    run_script("from tests.test_guard_pages import call_on_rows; call_on_rows()", DMLOPS_SIMD=simd)


@SIMD
def test_executions(simd):
    run_script(
        f"from tests.test_guard_pages import execute_operators; execute_operators(0, {PROBLEMS // 2})",
        DMLOPS_SIMD=simd,
    )


def call_on_parts():
    """Call on elements that kernels take as several integers."""
    shapes = ((1, 1), (2, 3), (7, 5), (3, 64), (65, 17), (2, 3, 33), (40, 300))
    for dtype, shape, at_end in product(
        map(np.dtype, ("c8", "c16", "u1,f4", "f4,f4,f4")), shapes, (True, False)
    ):
        values = opaque_data.sample(dtype, shape)
        bytes_of_values = opaque_data.raw(values)
        backwards = [d for d in range(len(shape)) if len(shape) == 2]
        guarded = [
            Guarded(size, dtype, at_end=at_end, order=order, backwards=reverse)
            for size, order, reverse in (
                (shape, range(len(shape)), backwards),
                (shape, range(len(shape))[::-1], ()),
                ((2, *shape[1:]), None, ()),
            )
        ]
        x, out, picked = guarded
        x.fill(values, read_only=True)
        indices = np.array([[shape[0] - 1], [0]])
        dmlops.gather_nd(x.array, indices, out=picked.array)
        np.testing.assert_array_equal(opaque_data.raw(picked.array), bytes_of_values[indices[:, 0]])
        for value in (0, values.flat[0]):
            dmlops.diagonal_matrix(x.array, value=value, begin=-1, end=3, out=out.array)
            np.testing.assert_array_equal(
                opaque_data.raw(out.array), opaque_data.filled(values, value, -1, 3)
            )
        found = dmlops.nonzero_coordinates(x.array).coordinates
        np.testing.assert_array_equal(found, np.argwhere(opaque_data.is_nonzero(values)))
        for name, array in enumerate(guarded):
            array.check(name)


@SIMD
def test_parts_of_elements(simd):
    run_script("from tests.test_guard_pages import call_on_parts; call_on_parts()", DMLOPS_SIMD=simd)


@pytest.mark.parametrize(("at_end", "place"), [(True, 5), (False, -1)])
def test_the_guard_holds(at_end, place):
    script = f"""
        import ctypes
        from tests.guarded import Guarded
        array = Guarded((5,), "uint8", at_end={at_end}).fill(1)
        print(bytes(array), flush=True)
        ctypes.string_at(array.ctypes.data + {place}, 1)
    """
    with pytest.raises(AssertionError, match=f"exit status -{signal.SIGSEGV}"):
        run_script(script)


def test_the_canaries_hold():
    guarded = Guarded((3, 5), "uint8", n_outer=1)
    guarded.fill(1)
    guarded.check("x")
    before_the_first_row = np.lib.stride_tricks.as_strided(guarded.array[0, :1], (2,), (-1,))
    before_the_first_row[1] = 0
    with pytest.raises(AssertionError, match="memory around x"):
        guarded.check("x")
