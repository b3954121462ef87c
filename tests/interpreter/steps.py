"""Instructions as functions of the threads that execute them, except those that change the order of threads.

A step is called as ``step(threads, chosen)`` with all `Threads`, and the numbers of those that run it.
"""

import re

import numpy as np

from tests.interpreter.arithmetic import UPDATES, computation
from tests.interpreter.memory import RANK_BITS, SIGNED, UNSIGNED, check_alignment, fault_if

# The interpreter does these at once, or need not do them.
_NOTHING = {"prefetch", "discard"}
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]")


class Steps:
    """Makes the steps of a kernel.

    Parameters
    ----------
    program : Program
        The kernel.
    memory : GlobalMemory
        What it may access.
    arguments : dict of str to int
        Its arguments by name.
    """

    def __init__(self, program, memory, arguments):
        self._program, self._memory, self._arguments = program, memory, arguments

    def step(self, instruction):
        """Return the step of an instruction."""
        run = self._unguarded(instruction)
        if instruction.guard is None:
            return run

        def run_some(threads, chosen):
            holds = threads.register(instruction.guard)[chosen] ^ instruction.is_negated
            if holds.any():
                run(threads, chosen[holds])

        return run_some

    def read(self, operand, bits):
        """Return a function of threads that reads an operand as unsigned numbers, or as predicates."""
        program, is_negated = self._program, operand.startswith("!")
        operand = operand.removeprefix("!")
        kind = program.registers.get(operand)
        if kind is not None:
            if kind.bits == 1:
                return lambda threads, chosen: threads.register(operand)[chosen] ^ is_negated
            if kind.bits == bits:
                return lambda threads, chosen: threads.register(operand)[chosen]
            return lambda threads, chosen: threads.register(operand)[chosen].astype(UNSIGNED[bits])
        if operand.startswith("%"):
            return lambda threads, chosen: threads.special(operand)[chosen].astype(UNSIGNED[bits])
        places = program.shared | program.local
        number = places[operand] if operand in places else _constant(operand)
        constant = np.bool_(number & 1) if bits == 1 else UNSIGNED[bits](number % 2**bits)
        return lambda threads, chosen: np.full(chosen.size, constant)

    def address(self, operand):
        """Return a function of threads that gives the address in an operand."""
        return self._address(operand)[2]

    def message(self, instruction):
        """Return a function that reads what a message holds, as (address, values, bits) of each member."""
        place, value, _ = instruction.operands
        bits, names = instruction.type.bits, _members(value)
        address, reads = self.address(place), [self.read(each, bits) for each in names]

        def message(threads, chosen):
            first = address(threads, chosen)
            check_alignment(first, bits // 8 * len(names))
            return [
                (first + np.uint64(member * bits // 8), read(threads, chosen), bits)
                for member, read in enumerate(reads)
            ]

        return message

    def _address(self, operand):
        """Return the name in an address, its offset, and a function that gives the address."""
        name, offset = _ADDRESS.fullmatch(operand).groups()
        offset = int(offset or "0", 0)
        if name in self._arguments:
            return name, offset, None
        read, added = self.read(name, 64), np.uint64(offset % 2**64)
        return name, offset, lambda threads, chosen: read(threads, chosen) + added

    def _unguarded(self, instruction):
        name, operands = instruction.name, instruction.operands
        if name in _NOTHING or instruction.modifiers[:1] in (("mbarrier_init",), ("launch_dependents",)):
            return lambda threads, chosen: None
        if name == "griddepcontrol":
            return lambda threads, chosen: self._memory.settle()
        maker = {
            "ld": self._access,
            "st": self._access,
            "atom": self._update,
            "red": self._update,
            "cp": self._copy_asynchronously,
            "mapa": self._map_to_block,
        }.get(name)
        if name == "mov" and operands[0].startswith("{"):
            maker = self._unpack
        elif name == "mov" and operands[1].startswith("{"):
            maker = self._pack
        return (maker or self._compute)(instruction)

    def _compute(self, instruction):
        found = computation(instruction)
        if found is None:
            msg = f"not known: {instruction.text}"
            raise NotImplementedError(msg)
        bits, function = found
        result, *operands = instruction.operands
        reads = [self.read(operand, each) for operand, each in zip(operands, bits, strict=False)]

        def compute(threads, chosen):
            threads.write(result, chosen, function(*(read(threads, chosen) for read in reads)))

        return compute

    def _map_to_block(self, instruction):
        result, address, rank = instruction.operands
        address, rank = self.read(address, 64), self.read(rank, 64)

        def map_to_block(threads, chosen):
            upper = (rank(threads, chosen) + np.uint64(1)) << np.uint64(RANK_BITS)
            threads.write(result, chosen, address(threads, chosen) | upper)

        return map_to_block

    def _unpack(self, instruction):
        names = _members(instruction.operands[0])
        bits = instruction.type.bits // len(names)
        read = self.read(instruction.operands[1], instruction.type.bits)

        def unpack(threads, chosen):
            whole = read(threads, chosen)
            for place, name in enumerate(names):
                part = whole >> whole.dtype.type(place * bits)
                threads.write(name, chosen, part.astype(UNSIGNED[bits]))

        return unpack

    def _pack(self, instruction):
        whole, names = UNSIGNED[instruction.type.bits], _members(instruction.operands[1])
        bits = instruction.type.bits // len(names)
        reads = [self.read(name, bits) for name in names]

        def pack(threads, chosen):
            found = np.zeros(chosen.size, whole)
            for place, read in enumerate(reads):
                found |= read(threads, chosen).astype(whole) << whole(place * bits)
            threads.write(instruction.operands[0], chosen, found)

        return pack

    def _access(self, instruction):
        """Return what loads or stores one element or a vector of them."""
        is_store = instruction.name == "st"
        value, place = instruction.operands[::-1] if is_store else instruction.operands
        bits, names = instruction.type.bits, _members(value)
        name, offset, address = self._address(place)
        if address is None:
            number = self._arguments[name] % 2**64 >> 8 * offset
            constant = np.array([number % 2**bits], UNSIGNED[bits])
            return lambda threads, chosen: threads.write(value, chosen, constant)
        reads = [self.read(each, bits) for each in names] if is_store else []
        load, store = self._space(instruction)

        def access(threads, chosen):
            first = address(threads, chosen)
            check_alignment(first, bits // 8 * len(names))
            for member in range(len(names)):
                addresses = first + np.uint64(member * bits // 8)
                if is_store:
                    store(threads, chosen, addresses, reads[member](threads, chosen))
                else:
                    found = load(threads, chosen, addresses)
                    found = found.view(SIGNED[bits]) if instruction.type.kind == "s" else found
                    threads.write(names[member], chosen, found)

        return access

    def _space(self, instruction):
        """Return the functions that load from and store to the memory that an instruction names."""
        bits, text = instruction.type.bits, instruction.text
        if "local" in instruction.modifiers:

            def store_local(threads, chosen, addresses, values):
                cells, places = _local_cells(threads, addresses, bits)
                cells[chosen, places] = values

            def load_local(threads, chosen, addresses):
                cells, places = _local_cells(threads, addresses, bits)
                return cells[chosen, places]

            return load_local, store_local
        if _is_shared(instruction):
            return (
                lambda threads, chosen, at: threads.shared.load(at, bits, threads.warps[chosen], text),
                lambda threads, chosen, at, values: threads.shared.store(
                    at, values, bits, threads.warps[chosen], text
                ),
            )
        assert "global" in instruction.modifiers, text
        return (
            lambda threads, chosen, at: self._memory.load(at, bits, threads.warps[chosen]),
            lambda threads, chosen, at, values: self._memory.store(
                at, values, bits, threads.warps[chosen], "relaxed" in instruction.modifiers
            ),
        )

    def _copy_asynchronously(self, instruction):
        """Return what ``cp.async`` instructions do: memory changes when a thread waits for its copies."""
        assert instruction.modifiers[0] == "async", instruction.text
        assert "bulk" not in instruction.modifiers, instruction.text
        kind = instruction.modifiers[1]
        if kind == "commit_group":
            return lambda threads, chosen: threads.copies.end_group(chosen)
        if kind in ("wait_group", "wait_all"):
            n_left = int(instruction.operands[0]) if kind == "wait_group" else -1
            return lambda threads, chosen: threads.copies.wait(chosen, n_left)
        place, source, n_bytes, *left = instruction.operands
        n_bytes = int(n_bytes)
        is_size = left and "cache_hint" not in instruction.text.partition(" ")[0]
        _, _, to = self._address(place)
        _, _, origin = self._address(source)
        n_read = self.read(left[0] if is_size else str(n_bytes), 32)

        def copy(threads, chosen):
            ends, begins = to(threads, chosen), origin(threads, chosen)
            check_alignment(ends, n_bytes)
            check_alignment(begins, n_bytes)
            for at in range(0, n_bytes, 4):
                words = np.zeros(chosen.size, np.uint32)
                is_read = n_read(threads, chosen) > at
                words[is_read] = self._memory.load(
                    begins[is_read] + np.uint64(at), 32, threads.warps[chosen[is_read]]
                )
                threads.copies.begin(chosen, ends + np.uint64(at), words, instruction.text)

        return copy

    def _update(self, instruction):
        """Return what changes memory atomically."""
        returns, operands = instruction.name == "atom", instruction.operands
        place, *given = operands[returns:]
        kind, bits = instruction.type.kind, instruction.type.bits
        _, _, address = self._address(place)
        reads = [self.read(operand, bits) for operand in given]
        name = next(word for word in instruction.modifiers if word in {*UPDATES, "cas", "exch", "inc"})
        view = SIGNED[bits] if kind == "s" else UNSIGNED[bits]

        def new_value(old, first, second):
            if name == "exch":
                return first
            if name == "cas":
                return second if old == first else old
            if name == "inc":
                return old.dtype.type(0) if old >= first else old + old.dtype.type(1)
            if view is UNSIGNED[bits]:
                return UPDATES[name](old, first)
            return UPDATES[name](old.view(view), first.view(view)).astype(view).view(old.dtype)

        def update(threads, chosen):
            values = [read(threads, chosen) for read in reads]
            found = np.empty(chosen.size, UNSIGNED[bits])

            def change(number, old):
                found[number] = old
                return new_value(old, values[0][number], values[-1][number])

            addresses = address(threads, chosen)
            with np.errstate(over="ignore"):
                if _is_shared(instruction):
                    threads.shared.update(addresses, bits, threads.warps[chosen], instruction.text, change)
                else:
                    self._memory.update(addresses, bits, change)
            if returns:
                threads.write(operands[0], chosen, found)

        return update


def _is_shared(instruction):
    return bool({"shared", "shared::cta", "shared::cluster"} & {*instruction.modifiers})


def _local_cells(threads, addresses, bits):
    fault_if((addresses + np.uint64(bits // 8) > threads.local.shape[1]).any(), "outside of local memory")
    return threads.local.view(UNSIGNED[bits]), addresses.astype(np.int64) // (bits // 8)


def _members(operand):
    """Return the members of a vector, or the one operand."""
    return [member.strip() for member in operand.strip("{}").split(",")]


def _constant(operand):
    if operand[:2] in ("0f", "0d"):
        return int(operand[2:], 16)
    return int(operand.removesuffix("U"), 0)
