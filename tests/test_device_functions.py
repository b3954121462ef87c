"""The device functions of `dmlops.device`, in kernels as users write them: `tests.interpreter` runs these."""

import functools
import importlib
import re
from unittest import mock

import numpy as np
import pytest

from tests import reference
from tests.data import assert_same, sample
from tests.gpu.numba_cuda import numba_cuda
from tests.hard_rows import KINDS, OF_BITS, hard_rows
from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.memory import GlobalMemory
from tests.interpreter.program import parse
from tests.kernel_sources import needs_compilations
from tests.marks import exhaustive, nightly
from tests.scripts import run_page, run_script

pytestmark = needs_compilations
DTYPES = ("float16", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))


def device():
    """Return `dmlops.device`; without a compiler of kernels, the test is skipped."""
    numba_cuda()
    return importlib.import_module("dmlops.device")


def top_k_kernel(dtype, k, threads, size, largest):
    """Return a kernel whose blocks select from two rows each; all threads write what they get.

    With 32 threads for a row, each warp has a row; with more, the block has one after the other.
    """
    of_warp, cuda, items = threads == 32, numba_cuda(), size // 32
    sizes = (k, items) if of_warp else (k, threads, size)
    select = (device().warp_top_k if of_warp else device().block_top_k)(dtype, *sizes, largest=largest)
    element = importlib.import_module("numba").from_dtype(np.dtype(dtype))

    @cuda.jit
    def by_warps(x, counts, values, indices):
        lane, row = cuda.threadIdx.x % 32, 2 * cuda.blockIdx.x + cuda.threadIdx.x // 32
        elements = cuda.local.array(items, element)
        for i in range(items):
            elements[i] = x[row, 32 * i + lane]
        values[row, lane], indices[row, lane] = select(elements, counts[row])

    @cuda.jit(launch_bounds=threads)
    def by_blocks(x, counts, values, indices):
        elements, thread = cuda.shared.array(size, element), cuda.threadIdx.x
        for row in range(2 * cuda.blockIdx.x, 2 * cuda.blockIdx.x + 2):
            for i in range(thread, size, threads):
                elements[i] = x[row, i]
            values[row, thread], indices[row, thread] = select(elements, counts[row])

    return (by_warps if of_warp else by_blocks), select


def check_top_k(launch, dtype, k, threads, size, largest):
    """Select from rows of all kinds, and compare what all threads get with NumPy."""
    rows = [hard_rows(kind, dtype, (2, size)) for kind in (*KINDS, *OF_BITS) if "misleading" not in kind]
    x = np.concatenate([each for each in rows if each is not None])
    some = [size, 0, 1, size - 1, size + 7, -3, k - 1, k + 1, size // 2]
    counts = np.where(np.arange(len(x)) % 2 == 0, size, np.resize(some, len(x)))
    found = np.zeros((len(x), threads), dtype), np.zeros((len(x), threads), np.int32)
    kernel, _ = top_k_kernel(dtype, k, threads, size, largest)
    launch(kernel, len(x) // 2, max(threads, 64), x, counts, *found)
    answer = reference.top_k(x, k, lengths=counts, largest=largest)
    for array, first, last in zip(found, answer, (reference.padding(dtype, largest), -1), strict=True):
        expected = np.full_like(array, last)
        expected[:, :k] = first
        assert_same(array, expected)


def check_compact(launch, dtype, threads):
    """Put the non-zero elements of rows together, of which a block has two parts, and compare with NumPy."""
    compact, cuda = device().block_compact(threads), numba_cuda()

    @cuda.jit(device=True)
    def total_of(flag):
        return compact(flag)[1]

    @cuda.jit
    def kernel(x, found):
        row, n_found = cuda.blockIdx.x, 0
        for first in range(0, x.shape[1], threads):
            element = x[row, first + cuda.threadIdx.x]
            position, _ = compact(element)
            if element != 0:
                found[row, n_found + position] = element
            n_found += total_of(element)

    x = sample(dtype, (4, 2 * threads), "flags")
    x[1] = 0
    found = np.zeros_like(x)
    launch(kernel, len(x), threads, x, found)
    assert_same(found, np.stack([np.append(row[row != 0], np.zeros_like(row[row == 0])) for row in x]))


def ptx_of(kernel, *arguments, capability=(9, 0)):
    """Return what Numba compiles a kernel to for arguments; this needs no GPU."""
    numba = importlib.import_module("numba")
    options = {"device": False, "abi": "numba", "output": "ptx", "cc": capability}
    options |= {name: kernel.targetoptions.get(name) for name in ("fastmath", "launch_bounds")}
    signature = numba.void(*map(numba.typeof, arguments))
    gpu = mock.Mock(compute_capability=capability)
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=gpu):
        return numba_cuda().compile(kernel.py_func, signature, **options)[0]


def interpret(kernel, n_blocks, n_threads, *arguments):
    """Run a kernel, which changes arrays in place as it does on a GPU."""
    arguments, memory, words = [*map(np.asarray, arguments)], GlobalMemory(), []
    for given in arguments:
        words += [0, 0, given.size, given.itemsize, memory.add(given), *given.shape, *given.strides]
    program = parse(ptx_of(kernel, *arguments))
    assert not Machine(program, memory, Sizes(n_blocks, n_threads), words).run()
    memory.settle()


@pytest.mark.parametrize(
    ("dtype", "k", "threads", "size", "largest"),
    [
        *(exhaustive("float32", k, 32, size, False) for k, size in ((8, 64), (32, 1024), (1, 32), (32, 96))),
        *(exhaustive(dtype, 5, 32, 64, largest) for dtype in DTYPES for largest in (True, False)),
        *(exhaustive(dtype, 200, 256, 400, True) for dtype in ("float32", "int64", "float16")),
        *(nightly(dtype, 5, 512, 999, False) for dtype in DTYPES),
    ],
)
def test_top_k(dtype, k, threads, size, largest):
    check_top_k(interpret, dtype, k, threads, size, largest)


@pytest.mark.parametrize(("dtype", "threads"), [("int32", 64), exhaustive("uint8", 1024)])
def test_block_compact(dtype, threads):
    check_compact(interpret, dtype, threads)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0), (12, 0)], ids=str)
