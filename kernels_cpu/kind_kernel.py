"""Plan a call of a kind and run it, without Python, for native calls and for calls from compiled code.

`native_call` describes the table of a kind, and `call_words` the words of a call.
"""

from kernels_cpu import native_call as table_of
from kernels_cpu.call_words import (
    ADDRESS,
    FIXED,
    MAX_SIZES,
    RANK,
    SHAPE,
    STRIDES,
    array_at,
    count_of,
    overlaps_itself,
)
from kernels_cpu.foreign import (
    address_of,
    allocate,
    call_driver,
    call_entry,
    exchange,
    free,
    integers_at,
    stack_integers,
    tail,
)
from kernels_cpu.native_call import NEEDS_PYTHON
from kernels_cpu.plan_words import (
    BLOCK,
    CLUSTER,
    CONTENT,
    GRID,
    KERNEL,
    LAUNCHES,
    N_LAST_POINTERS,
    N_LAUNCHES,
    N_POINTERS,
    N_VALUES,
    RESULT,
    SHARED,
    WAITS,
    WORKSPACE,
    Words,
)

# Calls that read and write up to this many bytes take some microseconds, and keep the GIL: to release and
# take it would be another step.
_SMALL_BYTES = 1 << 16
# Workspaces up to this size are on the stack: to allocate one takes a fifth of the time of a small top-k.
_STACK_BYTES = 1 << 14
# Larger ones are kept for the next call up to this size: fresh pages cost more than the work done in them.
_KEPT_BYTES = 1 << 26
_ALIGNMENT = 256
_STACK_WORDS = (_STACK_BYTES + _ALIGNMENT) // 8
_MAX_DML_ELEMENTS = (1 << 32) - 1
# A kernel's arguments on the CPU: its table, up to three numbers, and the addresses.
_ARGUMENTS = 16
# Words of a launch on a GPU: CUlaunchConfig, two CUlaunchAttributes, values, and the address of each.
_CONFIG_WORDS, _ATTRIBUTE_WORDS, _ATTRIBUTES_WORDS, _MAX_VALUES = 7, 9, 18, 192
_EARLY, _CLUSTER_DIMENSION = 6, 4  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, _CLUSTER_DIMENSION


def shift_of(table: Words, number: int) -> int:
    """Return the logarithm of an array's element size."""
    shift: int = table[table_of.OPERANDS + number * table_of.OPERAND + table_of.ITEM_SHIFT]
    return shift


def extent_from(call: Words, at: int, shift: int) -> int:
    """Return how many bytes an array needs from its first element on; its strides are not negative."""
    if count_of(call, at, 0, call[at + RANK]) == 0:
        return 0
    last = 0
    for d in range(call[at + RANK]):
        last += (call[at + SHAPE + d] - 1) * call[at + STRIDES + d]
    return last + 1 << shift


def _begin_of(call: Words, at: int, shift: int) -> int:
    """Return the lowest address of an array that has elements."""
    below = 0
    for d in range(call[at + RANK]):
        below += min((call[at + SHAPE + d] - 1) * call[at + STRIDES + d], 0)
    return int(call[at + ADDRESS] + (below << shift))


def _end_of(call: Words, at: int, shift: int) -> int:
    """Return the address behind an array that has elements."""
    above = 0
    for d in range(call[at + RANK]):
        above += max((call[at + SHAPE + d] - 1) * call[at + STRIDES + d], 0)
    return int(call[at + ADDRESS] + (above + 1 << shift))


def are_apart(table: Words, call: Words) -> bool:
    """Return whether no output that the caller gave comes near another array, or near itself."""
    n_arrays = table[table_of.N_OPERANDS] + table[table_of.HAS_WORKSPACE]
    for j in range(n_arrays - table[table_of.N_GIVEN], n_arrays):
        at = array_at(j)
        if count_of(call, at, 0, call[at + RANK]) == 0:
            continue
        if overlaps_itself(call, at):
            return False
        begin, end = _begin_of(call, at, shift_of(table, j)), _end_of(call, at, shift_of(table, j))
        for i in range(table[table_of.FIRST], j):
            other, shift = array_at(i), shift_of(table, i)
            if count_of(call, other, 0, call[other + RANK]) == 0:
                continue
            if begin < _end_of(call, other, shift) and _begin_of(call, other, shift) < end:
                return False
    return True


