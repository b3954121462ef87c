"""The one choice of an algorithm: by a table of measured times, or else by a rule.

Algorithms are numbers, from 1 on. A table is words: the multiprocessors of the device that was measured, or 0
if none was; where the table of each kind of problems begins (`kind_of`), or 0; and these tables. Each has the
number of its lines, and then each line's limit, and what holds up to it: the first table by k, those in it by
the number of rows, and those in these by the length of rows, whose lines name algorithms.
"""

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words
from kernels_cuda.device_words import BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.shapes import KIB

NAMES = (
    "rounds",
    "partition",
    "one_pass",
    "sampled",
    "block",
    "cluster",
    "grid",
    "columns",
    "sort",
    "copy",
)
"""The names of the algorithms in `kernels_cuda.top_k`."""
(
    ROUNDS,
    PARTITION,
    ONE_PASS,
    SAMPLED,
    BLOCK,
    CLUSTER,
    GRID,
    COLUMNS,
    SORT,
    COPY,
) = range(1, 11)
NO_ALGORITHM = 0

N_KINDS = 12
KINDS_AT = 1
"""Where the words of a table tell where the tables of each kind begin."""

ORDER_BITS = 4
# Row counts are capped here; no table has as many.
_MOST_ROWS = 1 << 40


def kind_of(element_size: int, is_transposed: int, is_sorted: int) -> int:
    """Return which part of a table a problem belongs to; what holds for two bytes comes closest to one."""
    width = 2 if element_size == 8 else 1 if element_size == 4 else 0
    return 4 * width + 2 * is_transposed + is_sorted


def measured(table: Words, device: Words, selection: Selection) -> int:
    """Return the algorithm that a table names; `NO_ALGORITHM` if there is none for the device.

    Each k, number of rows and length in a table stands for those below, down to the next smaller one in it.
    The number of rows counts in proportion to the multiprocessors of the device that was measured.
    """
    if table[0] == 0:
        return NO_ALGORITHM
    is_sorted = 1 - selection.is_by_index
    by_k: int = table[KINDS_AT + kind_of(selection.element_size, selection.is_transposed, is_sorted)]
    if by_k == 0:
        return NO_ALGORITHM
    n_rows = ceil_div(min(selection.n_rows, _MOST_ROWS) * table[0], device[MULTIPROCESSORS])
    by_length = _look_up(table, _look_up(table, by_k, selection.k), n_rows)
    return _look_up(table, by_length, selection.axis_size)


def _look_up(table: Words, at: int, amount: int) -> int:
    """Return the entry of the first limit at or above an amount, or else the last entry."""
    line = at + 1
    last = line + 2 * (table[at] - 1)
    while line < last and table[line] < amount:
        line += 2
    found: int = table[line + 1]
    return found


def rule(device: Words, selection: Selection) -> int:
    """Return algorithms for a device that was not measured, best first; the last one serves every problem.

    They are digits of `ORDER_BITS`, the first one the highest. What counts is how many rows each
    multiprocessor has, whether a cluster's shared memory holds a row, and what part of a row is selected: few
    elements are found by a threshold, many by histograms or a sort.
    """
    length, k, is_transposed = selection.axis_size, selection.k, selection.is_transposed
    is_sorted = 1 - selection.is_by_index
    order = 0
    # Each round takes longer in longer rows.
    if k * length <= 1 << 13 and length <= 1024:
        order = then(order, ROUNDS)
    if is_transposed and k <= 16 and selection.n_rows >= 32 * device[MULTIPROCESSORS]:
        order = then(order, COLUMNS)
    if length <= 8192 or ceil_div(length, 32) <= k:
        order = then(order, PARTITION)
    if k > 4096 and (is_sorted or is_transposed):
        order = then(order, SORT)
    elif is_transposed == 0:
        order = _rule_of_long_rows(device, selection, order)
    return then(then(then(order, GRID), BLOCK), SORT)


def _rule_of_long_rows(device: Words, selection: Selection, order: int) -> int:
    """Return an order followed by the rule's algorithms for long contiguous rows."""
    length, k, n_rows, row_bytes = selection.axis_size, selection.k, selection.n_rows, selection.row_bytes
    multiprocessors = device[MULTIPROCESSORS]
    is_narrow = selection.element_size < 8
    # Less than one row for each four multiprocessors.
    has_few_rows = n_rows <= (multiprocessors - 1) // 4
    if has_few_rows and length <= 1 << 19 and k >= 256 and 10 * n_rows > multiprocessors:
        order = then(order, SAMPLED)
    if has_few_rows and is_narrow and k <= 128 and row_bytes <= 64 * KIB:
        order = then(order, ONE_PASS)
    room = multiprocessors * device[BLOCK_SHARED_BYTES] // 4
    if (has_few_rows and 16 * KIB <= row_bytes <= room // n_rows) or k > 4096:
        order = then(order, CLUSTER)
    is_short = not has_few_rows or row_bytes <= 512 * KIB
    if is_narrow and is_short and k <= 128 and n_rows <= 2 * multiprocessors:
        order = then(order, ONE_PASS)
    if not has_few_rows and 8192 < length <= 1 << 19 and k >= (128 if selection.is_by_index else 512):
        order = then(order, SAMPLED)
    if not has_few_rows and length <= 1 << 16:
        order = then(order, BLOCK)
    return order


def then(order: int, algorithm: int) -> int:
    """Return an order with one algorithm more.

    Examples
    --------
    >>> hex(then(then(0, GRID), SORT))
    '0x79'
    """
    return order << ORDER_BITS | algorithm


def candidate(order: int, number: int) -> int:
    """Return the algorithm of a number in an order; `NO_ALGORITHM` where it has fewer.

    Examples
    --------
    >>> [candidate(0x79, number) for number in range(3)]
    [7, 9, 0]
    """
    first = 0
    while order >> (first + ORDER_BITS) > 0:
        first += ORDER_BITS
    place = first - number * ORDER_BITS
    return order >> place & 15 if place >= 0 else NO_ALGORITHM