def test_each_architecture(capability):
    """They take the instructions that it has, keep local arrays in registers, and say what they share."""
    x, counts, indices = np.zeros((2, 1024), np.float32), np.zeros(2, int), np.zeros((2, 256), np.int32)
    for threads, shared_row in ((32, 0), (256, x[0].nbytes)):
        kernel, select = top_k_kernel("float32", 8, threads, 1024, True)
        ptx = ptx_of(kernel, x, counts, x, indices, capability=capability)
        assert ("redux.sync" in ptx) == (capability >= (8, 0))
        assert "local_depot" not in ptx
        declared = sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))
        assert declared == shared_row + getattr(select, "shared_bytes", 0)


def test_refusals():
    with pytest.raises(ValueError, match=r"warp_top_k\.k: got 33; it must be in range\(1, 33\)"):
        device().warp_top_k("float32", 33, 1)
    with pytest.raises(ValueError, match=r"block_top_k\.dtype: got '>f4'; it must be in \('float16', "):
        device().block_top_k(">f4", 1, 256, 1)
    with pytest.raises(ValueError, match=r"size: got 2561; it must be in range\(1, 2561\)"):
        device().block_top_k("float64", 1, 256, 2561)


MOST = {(4, 256): 4096, (4, 512): 4096, (4, 1024): 3072, (8, 256): 2560, (8, 512): 2048, (8, 1024): 1024}


@pytest.mark.parametrize(("element_bytes", "threads"), MOST)
def test_the_longest_rows_of_blocks(element_bytes, threads):
    """As the page says."""
    most = MOST[element_bytes, threads]
    for dtype in (f"float{8 * element_bytes}", *(("int8", "float16") if element_bytes == 4 else ())):
        assert device().block_top_k(dtype, 1, threads, most).shared_bytes <= 48 << 10
        with pytest.raises(
            ValueError, match=rf"block_top_k\.size: got {most + 1}; .* range\(1, {most + 1}\)"
        ):
            device().block_top_k(dtype, 1, threads, most + 1)


