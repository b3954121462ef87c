"""The words of a plan, which the plan writes, and from which its kernels are launched.

A plan is a plain Python function of integers. Compiled, it takes nanoseconds; until it is compiled, Python
runs the same source. So it is written for both: its arguments are words (a list or an array here, a pointer
there), and it calls only functions of plain integers and of named tuples of them. All words are signed
integers of 64 bits, and no intermediate result may exceed them.

Words begin with a header, and the launches follow:

============== ===================================================================================
`WORKSPACE`    the bytes of scratch memory that one run needs
`ALGORITHM`    the number of the algorithm, for logs; each operator has its own
`N_LAUNCHES`   how many launches follow
`CURRENT`      where the last of them begins
`END`          where its last word ends
`RESULT`       which launch gives the result of a run; `NO_RESULT` where none does
============== ===================================================================================

Each launch has `KERNEL`, a number by which its operator knows the kernel; the sizes of its grid (`GRID`,
`BLOCK`, `SHARED`, `CLUSTER`); the numbers of its pointers, of its values and of its last pointers; and
`WAITS`, which is 1 if it may not begin before the launch ahead of it has ended. Then come, in the order in
which the kernel takes them, the slot and the offset in bytes of each pointer; the values; and the slots and
offsets of the last pointers. A pointer's slot is the number of one of the addresses that the plan is launched
with: the operands in their order, and the workspace. `NULL_SLOT` stands for the null pointer.

On the CPU, `GRID` counts the tasks of a launch, and `BLOCK` the units of work that they share: task i has
those from ``i * step`` on, ``step = ceil(BLOCK / GRID)`` of them or what is left; none is empty. A kernel is
called once for each task, with the address of the launch's values, then `N_LEADING` integers, then its
pointers. One integer is the number of the task; two are its first unit and the end of its units, and three
these and its number. The result of a launch is the least of its tasks' results as unsigned integers: -1 is
the greatest. Launches run one after the other. A run without a result gives -1.
"""

from collections.abc import Iterable, MutableSequence, Sequence

Words = MutableSequence[int]
"""Integers by number: a list or an array in Python, a pointer in compiled code."""

WORKSPACE, ALGORITHM, N_LAUNCHES, CURRENT, END, RESULT, LAUNCHES = range(7)
KERNEL, GRID, BLOCK, SHARED, CLUSTER, N_POINTERS, N_VALUES, N_LAST_POINTERS, WAITS, CONTENT = range(10)
N_LEADING = SHARED
"""On the CPU, how many integers a kernel takes between the address of its values and its pointers."""
NULL_SLOT = NO_RESULT = -1

MAX_WORDS = 2048
"""The most words of a plan that compiled code has room for."""

Values = Iterable["int | Values"]
"""Integers, and tuples of them: a kernel's named tuple of parameters is one."""


def begin_plan(out: Words, algorithm: int) -> None:
    """Begin a plan without launches and without a workspace."""
    out[WORKSPACE] = 0
    out[ALGORITHM] = algorithm
    out[N_LAUNCHES] = 0
    out[CURRENT] = LAUNCHES
    out[END] = LAUNCHES
    out[RESULT] = NO_RESULT


def begin_launch(out: Words, kernel: int, grid: int, block: int, shared: int, cluster: int) -> None:
    """Begin a launch, whose pointers and then values are put after it."""
    at = out[END]
    out[CURRENT] = at
    out[N_LAUNCHES] += 1
    out[at + KERNEL] = kernel
    out[at + GRID] = grid
    out[at + BLOCK] = block
    out[at + SHARED] = shared
    out[at + CLUSTER] = cluster
    out[at + N_POINTERS] = 0
    out[at + N_VALUES] = 0
    out[at + N_LAST_POINTERS] = 0
    out[at + WAITS] = 0
    out[END] = at + CONTENT


def begin_tasks(out: Words, kernel: int, n_units: int, n_tasks: int, n_leading: int) -> None:
    """Begin a launch on the CPU, of at most `n_tasks` tasks that share `n_units` (at least one) evenly."""
    step = -(-n_units // max(n_tasks, 1))
    begin_launch(out, kernel, -(-n_units // step), n_units, n_leading, 1)


def wait_for_last(out: Words) -> None:
    """Keep the last launch apart from the one ahead of it: its kernel does not wait for that by itself."""
    out[out[CURRENT] + WAITS] = 1


def put_pointer(out: Words, slot: int, offset: int) -> None:
    """Put the next pointer of the last launch; all pointers come before its values."""
    at = out[END]
    out[at] = slot
    out[at + 1] = offset
    out[out[CURRENT] + N_POINTERS] += 1
    out[END] = at + 2


def put_value(out: Words, value: int) -> None:
    """Put the next value of the last launch."""
    out[out[END]] = value
    count_values(out, 1)


def count_values(out: Words, number: int) -> None:
    """Count values that were written behind the last word as values of the last launch."""
    out[out[CURRENT] + N_VALUES] += number
    out[END] += number


def put_last_pointer(out: Words, slot: int, offset: int) -> None:
    """Put the next pointer that comes after the values of the last launch, of which there are no more."""
    at = out[END]
    out[at] = slot
    out[at + 1] = offset
    out[out[CURRENT] + N_LAST_POINTERS] += 1
    out[END] = at + 2


def put_values(out: Words, values: Values) -> None:
    """Put the integers of a tuple, and of tuples in it, in order.

    Calls of this are compiled in another way (`plan_expressions`).
    """
    for value in values:
        if isinstance(value, int):
            put_value(out, value)
        else:
            put_values(out, value)


def put_values_of(out: Words, launch: int) -> None:
    """Put the values of an earlier launch, which begins at the word `launch`."""
    first = launch + CONTENT + 2 * out[launch + N_POINTERS]
    for at in range(first, first + out[launch + N_VALUES]):
        put_value(out, out[at])


def take_workspace(out: Words, n_bytes: int, alignment: int) -> int:
    """Return where an area of the workspace begins, and make room for it; areas are aligned."""
    begin: int = out[WORKSPACE]
    out[WORKSPACE] = begin + -(-n_bytes // alignment) * alignment
    return begin


def kernels_of(words: Sequence[int]) -> list[int]:
    """Return the number of each launch's kernel; for Python alone."""
    numbers = []
    at = LAUNCHES
    for _ in range(words[N_LAUNCHES]):
        numbers.append(words[at + KERNEL])
        n_pointers = words[at + N_POINTERS] + words[at + N_LAST_POINTERS]
        at += CONTENT + 2 * n_pointers + words[at + N_VALUES]
    return numbers