def workspace_of(table: Words, call: Words, n_bytes: int) -> int:
    """Return where the caller's workspace is aligned.

    It is 0 if the workspace has gaps, fewer bytes than the operator asks for, or less than `n_bytes` from
    there.
    """
    number = table[table_of.N_OPERANDS]
    at = array_at(number)
    stride = 1
    for d in range(call[at + RANK] - 1, -1, -1):
        if call[at + SHAPE + d] > 1 and call[at + STRIDES + d] != stride:
            return 0
        stride *= call[at + SHAPE + d]
    begin = call[at + ADDRESS]
    aligned = (begin + _ALIGNMENT - 1) & -_ALIGNMENT
    size = stride << shift_of(table, number)
    fits = size >= table[table_of.LEAST_WORKSPACE] and aligned + n_bytes <= begin + size
    return int(aligned if fits else 0)


def _are_of_directml(table: Words, call: Words) -> bool:
    """Return whether all arrays are within DirectML's limits of sizes and strides."""
    for i in range(table[table_of.FIRST], table[table_of.N_OPERANDS]):
        at = array_at(i)
        extent = 1
        for d in range(call[at + RANK]):
            size, stride = call[at + SHAPE + d], call[at + STRIDES + d]
            if size == 0 or stride < 0 or stride > _MAX_DML_ELEMENTS:
                return False
            extent += (size - 1) * stride
        count = count_of(call, at, 0, call[at + RANK])
        if count < 0 or max(count, extent) > _MAX_DML_ELEMENTS:
            return False
    return True


def _are_expected(table: Words, call: Words) -> bool:
    """Return whether arrays have the sizes and the strides that a compiled operator was planned for."""
    expected = integers_at(table[table_of.EXPECTED])
    for i in range(table[table_of.FIRST], table[table_of.N_OPERANDS]):
        at = array_at(i)
        has_elements = count_of(call, at, 0, call[at + RANK]) != 0
        for d in range(call[at + RANK]):
            if call[at + SHAPE + d] != expected[at + SHAPE + d]:
                return False
            if has_elements and call[at + STRIDES + d] != expected[at + STRIDES + d]:
                return False
    return True


def plan_call(table: Words, call: Words, problem: Words, out: Words) -> bool:
    """Fit and plan a call whose arrays and sizes are read; return whether both could be done."""
    if table[table_of.EXPECTED] and not _are_expected(table, call):
        return False
    if table[table_of.IS_LIMITED] and not _are_of_directml(table, call):
        return False
    for i in range(table[table_of.FIRST], table[table_of.N_OPERANDS]):
        at = array_at(i)
        if call[at + ADDRESS] == 0 and count_of(call, at, 0, call[at + RANK]) != 0:
            return False
    if table[table_of.N_GIVEN] and not are_apart(table, call):
        return False
    for i in range(MAX_SIZES):
        call[FIXED + i] = table[table_of.FIXED_WORDS + i]
    if integers_at(table[table_of.HOST])[0] == 0:  # the call in Python finds out how many threads there are
        return False
    is_compiled = table[table_of.EXPECTED] != 0
    template = integers_at(table[table_of.PROBLEM]) if is_compiled else tail(table, table_of.TEMPLATE)
    for i in range(table[table_of.N_TEMPLATE]):
        problem[i] = template[i]
    for i in range(table[table_of.FIRST], table[table_of.N_OPERANDS]):
        residue_at = table[table_of.OPERANDS + i * table_of.OPERAND + table_of.RESIDUE]
        if residue_at >= 0:
            problem[residue_at] = call[array_at(i) + ADDRESS] & 15
    arguments = stack_integers(5)
    arguments[0] = 0 if is_compiled else address_of(call)
    arguments[1] = address_of(problem)
    arguments[2] = table[table_of.HOST]
    arguments[3] = address_of(out)
    if table[table_of.DEVICE]:
        arguments[3] = table[table_of.DEVICE]
        arguments[4] = address_of(out)
    return call_entry(table[table_of.PLAN_ENTRY], address_of(arguments)) == 0