def test_what_is_no_number_of_elements_is_refused():
    """Also where it is equal to one that was asked for before."""
    device().warp_top_k("float32", 3, 1)
    device().warp_top_k("float32", 1, 1)
    device().block_top_k("float32", 1, 256, 1)
    device().block_compact(64)
    numbers = "it must be in range"
    for make, arguments, field, told in (
        ("warp_top_k", ("float32", 3.0, 1), "warp_top_k.k: got 3.0", numbers),
        ("warp_top_k", ("float32", True, 1), "warp_top_k.k: got True", numbers),
        ("warp_top_k", ("float32", 1, np.bool_(True)), "warp_top_k.items: got np.True_", numbers),
        ("block_top_k", ("float32", 1, 256.0, 1), "block_top_k.threads: got 256.0", "it must be in (256, "),
        ("block_top_k", ("float32", 1, 256, "1"), "block_top_k.size: got '1'", numbers),
        ("block_compact", (64.0,), "block_compact.threads: got 64.0", numbers),
        ("warp_top_k", ("float31", 1, 1), "warp_top_k.dtype: got 'float31'", "it must be in ('float16', "),
        ("warp_top_k", (None, 1, 1), "warp_top_k.dtype: got None", "it must be in ('float16', "),
        ("warp_top_k", (object(), 1, 1), "warp_top_k.dtype: got <object ", "it must be in ('float16', "),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(field)}") as error:
            getattr(device(), make)(*arguments)
        assert told in str(error.value)
    with pytest.raises(ValueError, match=r"warp_top_k\.largest: got 'no'; it must be in \(False, True\)"):
        device().warp_top_k("float32", 1, 1, largest="no")


def test_types_of_numba_are_types():
    numba = importlib.import_module("numba")
    select = device().warp_top_k(numba.float32, np.int64(1), 1)
    ptx_of(warp_kernel(select, 1, numba.float32), np.zeros(32, np.float32))


def warp_kernel(select, length, element, by="variable"):
    """Return a kernel that selects from a local array: a variable, one of two, or a function's parameter."""
    cuda = numba_cuda()

    @cuda.jit(device=True)
    def call(row):
        return select(row, 32)

    @cuda.jit
    def from_variable(x):
        row = cuda.local.array(length, element)
        row[0] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = select(row, 32)[0]

    @cuda.jit
    def from_one_of_two(x):
        row = cuda.local.array(1, element) if cuda.blockIdx.x == 0 else cuda.local.array(length, element)
        row[0] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = select(row, 32)[0]

    @cuda.jit
    def from_function(x):
        row = cuda.local.array(length, element)
        row[0] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = call(row)[0]

    return {"variable": from_variable, "one of two": from_one_of_two, "function": from_function}[by]


@pytest.mark.parametrize("by", ["variable", "one of two"])
def test_local_arrays_of_another_length_are_refused(by):
    numba, x = importlib.import_module("numba"), np.zeros(32, np.float32)
    select = device().warp_top_k("float32", 1, 1)
    for length in (2, 3):
        kernel = warp_kernel(select, length, numba.float32, by)
        with pytest.raises(TypeError, match=f"row: got a local array of {length} elements; it must have 1"):
            ptx_of(kernel, x)
    ptx_of(warp_kernel(select, 1, numba.float32, by), x)
    ptx_of(warp_kernel(select, 1, numba.float32, "function"), x)


def test_elements_of_another_type_are_refused():
    select = device().warp_top_k("float32", 1, 1)
    with pytest.raises(TypeError, match=r"row: got array\(float64, 1d, C\); .* array of float32"):
        ptx_of(numba_cuda().jit(lambda row: select(row, 3)), np.zeros(3))


def test_kernels_of_users_do_not_need_names_that_numpy_has_dropped():
    """As `row_stack` in NumPy 2.5, which numba-cuda 0.30 looks up when it first compiles a kernel."""
    numba_cuda()
    script = """
        import warnings

        import numpy

        warnings.simplefilter("ignore")
        if hasattr(numpy, "row_stack"):
            del numpy.row_stack
        from dmlops import device
        from numba import cuda, types

        print(hasattr(numpy, "row_stack"), ".entry" in cuda.compile_ptx(lambda: None, (), cc=(9, 0))[0])
    """
    assert run_script(script) == "False True\n"


@pytest.mark.exhaustive
def test_programs_of_the_page(monkeypatch):
    cuda = numba_cuda()
    on_host = type("OnHost", (np.ndarray,), {"copy_to_host": np.ndarray.__array__})
    monkeypatch.setattr(cuda, "to_device", lambda array: array.copy().view(on_host))
    monkeypatch.setattr(cuda, "device_array", lambda shape, dtype: np.full(shape, 7, dtype).view(on_host))
    dispatcher = type(cuda.jit(lambda: None))
    monkeypatch.setattr(dispatcher, "__getitem__", lambda *of: functools.partial(interpret, of[0], *of[1]))
    run_page("docs/device.md")
