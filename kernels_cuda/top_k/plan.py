"""The plan of a selection on CUDA: a function of words (`kernels_cpu.plan_words`)."""

from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, begin_plan
from kernels_cpu.top_k.problem_words import K
from kernels_cuda.device_words import MULTIPROCESSORS, PLANNED, TOO_LONG
from kernels_cuda.top_k import choice
from kernels_cuda.top_k.columns.columns_launches import columns_launches
from kernels_cuda.top_k.copy.copy_launches import copy_launches
from kernels_cuda.top_k.key_formats import element_words, set_element_words
from kernels_cuda.top_k.many_blocks.cluster_launches import cluster_launches
from kernels_cuda.top_k.many_blocks.grid_launches import grid_launches
from kernels_cuda.top_k.numbers.numbered_launches import found_first, numbered_launches, serves_numbers
from kernels_cuda.top_k.numbers.sorted_launches import (
    CODE_WORDS,
    codes_launch,
    number_areas,
    numbers_launch,
    of_codes,
    of_ordered,
    order_launch,
)
from kernels_cuda.top_k.policy import FORCED
from kernels_cuda.top_k.problem import Selection, are_segments, select
from kernels_cuda.top_k.read_once.block_launches import block_launches
from kernels_cuda.top_k.read_once.one_pass_launches import one_pass_launches
from kernels_cuda.top_k.read_once.sampled_launches import sampled_launches
from kernels_cuda.top_k.rows_in_blocks.partition_launches import SHARED_ROW_ELEMENTS, partition_launches
from kernels_cuda.top_k.shared.launches import FULL, UNSERVED
from kernels_cuda.top_k.shared.order_launches import pad_launches
from kernels_cuda.top_k.short_rows.lanes_launches import LANES_ELEMENTS, LANES_LARGEST_K, lanes_launches
from kernels_cuda.top_k.short_rows.rounds_launches import (
    MANY_SEGMENTS,
    SEGMENTS_LARGEST_K,
    SHORT_SEGMENT,
    rounds_launches,
)
from kernels_cuda.top_k.sort.select_launches import (
    pairs_launches,
    select_launches,
    selects_before,
    serves_by_index,
)
from kernels_cuda.top_k.sort.sort_launches import sort_launches


def plan(problem: Words, device: Words, table: Words, out: Words) -> int:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    problem : words
        The problem (`kernels_cpu.top_k.problem_words`).
    device : words
        The device and the policy (`policy.plan_device`).
    table : words
        Limits by what was measured on the device (`choice`).
    out : words
        The launches, which take the addresses of x; lengths, starts and numbers as far as there are any;
        values, indices and the workspace. If there is nothing to do, there are none.

    Returns
    -------
    int
        `PLANNED`; `TOO_LONG` if `out` has no room for all launches; or `UNSERVED` where the one algorithm
        that may be taken does not serve the problem.
    """
    selection = select(problem, device)
    begin_plan(out, choice.NO_ALGORITHM)
    if selection.n_rows == 0 or problem[K] == 0:
        return PLANNED
    status = PLANNED
    if selection.k > 0 and selection.has_numbers > 0:
        status = _plan_numbered(problem, device, table, selection, out)
    elif selection.k > 0:
        status = _plan_rows(problem, device, table, selection, out)
    if status == PLANNED and problem[K] > selection.k:
        status = pad_launches(problem, device, selection, out)
        status = TOO_LONG if out[ALGORITHM] == FULL else status
    return status


def _plan_rows(problem: Words, device: Words, table: Words, selection: Selection, out: Words) -> int:
    """Plan a selection of at least one element from rows of any lengths."""
    are_many = selection.n_rows > device[MULTIPROCESSORS] * MANY_SEGMENTS
    is_short = selection.axis_size <= SHORT_SEGMENT or selection.k > SEGMENTS_LARGEST_K
    if is_short or not are_many or device[FORCED] > 0 or not are_segments(problem, selection):
        return plan_selection(problem, device, table, selection, out)
    # The launches run at the same time, the one that takes longest first.
    status = UNSERVED
    if selection.k <= LANES_LARGEST_K and selection.axis_size > LANES_ELEMENTS:
        longer = selection._replace(least=LANES_ELEMENTS + 1)
        status = solve(choice.ONE_PASS, problem, device, longer, out)
    if status == PLANNED:
        out[ALGORITHM] = choice.ROUNDS
        lanes_launches(problem, device, selection._replace(most=LANES_ELEMENTS), out)
        return TOO_LONG if out[ALGORITHM] == FULL else status
    if status == TOO_LONG:
        return status
    status = PLANNED
    if selection.axis_size > SHARED_ROW_ELEMENTS:
        longest = selection._replace(least=SHARED_ROW_ELEMENTS + 1)
        status = solve(choice.ONE_PASS, problem, device, longest, out)
        if status == UNSERVED:
            status = plan_selection(problem, device, table, longest, out)
        selection = selection._replace(reserved=out[WORKSPACE])
    if status == PLANNED:
        longer = selection._replace(
            least=SHORT_SEGMENT + 1, most=min(SHARED_ROW_ELEMENTS, selection.axis_size)
        )
        status = solve(choice.PARTITION, problem, device, longer, out)
        selection = selection._replace(reserved=out[WORKSPACE])
    if status == PLANNED:
        status = solve(choice.ROUNDS, problem, device, selection._replace(most=SHORT_SEGMENT), out)
    return status


def _plan_numbered(problem: Words, device: Words, table: Words, selection: Selection, out: Words) -> int:
    """Plan a selection in which the caller's numbers settle ties."""
    found = found_first(device, selection)
    if not serves_numbers(selection, found):
        return _plan_by_sorting(problem, device, table, selection, out)
    status = PLANNED
    if found.k > 0:
        status = plan_selection(problem, device, table, found, out)
    if status == PLANNED:
        status = numbered_launches(problem, device, selection, found, out)
        status = TOO_LONG if out[ALGORITHM] == FULL else status
    return status