def next_launch(out: Words, at: int) -> int:
    """Return where the next launch begins, after the one at `at`."""
    n_pointers = out[at + N_POINTERS] + out[at + N_LAST_POINTERS]
    return int(at + CONTENT + 2 * n_pointers + out[at + N_VALUES])


def find_kernels(table: Words, out: Words, may_share: bool) -> bool:
    """Put the address of each launch's kernel in the place of its number, if all are loaded.

    Unless they `may_share`, launches whose work several threads should share are not for native code.
    """
    at = LAUNCHES
    for _ in range(out[N_LAUNCHES]):
        address = 0
        for i in range(table[table_of.N_KERNELS]):
            if table[table_of.KERNEL_LIST + 2 * i] == out[at + KERNEL]:
                address = table[table_of.KERNEL_LIST + 2 * i + 1]
        if address == 0 or (out[at + GRID] > 1 and not may_share):
            return False
        if out[at + N_POINTERS] + out[at + N_VALUES] + out[at + N_LAST_POINTERS] > _MAX_VALUES and may_share:
            return False
        out[at + KERNEL] = address
        at = next_launch(out, at)
    return True


def _pointer(table: Words, call: Words, slot: int, offset: int, workspace: int) -> int:
    """Return an address that a kernel takes."""
    if slot < table[table_of.FIRST]:
        return 0
    if slot == table[table_of.N_OPERANDS]:
        return workspace + offset
    return int(call[array_at(slot) + ADDRESS] + offset)


def run_on_host(table: Words, call: Words, out: Words, workspace: int) -> int:
    """Run the launches of a plan one after the other, each as a single task; return the result."""
    arguments = stack_integers(_ARGUMENTS)
    found = -1
    at = LAUNCHES
    for number in range(out[N_LAUNCHES]):
        n_pointers, n_leading = out[at + N_POINTERS], out[at + SHARED]
        pointers = tail(out, at + CONTENT)
        arguments[0] = address_of(tail(pointers, 2 * n_pointers))
        arguments[1] = 0
        arguments[2] = out[at + BLOCK]
        arguments[3] = 0
        for i in range(n_pointers):
            arguments[1 + n_leading + i] = _pointer(
                table, call, pointers[2 * i], pointers[2 * i + 1], workspace
            )
        if out[at + GRID] > 0:
            result = call_entry(out[at + KERNEL], address_of(arguments))
            if number == out[RESULT]:
                found = result
        at = next_launch(out, at)
    return found


def take_scratch(cell: Words, n_bytes: int) -> int:
    """Return the address of kept or new memory, whose first word is its size; 0 if there is none."""
    kept = exchange(cell, 0)
    if kept != 0:
        if integers_at(kept)[0] >= n_bytes:
            return kept
        free(kept)
    memory = allocate(n_bytes + 2 * _ALIGNMENT)
    if memory != 0:
        integers_at(memory)[0] = n_bytes
    return memory


def give_scratch(cell: Words, memory: int) -> None:
    """Keep memory for the next call, or free it."""
    other = memory
    if integers_at(memory)[0] <= _KEPT_BYTES:
        other = exchange(cell, memory)
    if other != 0:
        free(other)


