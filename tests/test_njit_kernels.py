"""Every CPU kernel is a function of Numba's `njit`: here Numba itself calls one kernel per operator."""

import importlib
import struct

import numba
import numpy as np
import pytest
from numba.extending import is_jitted

import dmlops
from dmlops import AxisDirection, DiagonalMatrix1, GatherND1, NonzeroCoordinates, TensorDesc, TopK1
from dmlops.devices import cpu
from kernels_cpu.intrinsics.pointers import elements_at
from kernels_cpu.kernel import LoadedKernel
from tests import reference
from tests.data import assert_same, sample
from tests.plans import launch

# Numba compiles these kernels for every process anew.
pytestmark = pytest.mark.exhaustive


def function_of(kernel):
    """Return the function that a kernel is compiled from."""
    module, _, name = kernel.source.partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(*kernel.parameters) if kernel.parameters else function


def load_by_numba(kernel):
    """Return a kernel that is called from another function of Numba's."""
    function = function_of(kernel)
    assert is_jitted(function)
    pointers = [kind.startswith("*") for kind in kernel.signature]
    likes = tuple(
        np.empty(0, f"{kind[1]}{int(kind[2:]) // 8}") if is_pointer else 0
        for kind, is_pointer in zip(kernel.signature, pointers, strict=True)
    )
    arguments = [
        f"elements_at(words[{i}], likes[{i}])" if is_pointer else f"words[{i}]"
        for i, is_pointer in enumerate(pointers)
    ]
    names = {"kernel": function, "elements_at": elements_at}
    exec(f"def call(words, likes): return kernel({', '.join(arguments)})", names)
    call = numba.njit(names["call"])

    def entry(block):
        return call(struct.unpack(f"={len(likes)}q", block), likes) or 0

    return LoadedKernel(0, entry)


@pytest.fixture
def loaded(monkeypatch):
    """Let plans get their kernels from Numba; return the names of those that they got."""
    names = []

    def load(kernel):
        names.append(kernel.name)
        return load_by_numba(kernel)

    monkeypatch.setattr(cpu, "load", load)
    dmlops.set_num_threads(1)
    yield names
    dmlops.set_num_threads(None)


def test_top_k(loaded):
    x = sample("int32", (5, 40), "njit")
    desc = TopK1(
        input_tensor=TensorDesc("INT32", x.shape), axis=1, k=3, axis_direction=AxisDirection.DECREASING
    )
    values, indices = np.empty((5, 3), "int32"), np.empty((5, 3), "uint32")
    launch(desc, {"input_tensor": x, "output_value_tensor": values, "output_index_tensor": indices})
    expected = reference.top_k(x, 3)
    assert_same(values, expected[0])
    assert_same(indices, expected[1].astype("uint32"))
    assert loaded == ["top_k_short_rows"]


def test_nonzero_coordinates(loaded):
    x = sample("uint8", (30, 7), "njit") & np.uint8(1)
    coordinates, count = np.full((x.size, 2), 77, "uint32"), np.empty(1, "uint32")
    arrays = {"input_tensor": x, "output_coordinates_tensor": coordinates, "output_count_tensor": count}
    launch(NonzeroCoordinates(input_tensor=TensorDesc("UINT8", x.shape)), arrays)
    expected, _ = reference.nonzero_coordinates(x)
    assert count[0] == len(expected)
    assert_same(coordinates[: len(expected)], expected.astype("uint32"))
    assert loaded == ["nonzero_expand"]


def test_gather_nd(loaded):
    x = sample("float32", (6, 5), "njit")
    indices = np.array([[5, 4], [0, 0], [-1, 9]])
    desc = GatherND1(
        input_tensor=TensorDesc("FLOAT32", x.shape),
        indices_tensor=TensorDesc("INT64", indices.shape),
        input_dimension_count=2,
        indices_dimension_count=2,
        batch_dimension_count=0,
    )
    output = np.empty(desc.output_tensor.sizes, "float32")
    launch(desc, {"input_tensor": x, "indices_tensor": indices, "output_tensor": output})
    assert_same(output.ravel(), reference.gather_nd(x, indices, mode="clip"))
    assert loaded == ["gather_nd"]


def test_diagonal_matrix(loaded):
    x = sample("int16", (9, 11), "njit")
    band = {"value": 3, "diagonal_fill_begin": -1, "diagonal_fill_end": 2}
    desc = DiagonalMatrix1(input_tensor=TensorDesc("INT16", x.shape), **band)
    output = np.empty_like(x)
    launch(desc, {"input_tensor": x, "output_tensor": output})
    assert_same(output, reference.diagonal_matrix(x, value=3, begin=-1, end=2))
    assert loaded == ["diagonal_matrix"]