def _plan_by_sorting(problem: Words, device: Words, table: Words, selection: Selection, out: Words) -> int:
    """Plan the same for any number of selected elements: rows are sorted by number first."""
    areas, of_elements = number_areas(device, selection), element_words(problem)
    out[WORKSPACE] = areas.end
    codes_launch(problem, device, selection, out, areas)
    set_element_words(problem, CODE_WORDS)
    status = plan_selection(problem, device, table, of_codes(selection, areas), out)
    set_element_words(problem, of_elements)
    n_bytes = out[WORKSPACE]
    if status == PLANNED:
        order_launch(problem, device, selection, out, areas)
        status = plan_selection(problem, device, table, of_ordered(selection, areas), out)
    if status == PLANNED:
        numbers_launch(problem, device, selection, out, areas)
        status = TOO_LONG if out[ALGORITHM] == FULL else status
    out[WORKSPACE] = max(n_bytes, out[WORKSPACE])
    return status


def plan_selection(problem: Words, device: Words, table: Words, selection: Selection, out: Words) -> int:
    """Plan a selection of at least one element with the best algorithm, or the one that may be taken."""
    forced: int = device[FORCED]
    if forced > 0:
        return solve(forced, problem, device, selection, out)
    # The table has no problems of which all elements are selected, by index: nothing is faster than a copy.
    status = solve(choice.COPY, problem, device, selection, out)
    if status == UNSERVED:
        best = choice.measured(table, device, selection)
        if best != choice.NO_ALGORITHM and is_candidate(best, selection):
            status = solve(best, problem, device, selection, out)
    if status == UNSERVED:
        order, number = choice.rule(device, selection), 0
        while status == UNSERVED:
            tried = choice.candidate(order, number)
            number += 1
            if is_candidate(tried, selection):
                status = solve(tried, problem, device, selection, out)
    return status


def is_candidate(algorithm: int, selection: Selection) -> bool:
    """Tell whether an algorithm is chosen, if it is the best that serves a problem.

    `partition` reads rows with gaps between their elements, which were not measured, by single elements.
    """
    return algorithm != choice.PARTITION or selection.x_step == 1 or selection.is_transposed == 1


def solve(algorithm: int, problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Plan a problem with an algorithm."""
    out[ALGORITHM] = algorithm
    out[WORKSPACE] = selection.reserved
    if algorithm == choice.ROUNDS:
        status = rounds_launches(problem, device, selection, out)
    elif algorithm == choice.PARTITION:
        status = partition_launches(problem, device, selection, out)
    elif algorithm == choice.ONE_PASS:
        status = one_pass_launches(problem, device, selection, out)
    elif algorithm == choice.SAMPLED:
        status = sampled_launches(problem, device, selection, out)
    elif algorithm == choice.BLOCK:
        status = block_launches(problem, device, selection, out)
    elif algorithm == choice.CLUSTER:
        status = cluster_launches(problem, device, selection, out)
    elif algorithm == choice.GRID:
        status = grid_launches(problem, device, selection, out)
    elif algorithm == choice.COLUMNS:
        status = columns_launches(problem, device, selection, out)
    elif algorithm == choice.SORT and serves_by_index(problem, device, selection):
        status = select_launches(problem, device, selection, out)
    elif algorithm == choice.SORT and selects_before(problem, device, selection):
        status = pairs_launches(problem, device, selection, out)
    elif algorithm == choice.SORT:
        status = sort_launches(problem, device, selection, out)
    else:
        status = copy_launches(problem, device, selection, out)
    return TOO_LONG if out[ALGORITHM] == FULL else status
