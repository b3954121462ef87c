"""Kernels as users write them, which call the functions of `dmlops.device`, and how they are interpreted."""

import importlib

import numpy as np
import pytest

from tests import reference
from tests.data import assert_same
from tests.gpu.numba_cuda import numba_cuda
from tests.hard_rows import KINDS, OF_BITS, hard_rows
from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.memory import GlobalMemory
from tests.interpreter.program import parse

FLOATS = ("float32", "float64", "float16")
DTYPES = (*FLOATS, *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")))


def device():
    """Return the module `dmlops.device`; without a compiler of kernels, the test is skipped."""
    numba_cuda()
    return importlib.import_module("dmlops.device")


def ptx_of(kernel, *arguments, capability=(9, 0)):
    """Return what Numba compiles a kernel to for arguments; this needs no GPU."""
    numba = pytest.importorskip("numba")
    signature = numba.void(*map(numba.typeof, arguments))
    cuda, options = numba_cuda(), {"device": False, "abi": "numba", "output": "ptx"}
    return cuda.compile(kernel.py_func, signature, cc=capability, **options)[0]


def interpret(kernel, n_blocks, n_threads, *arguments):
    """Run a kernel, which changes arrays in place as it does on a GPU."""
    arguments, memory, words = [*map(np.asarray, arguments)], GlobalMemory(), []
    for given in arguments:
        words += [0, 0, given.size, given.itemsize, memory.add(given), *given.shape, *given.strides]
    program = parse(ptx_of(kernel, *arguments))
    races = Machine(program, memory, Sizes(n_blocks, n_threads), words).run()
    memory.settle()
    assert not races


def warp_kernel(dtype, k, items, **options):
    """Return a kernel whose warps select from a row each; all lanes write what they get."""
    select, cuda = device().warp_top_k(dtype, k, items, **options), numba_cuda()
    element = importlib.import_module("numba").from_dtype(np.dtype(dtype))

    @cuda.jit
    def kernel(x, counts, values, indices):
        lane = cuda.threadIdx.x % 32
        row = (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) // 32
        keys = cuda.local.array(items, element)
        for i in range(items):
            keys[i] = x[row, 32 * i + lane]
        values[row, lane], indices[row, lane] = select(keys, counts[row])

    return kernel


def block_kernel(dtype, k, threads, size, **options):
    """Return a kernel whose blocks select from two rows each; all threads write what they get."""
    select, cuda = device().block_top_k(dtype, k, threads, size, **options), numba_cuda()
    numba = importlib.import_module("numba")
    element, scratch_bytes = numba.from_dtype(np.dtype(dtype)), select.shared_bytes
    assert select.threads == threads

    @cuda.jit
    def kernel(x, counts, values, indices):
        shared_row = cuda.shared.array(size, element)
        scratch = cuda.shared.array(scratch_bytes, numba.uint8)
        thread = cuda.threadIdx.x
        for row in range(2 * cuda.blockIdx.x, 2 * cuda.blockIdx.x + 2):
            for i in range(thread, size, threads):
                shared_row[i] = x[row, i]
            values[row, thread], indices[row, thread] = select(shared_row, counts[row], scratch)

    return kernel


def compact_kernel(threads):
    """Return a kernel whose blocks put the non-zero elements of each of their tiles together."""
    compact, cuda = device().block_compact(threads), numba_cuda()
    uint8, scratch_bytes = importlib.import_module("numba").uint8, compact.shared_bytes

    @cuda.jit
    def kernel(x, found, positions, totals):
        scratch = cuda.shared.array(scratch_bytes, uint8)
        thread, row = cuda.threadIdx.x, cuda.blockIdx.x
        n_found = 0
        for first in range(0, x.shape[1], threads):
            element = x[row, first + thread]
            position, total = compact(element, scratch)
            positions[row, first + thread], totals[row, first + thread] = position, total
            if element != 0:
                found[row, n_found + position] = element
            n_found += total

    return kernel


def rows_of(dtype, size, k):
    """Return rows of all kinds with all kinds of lengths, of which there are more or less than elements."""
    kinds = [kind for kind in (*KINDS, *OF_BITS) if not kind.startswith("misleading")]
    rows = [hard_rows(kind, dtype, (2, size)) for kind in kinds]
    x = np.concatenate([each for each in rows if each is not None])
    some = [size, 0, 1, size - 1, size + 7, -3, k - 1, k + 1, size // 2]
    counts = np.where(np.arange(len(x)) % 2 == 0, size, np.resize(some, len(x)))
    return x, counts


def check_warp(launch, dtype, k, items, largest):
    """Launch a kernel of `warp_top_k` on all kinds of rows."""
    kernel = warp_kernel(dtype, k, items, largest=largest)
    _check_top_k(launch, kernel, 64, 32, dtype, k, 32 * items, largest)


def check_block(launch, dtype, k, threads, size, largest):
    """Launch a kernel of `block_top_k` on all kinds of rows."""
    kernel = block_kernel(dtype, k, threads, size, largest=largest)
    _check_top_k(launch, kernel, threads, threads, dtype, k, size, largest)


def _check_top_k(launch, kernel, threads, width, dtype, k, size, largest):
    """Launch a kernel with two rows in each block, and check what the `width` threads of a row get."""
    x, counts = rows_of(dtype, size, k)
    values, indices = np.zeros((len(x), width), x.dtype), np.zeros((len(x), width), np.int32)
    launch(kernel, len(x) // 2, threads, x, counts, values, indices)
    answer = reference.top_k(x, k, lengths=counts, largest=largest)
    for found, given, last in zip(
        (values, indices), answer, (reference.padding(dtype, largest), -1), strict=True
    ):
        expected = np.full_like(found, last)
        expected[:, :k] = given
        assert_same(found, expected)


def check_compact(launch, x, threads):
    """Launch a kernel that compacts rows, and compare with NumPy all that it writes."""
    found, positions, totals = np.full_like(x, 7), *np.zeros((2, *x.shape), np.int32)
    launch(compact_kernel(threads), len(x), threads, x, found, positions, totals)
    flags = (x != 0).reshape(len(x), -1, threads)
    counted = flags.cumsum(axis=2)
    assert_same(positions, (counted - flags).reshape(x.shape).astype(np.int32))
    assert_same(totals, counted[:, :, -1:].repeat(threads, axis=2).reshape(x.shape).astype(np.int32))
    for row, compacted in zip(x, found, strict=True):
        kept = row[row != 0]
        assert_same(compacted, np.concatenate([kept, np.full(len(row) - len(kept), 7, x.dtype)]))


def check_page(names):
    """Compare what the programs of the documentation have computed, by their names, with NumPy."""
    names = {
        name: each.copy_to_host() if hasattr(each, "copy_to_host") else each for name, each in names.items()
    }
    logits, bias, experts, weights = (names[name] for name in ("logits", "bias", "experts", "weights"))
    plain = 1 / (1 + np.exp(-logits.astype(np.float64)))
    best = np.sort(plain + bias)[:, ::-1][:, : experts.shape[1]]
    np.testing.assert_allclose(np.take_along_axis(plain + bias, experts, 1), best, rtol=1e-5)
    chosen = np.take_along_axis(plain, experts, 1)
    np.testing.assert_allclose(weights, chosen / chosen.sum(1, keepdims=True), rtol=1e-4)
    for grid, (density, n_found) in enumerate(zip(names["density"], names["counts"], strict=True)):
        (voxels,) = np.nonzero(density > 0.9)
        assert n_found == len(voxels)
        assert_same(names["voxels"][grid][:n_found], voxels.astype(np.int32))
        assert_same(names["gathered"][grid][:n_found], names["features"][grid][voxels])
