"""Every CPU kernel is a function of Numba's `njit`: here Numba itself calls one kernel per operator."""

import importlib
import struct

import numba
import numpy as np
import pytest
from numba.extending import is_jitted

import dmlops
from dmlops.devices import cpu
from kernels_cpu.intrinsics.pointers import elements_at
from kernels_cpu.kernel import LoadedKernel
from tests.random_cases import MAKERS, random_case
from tests.test_random import launch

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


@pytest.mark.parametrize("operator", MAKERS)
def test_numba_calls_the_kernels(operator, loaded):
    case = random_case(operator, 0, most_elements=200, dtypes=["int32"])
    memory = {field: kept.copy() for field, kept in case.before.items()}
    launch(case, memory, np.random.default_rng(0))
    case.check(memory)
    assert loaded