def run_with_scratch(table: Words, call: Words, out: Words) -> int:
    """Run a plan on the CPU with scratch memory; `NEEDS_PYTHON` if there is no memory."""
    n_bytes = out[WORKSPACE]
    if n_bytes <= _STACK_BYTES:
        on_stack = address_of(stack_integers(_STACK_WORDS))
        return run_on_host(table, call, out, (on_stack + _ALIGNMENT - 1) & -_ALIGNMENT)
    cell = integers_at(table[table_of.SCRATCH])
    memory = take_scratch(cell, n_bytes)
    if memory == 0:
        return NEEDS_PYTHON
    result = run_on_host(table, call, out, (memory + 8 + _ALIGNMENT - 1) & -_ALIGNMENT)
    give_scratch(cell, memory)
    return result


def is_small(table: Words, call: Words) -> bool:
    """Return whether a call reads and writes few bytes; of a gather's input, the selected ones count."""
    n_operands, total = table[table_of.N_OPERANDS], 0
    for i in range(table[table_of.FIRST], n_operands):
        number = n_operands - 1 if i == table[table_of.GATHERED] else i
        at = array_at(number)
        count = count_of(call, at, 0, call[at + RANK])
        if count < 0 or count > _SMALL_BYTES:
            return False
        total += count << shift_of(table, number)
    return total <= _SMALL_BYTES


def native_launch(table: Words, addresses: Words, plan: Words) -> int:
    """Launch a plan on a GPU; return 0, or the driver's error.

    `addresses` are those of the operands, of the workspace, and the stream. The plan's launches have the
    addresses of kernels in the place of their numbers (`find_kernels`).
    """
    config = stack_integers(_CONFIG_WORDS)
    attributes = stack_integers(_ATTRIBUTES_WORDS)
    values = stack_integers(_MAX_VALUES)
    value_addresses = stack_integers(_MAX_VALUES)
    stream = addresses[table[table_of.N_OPERANDS] + 1]
    at = LAUNCHES
    for number in range(plan[N_LAUNCHES]):
        is_early = number > 0 and table[table_of.MAY_OVERLAP] != 0 and plan[at + WAITS] == 0
        _configure(tail(plan, at), stream, is_early, config, attributes)
        n_pointers = plan[at + N_POINTERS]
        n_before_last = n_pointers + plan[at + N_VALUES]
        n_values = n_before_last + plan[at + N_LAST_POINTERS]
        content = tail(plan, at + CONTENT)
        _resolve(addresses, content, n_pointers, values)
        for i in range(n_pointers, n_before_last):
            values[i] = content[n_pointers + i]
        last = tail(content, n_pointers + n_before_last)
        _resolve(addresses, last, n_values - n_before_last, tail(values, n_before_last))
        for i in range(n_values):
            value_addresses[i] = address_of(tail(values, i))
        status: int = call_driver(
            table[table_of.DRIVER], address_of(config), plan[at + KERNEL], address_of(value_addresses), 0
        )
        if status != 0:
            return status
        at = next_launch(plan, at)
    return 0


def _resolve(addresses: Words, pointers: Words, n_pointers: int, values: Words) -> None:
    """Write the addresses that pointers stand for."""
    for i in range(n_pointers):
        slot = pointers[2 * i]
        values[i] = addresses[slot] + pointers[2 * i + 1] if slot >= 0 else 0


def _configure(launch: Words, stream: int, is_early: bool, config: Words, attributes: Words) -> None:
    """Write the CUlaunchConfig of a launch, and its attributes."""
    for i in range(_ATTRIBUTES_WORDS):
        attributes[i] = 0
    n_attributes = 0
    if is_early:
        attributes[0] = _EARLY
        attributes[1] = 1
        n_attributes = 1
    if launch[CLUSTER] > 1:
        attribute = tail(attributes, n_attributes * _ATTRIBUTE_WORDS)
        attribute[0] = _CLUSTER_DIMENSION
        attribute[1] = launch[CLUSTER] | 1 << 32
        attribute[2] = 1
        n_attributes += 1
    config[0] = launch[GRID] | 1 << 32
    config[1] = 1 | launch[BLOCK] << 32
    config[2] = 1 | 1 << 32
    config[3] = launch[SHARED]
    config[4] = stream
    config[5] = address_of(attributes) if n_attributes else 0
    config[6] = n_attributes
