"""Rows of which a large part is selected, sorted one after the other."""

from typing import Any

from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.intrinsics.pointers import elements_at
from kernels_cpu.jit import int64, njit
from kernels_cpu.keys import KeyMasks, key, unpack_masks
from kernels_cpu.top_k.finish import finish
from kernels_cpu.top_k.output import write_padding
from kernels_cpu.top_k.records import midpoint
from kernels_cpu.top_k.scan import Limits, Scratch, Search, scan
from kernels_cpu.top_k.scratch import length_of, numbers_of, offsets_of, scratch_of, sorting_of, unpack
from kernels_cpu.top_k.stage import copy_to_stage

Array = NDArray[Any]


@njit
def count_keys_at_most(x: Array, begin: int, end: int, threshold: int, masks: KeyMasks) -> int:
    """Return how many keys of ``x[begin:end]`` are at most `threshold`."""
    total = 0
    lanes = simd.lanes_of(x)
    at = begin
    while at + lanes <= end:
        keys = key(simd.load(x, at), masks)
        total += bitops.set_bits(simd.mask_at_most(keys, simd.fill(keys, threshold)))
        at += lanes
    for i in range(at, end):
        total += int64(key(x[i], masks)) <= threshold
    return total


@njit
def threshold_of_keys(
    x: Array, begin: int, end: int, k: int, slack: int, lowest: int, masks: KeyMasks
) -> int:
    """Return a threshold that `k` to ``k + slack`` keys do not exceed; with ties the least possible."""
    low, high = lowest, ~lowest
    while low < high:
        middle = midpoint(low, high)
        count = count_keys_at_most(x, begin, end, middle, masks)
        if count < k:
            low = middle + 1
        else:
            high = middle
            if count <= k + slack:
                break
    return high


@njit
def list_all(x: Array, begin: int, n: int, masks: KeyMasks, scratch: Scratch, wide: bool) -> None:
    """Make a record of every element."""
    for i in range(n):
        value = int64(key(x[begin + i], masks))
        if wide:
            scratch.records[i] = value
            scratch.positions[i] = i
        else:
            scratch.records[i] = (value << 32) | i


@njit
def select(
    constants: Array, first_row: int, last_row: int, task: int,
    lengths: int, x: int, values: int, indices: int, workspace: int,
) -> None:  # fmt: skip
    """Sort rows of which a large part is selected."""
    numbers = numbers_of(constants)
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    scratch = scratch_of(workspace, constants, problem, task)
    sorting = sorting_of(workspace, problem, task)
    start = workspace + task * problem.task_size
    stage = elements_at(start + problem.stage, constants)
    elements, outputs = elements_at(x, constants), elements_at(values, constants)
    for row in range(first_row, last_row):
        n = length_of(numbers, problem, lengths, row)
        k = min(problem.k, n)
        limits = Limits(k, problem.capacity, problem.fold, problem.lowest, problem.wide != 0)
        at = offsets_of(numbers, problem.n_dims, row)
        run, begin = elements, at[0]
        if problem.columns:
            copy_to_stage(elements, at[0], problem.x_step, 0, n, 1, stage, 0)
            run, begin = stage, 0
        count = n
        if problem.capacity < n:
            threshold = threshold_of_keys(run, begin, begin + n, k, k >> 3, problem.lowest, masks)
            search = Search(0, threshold, k, False)
            count = scan(run, begin, begin + n, -begin, masks, limits, scratch, search).n_candidates
        else:
            list_all(run, begin, n, masks, scratch, problem.wide != 0)
        finish(
            elements, outputs, indices, at, problem, masks, scratch.records, scratch.positions, sorting,
            count, k,
        )  # fmt: skip
        write_padding(outputs, indices, at, problem, k)
