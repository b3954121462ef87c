"""Rows with a large selected part, sorted one after the other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.jit import njit
from kernels_cpu.top_k.finish import finish, write_listed, write_padding
from kernels_cpu.top_k.scan import Scratch, list_all
from kernels_cpu.top_k.scratch import Windows, copy_to_stage, row_of, stage_of, unpacked
from kernels_cpu.top_k.table import WORD
from kernels_cpu.top_k.thresholds import bounds_of
from kernels_cpu.top_k.written_keys import first_bits, list_word, padded_size, write_all_keys

Array = NDArray[Any]


@njit
def list_reaching(
    keys: Array,
    padded: int,
    threshold: int,
    with_greater: bool,
    n_ties: int,
    highest: int,
    wide: bool,
    scratch: Scratch,
    count: int,
    capacity: int,
) -> int:
    """List the keys above `threshold`, if `with_greater`, and the first `n_ties` that equal it.

    There are more than `capacity` only where another thread changes the keys.
    """
    for at in range(0, padded, WORD):
        if count > capacity - WORD:
            break
        ties = simd.word_at_least(keys, at, threshold)
        chosen = np.uint64(0)
        if threshold < highest:
            greater = simd.word_at_least(keys, at, threshold + 1)
            ties ^= greater
            if with_greater:
                chosen = greater
        ties = first_bits(ties, n_ties)
        n_ties -= bitops.set_bits(ties)
        count = list_word(keys, at, chosen | ties, wide, scratch, count)
    return count


@njit
def select(
    constants: Array,
    first_row: int,
    last_row: int,
    task: int,
    windows: tuple[int, int],
    x: int,
    values: int,
    indices: int,
    workspace: int,
) -> None:
    """Sort rows of which a large part is selected."""
    numbers, problem, formula, scratch, sorting, elements, outputs = unpacked(
        constants, task, x, values, workspace
    )
    stage = stage_of(constants, problem, workspace, task)
    highest, wide = problem.highest, problem.wide != 0
    for row in range(first_row, last_row):
        place = row_of(numbers, problem, Windows(*windows), row)
        n = place.length
        k = min(problem.k, n)
        run, begin = elements, place.x_at
        if problem.columns:
            copy_to_stage(elements, place.x_at, problem.x_step, 0, n, 1, stage, 0)
            run, begin = stage, 0
        count = n
        n_unsorted = 0
        if problem.capacity < n:
            padded, room = padded_size(n), problem.capacity
            write_all_keys(run, begin, n, highest, formula, stage)
            bounds = bounds_of(stage, n, padded, k, k >> 3, highest, scratch.groups)
            low, n_ties = bounds.low, n
            if bounds.n_at_least > k + (k >> 3):
                # The bounds have met at the k-th key. Many tie with it: they are listed last, and not sorted.
                n_ties = k - bounds.n_greater
                if problem.is_sorted:
                    n_unsorted, n_ties = n_ties, 0
            count = list_reaching(stage, padded, low, True, n_ties, highest, wide, scratch, 0, room)
            if n_unsorted:
                list_reaching(stage, padded, low, False, n_unsorted, highest, wide, scratch, count, room)
                write_listed(elements, outputs, indices, place, problem, formula, scratch, count, k)
        else:
            list_all(run, begin, 1, 0, n, formula, scratch, wide)
        finish(elements, outputs, indices, place, problem, formula, scratch, sorting, count, k - n_unsorted)
        write_padding(outputs, indices, place, problem, k)
