"""The threads of a cluster of blocks, and the order in which they go on.

Of the threads that can go on, those that are furthest behind do, together, so that threads that took
different branches meet again. Warp operations wait for all lanes that they name.
"""

import re

import numpy as np

from tests.interpreter.arithmetic import computation
from tests.interpreter.memory import RANK_BITS, SIGNED, UNSIGNED, FaultError, SharedMemory, check_alignment

WARP_LANES = 32
# Blocks run at the same time up to so many threads.
MOST_THREADS = 4096
RUNNING, AT_BARRIER, AT_WARP_OPERATION, AT_CLUSTER_BARRIER, DONE = range(5)
_WAITS = {
    AT_BARRIER: "a barrier",
    AT_WARP_OPERATION: "a warp operation",
    AT_CLUSTER_BARRIER: "a cluster's barrier",
}
# What this interpreter does at once, or need not do.
_NOTHING = {"griddepcontrol", "nanosleep", "fence", "membar", "prefetch", "discard"}
_BRANCHES = {"bra", "ret", "exit", "trap"}
_BARRIERS = {"bar", "barrier"}
_WARP_OPERATIONS = {"shfl", "vote", "redux", "match", "activemask"}
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_UPDATES = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Machine:
    """Runs a kernel.

    Parameters
    ----------
    program : Program
        The kernel.
    memory : GlobalMemory
        What it may access.
    n_threads, n_blocks, shared_bytes : int
        Threads of a block, blocks of a cluster (1: there are none), and dynamic shared memory of a block.
    arguments : sequence of int
        The kernel's arguments.
    """

    def __init__(self, program, memory, n_threads, n_blocks, shared_bytes, arguments):
        self._program, self._memory = program, memory
        self._n_threads, self._n_blocks = n_threads, n_blocks
        self._dynamic_bytes = shared_bytes
        self._shared_bytes = -(-(program.shared_end + shared_bytes) // 16) * 16
        assert self._shared_bytes < 1 << RANK_BITS
        self._arguments = dict(zip(program.parameters, arguments, strict=True))
        self._steps = [self._step(instruction) for instruction in program.instructions]

    # Operands

    def _read(self, operand, bits):
        """Return a function of threads that reads an operand of them as unsigned numbers, or predicates."""
        program, is_negated = self._program, operand.startswith("!")
        operand = operand.removeprefix("!")
        kind = program.registers.get(operand)
        if kind is not None:
            if kind.bits == 1:
                return lambda threads: self._register(operand)[threads] ^ is_negated
            if kind.bits == bits:
                return lambda threads: self._register(operand)[threads]
            return lambda threads: self._register(operand)[threads].astype(UNSIGNED[bits])
        if operand.startswith("%"):
            return lambda threads: self._special_registers[operand][threads].astype(UNSIGNED[bits])
        places = program.shared | program.local
        number = places[operand] if operand in places else _constant(operand)
        constant = np.bool_(number & 1) if bits == 1 else UNSIGNED[bits](number % 2**bits)
        return lambda threads: np.full(threads.size, constant)

    def _register(self, name):
        found = self._registers.get(name)
        if found is None:
            bits = self._program.registers[name].bits
            # What is read before it is written should not be 0.
            start = True if bits == 1 else UNSIGNED[bits](0xA5A5A5A5A5A5A5A5 % 2**bits)
            found = self._registers[name] = np.full(self._count, start)
        return found

    def _write(self, name, threads, values):
        if name == "_":
            return
        register = self._register(name)
        if values.dtype.kind == "i":
            values = values.astype(SIGNED[register.itemsize * 8]).view(register.dtype)
        register[threads] = values.astype(register.dtype)

    def _special_values(self):
        """Return the special registers of all threads."""
        lane = np.uint64(1) << self._lanes.astype(np.uint64)
        ones = np.uint64(0xFFFFFFFF)
        before = lane - np.uint64(1)
        one, zero = np.ones(self._count, int), np.zeros(self._count, int)
        ranks = self._blocks % self._n_blocks
        return {
            "%tid.x": self._numbers,
            "%ntid.x": one * self._n_threads,
            "%ctaid.x": self._first_block + self._blocks,
            "%nctaid.x": one * self._n_grid,
            "%laneid": self._lanes,
            "%warpid": self._numbers // WARP_LANES,
            "%lanemask_lt": before,
            "%lanemask_le": before | lane,
            "%lanemask_eq": lane,
            "%lanemask_gt": ones ^ (before | lane),
            "%lanemask_ge": ones ^ before,
            "%cluster_ctarank": ranks,
            "%cluster_ctaid.x": ranks,
            "%cluster_nctarank": one * self._n_blocks,
            "%cluster_nctaid.x": one * self._n_blocks,
            "%clusterid.x": (self._first_block + self._blocks) // self._n_blocks,
            "%dynamic_smem_size": one * self._dynamic_bytes,
            "%globaltimer": zero,
            "%clock": zero,
            **{f"%{name}.{axis}": zero for name in ("tid", "ctaid") for axis in "yz"},
            **{f"%{name}.{axis}": one for name in ("ntid", "nctaid") for axis in "yz"},
        }

    def _address(self, operand):
        """Return the name in an address, and a function of threads that gives the address."""
        name, offset = _ADDRESS.fullmatch(operand).groups()
        if name in self._arguments:
            return name, int(offset or "0", 0)
        read, added = self._read(name, 64), np.uint64(int(offset or "0", 0) % 2**64)
        with np.errstate(over="ignore"):
            return name, lambda threads: read(threads) + added

    # Instructions as functions of the threads that are at them

    def _step(self, instruction):
        if instruction.name in _BRANCHES | _BARRIERS | _WARP_OPERATIONS:
            assert instruction.guard is None or instruction.name in _BRANCHES, instruction.text
            return None
        run = self._operation(instruction)
        if instruction.guard is None:
            return run

        def run_some(threads):
            threads = threads[self._register(instruction.guard)[threads] ^ instruction.is_negated]
            if threads.size:
                run(threads)

        return run_some

    def _operation(self, instruction):
        name, operands = instruction.name, instruction.operands
        if name in _NOTHING or (
            name == "cp" and {"commit_group", "wait_group", "wait_all"} & {*instruction.modifiers}
        ):
            return lambda threads: None
        if name in ("ld", "st"):
            return self._access(instruction)
        if name in ("atom", "red"):
            return self._update(instruction)
        if name == "cp":
            return self._copy_to_shared(instruction)
        if name == "mapa":
            address, rank = self._read(operands[1], 64), self._read(operands[2], 64)
            return lambda threads: self._write(
                operands[0],
                threads,
                address(threads) | (rank(threads) + np.uint64(1)) << np.uint64(RANK_BITS),
            )
        if name == "mov" and operands[0].startswith("{"):
            return self._unpack(instruction)
        if name == "mov" and operands[1].startswith("{"):
            return self._pack(instruction)
        found = computation(instruction)
        if found is None:
            msg = f"not known: {instruction.text}"
            raise NotImplementedError(msg)
        bits, compute = found
        sources = [self._read(operand, each) for operand, each in zip(operands[1:], bits, strict=False)]
        result = operands[0]
        return lambda threads: self._write(result, threads, compute(*(read(threads) for read in sources)))

    def _unpack(self, instruction):
        names = _members(instruction.operands[0])
        read, bits = (
            self._read(instruction.operands[1], instruction.type.bits),
            instruction.type.bits // len(names),
        )

        def unpack(threads):
            whole = read(threads)
            for place, name in enumerate(names):
                self._write(name, threads, (whole >> whole.dtype.type(place * bits)).astype(UNSIGNED[bits]))

        return unpack

    def _pack(self, instruction):
        whole, names = UNSIGNED[instruction.type.bits], _members(instruction.operands[1])
        bits = instruction.type.bits // len(names)
        reads = [self._read(name, bits) for name in names]

        def pack(threads):
            found = np.zeros(threads.size, whole)
            for place, read in enumerate(reads):
                found |= read(threads).astype(whole) << whole(place * bits)
            self._write(instruction.operands[0], threads, found)

        return pack

    def _access(self, instruction):
        """Return what loads or stores one element or a vector of them."""
        is_store = instruction.name == "st"
        value, place = instruction.operands[::-1] if is_store else instruction.operands
        bits, names = instruction.type.bits, _members(value)
        name, address = self._address(place)
        if "param" in instruction.modifiers:
            number = self._arguments[name] % 2**64 >> 8 * address
            constant = np.array([number % 2**bits], UNSIGNED[bits])
            return lambda threads: self._write(value, threads, constant)
        reads = [self._read(each, bits) for each in names] if is_store else []
        n_bytes = bits // 8
        load, store = self._space(instruction)

        def access(threads):
            first = address(threads)
            check_alignment(first, n_bytes * len(names))
            for member in range(len(names)):
                addresses = first + np.uint64(member * n_bytes)
                if is_store:
                    store(threads, addresses, reads[member](threads), bits)
                else:
                    found = load(threads, addresses, bits)
                    found = found.view(SIGNED[bits]) if instruction.type.kind == "s" else found
                    self._write(names[member], threads, found)

        return access

    def _space(self, instruction):
        """Return the functions that load from and store to the memory that an instruction names."""
        modifiers, text = instruction.modifiers, instruction.text
        if "local" in modifiers:
            return self._load_local, self._store_local
        if {"shared", "shared::cta", "shared::cluster"} & {*modifiers}:
            return (
                lambda threads, at, bits: self._shared.load(at, bits, self._warps[threads], text),
                lambda threads, at, values, bits: self._shared.store(
                    at, values, bits, self._warps[threads], text
                ),
            )
        assert "global" in modifiers, text
        return (
            lambda threads, at, bits: self._memory.load(at, bits),
            lambda threads, at, values, bits: self._memory.store(at, values, bits),
        )

    def _local_cells(self, addresses, bits):
        if (addresses + np.uint64(bits // 8) > self._program.local_bytes).any():
            msg = "outside of local memory"
            raise FaultError(msg)
        return self._local.view(UNSIGNED[bits]), addresses.astype(np.int64) // (bits // 8)

    def _load_local(self, threads, addresses, bits):
        cells, places = self._local_cells(addresses, bits)
        return cells[threads, places]

    def _store_local(self, threads, addresses, values, bits):
        cells, places = self._local_cells(addresses, bits)
        cells[threads, places] = values

    def _copy_to_shared(self, instruction):
        """Return what copies as ``cp.async`` does, at once."""
        place, source, n_bytes, *left = instruction.operands
        assert instruction.modifiers[0] == "async", instruction.text
        assert "bulk" not in instruction.modifiers, instruction.text
        to, n_bytes = self._address(place)[1], int(n_bytes)
        from_, n_read = self._address(source)[1], self._read(left[0] if left else str(n_bytes), 32)

        def copy(threads):
            check_alignment(to(threads), n_bytes)
            check_alignment(from_(threads), n_bytes)
            for at in range(0, n_bytes, 4):
                words = np.zeros(threads.size, np.uint32)
                is_read = n_read(threads) > at
                words[is_read] = self._memory.load(from_(threads)[is_read] + np.uint64(at), 32)
                warps = self._warps[threads]
                self._shared.store(to(threads) + np.uint64(at), words, 32, warps, instruction.text)

        return copy

    def _update(self, instruction):
        """Return what changes memory atomically."""
        returns, operands = instruction.name == "atom", instruction.operands
        place, *given = operands[returns:]
        address, bits = self._address(place)[1], instruction.type.bits
        reads = [self._read(operand, bits) for operand in given]
        name = next(word for word in instruction.modifiers if word in {*_UPDATES, "cas", "exch", "inc"})
        view = SIGNED[bits] if instruction.type.kind == "s" else UNSIGNED[bits]
        in_global = "global" in instruction.modifiers

        def new_value(old, first, second):
            if name == "exch":
                return first
            if name == "cas":
                return second if old == first else old
            if name == "inc":
                return old.dtype.type(0) if old >= first else old + old.dtype.type(1)
            with np.errstate(over="ignore"):
                return _UPDATES[name](old.view(view), first.view(view)).astype(view).view(old.dtype)

        def update(threads):
            values = [read(threads) for read in reads]
            found = np.empty(threads.size, UNSIGNED[bits])

            def change(number, old):
                found[number] = old
                return new_value(old, values[0][number], values[-1][number])

            if in_global:
                self._memory.update(address(threads), bits, change)
            else:
                warps = self._warps[threads]
                self._shared.update(address(threads), bits, warps, instruction.text, change)
            if returns:
                self._write(operands[0], threads, found)

        return update

    # Control

    def run(self, n_grid):
        """Run all blocks of a grid; return the races in shared memory."""
        self._n_grid = n_grid
        races = set()
        step = self._n_blocks * max(1, MOST_THREADS // (self._n_threads * self._n_blocks))
        for first_block in range(0, n_grid, step):
            self._start(first_block, min(step, n_grid - first_block))
            while (self._states != DONE).any():
                self._go_on()
            races |= self._shared.races
        return races

    def _start(self, first_block, n_running):
        """Begin with some of the blocks."""
        self._first_block, self._count = first_block, n_running * self._n_threads
        threads = np.arange(self._count)
        numbers = self._numbers = threads % self._n_threads
        self._blocks = threads // self._n_threads
        self._lanes = (numbers % WARP_LANES).astype(np.uint32)
        warps_per_block = -(-self._n_threads // WARP_LANES)
        self._warps = self._blocks * warps_per_block + numbers // WARP_LANES
        block_of_warp = np.arange(warps_per_block * n_running) // warps_per_block
        self._shared = SharedMemory(n_running, self._n_blocks, self._shared_bytes, block_of_warp)
        self._registers = {}
        self._special_registers = self._special_values()
        self._local = np.full((self._count, self._program.local_bytes), 0xA5, np.uint8)
        self._places = np.zeros(self._count, np.int64)
        self._states = np.full(self._count, RUNNING)

    def _go_on(self):
        """Run the threads of the first cluster that are furthest behind, and all others at the same place.

        As the first cluster always goes on, none may wait for ever for one before it.
        """
        running = np.flatnonzero(self._states == RUNNING)
        clusters = self._blocks // self._n_blocks
        first = clusters[self._states != DONE].min()
        of_first = running[clusters[running] == first]
        if not of_first.size:
            raise FaultError(self._deadlock(clusters == first))
        place = self._places[of_first].min()
        threads = running[self._places[running] == place]
        instruction = self._program.instructions[place]
        try:
            if instruction.name in _WARP_OPERATIONS or instruction.modifiers[:1] == ("warp",):
                self._meet(instruction, place)
            elif self._steps[place] is None:
                self._branch(instruction, place, threads)
            else:
                self._run_straight(place, threads, running)
        except FaultError as fault:
            block, thread = self._first_block + self._blocks[threads[0]], self._numbers[threads[0]]
            msg = f"{fault}: {instruction.text}, block {block}, thread {thread}"
            raise FaultError(msg) from None

    def _run_straight(self, place, threads, running):
        """Run instructions up to a branch, a barrier, a warp operation, or where other threads are."""
        others = self._places[running][self._places[running] > place]
        end = others.min() if others.size else len(self._steps)
        while place < end and self._steps[place] is not None:
            self._places[threads] = place
            try:
                self._steps[place](threads)
            except FaultError as fault:
                fault.add_note(self._program.instructions[place].text)
                raise
            place += 1
        self._places[threads] = place

    def _branch(self, instruction, place, threads):
        takes = np.ones(threads.size, bool)
        if instruction.guard is not None:
            takes = self._register(instruction.guard)[threads] ^ instruction.is_negated
        self._places[threads[~takes]] = place + 1
        threads = threads[takes]
        if instruction.name == "bra":
            self._places[threads] = self._program.labels[instruction.operands[0]]
        elif instruction.name in ("ret", "exit"):
            self._states[threads] = DONE
        elif instruction.name == "trap":
            if threads.size:
                msg = "trap"
                raise FaultError(msg)
        elif "cluster" not in instruction.modifiers:
            assert len(instruction.operands) <= 1, f"a barrier of some threads: {instruction.text}"
            self._states[threads] = AT_BARRIER
        elif "arrive" in instruction.modifiers:
            # A thread that has arrived waits at the next one, before which others may do something.
            self._places[threads] = place + 1
        else:
            self._states[threads] = AT_CLUSTER_BARRIER
        self._pass_barriers()

    def _pass_barriers(self):
        """Let threads go on that have all arrived."""
        complete = self._arrived(AT_BARRIER, self._blocks)
        if complete.any():
            waiting = (self._states == AT_BARRIER) & complete[self._blocks]
            for block in np.flatnonzero(complete):
                if np.unique(self._places[waiting & (self._blocks == block)]).size > 1:
                    msg = "threads of a block wait at different barriers"
                    raise FaultError(msg)
            self._release(waiting)
            self._shared.block_barriers[complete] += 1
        clusters = self._blocks // self._n_blocks
        complete = self._arrived(AT_CLUSTER_BARRIER, clusters)
        if complete.any():
            self._release((self._states == AT_CLUSTER_BARRIER) & complete[clusters])
            self._shared.cluster_barriers[complete] += 1
            self._shared.block_barriers[np.repeat(complete, self._n_blocks)] += 1

    def _arrived(self, state, groups):
        """Tell of which groups all threads that have not left are in a state."""
        n_waiting = np.bincount(groups[self._states == state], minlength=groups[-1] + 1)
        n_living = np.bincount(groups[self._states != DONE], minlength=groups[-1] + 1)
        return (n_waiting == n_living) & (n_waiting > 0)

    def _release(self, threads):
        self._states[threads] = RUNNING
        self._places[threads] += 1

    def _deadlock(self, is_meant):
        waits = []
        for state, name in _WAITS.items():
            waiting = is_meant & (self._states == state)
            for place in np.unique(self._places[waiting]):
                count = int((self._places[waiting] == place).sum())
                waits.append(f"{count} threads at {name} ({self._program.instructions[place].text})")
        return "threads wait for ever: " + "; ".join(waits)

    # Warp operations

    def _meet(self, instruction, place):
        """Run a warp operation for the lanes that have all arrived; the others wait."""
        is_here = (self._places == place) & np.isin(self._states, (RUNNING, AT_WARP_OPERATION))
        for warp in np.unique(self._warps[is_here]):
            of_warp = self._warps == warp
            threads = np.flatnonzero(is_here & of_warp)
            living = _mask(self._lanes[of_warp & (self._states != DONE)])
            if instruction.name == "activemask":
                named = np.full(threads.size, _mask(self._lanes[threads]), np.uint32)
            else:
                named = self._read(instruction.operands[-1], 32)(threads)
            for mask in np.unique(named):
                group = threads[named == mask]
                present = _mask(self._lanes[group])
                if present & ~int(mask):
                    msg = f"a lane is not in its own mask {int(mask):#x}"
                    raise FaultError(msg)
                if int(mask) & living != present:
                    self._states[group] = AT_WARP_OPERATION
                    continue
                if int(mask) & ~living and self._n_threads % WARP_LANES == 0:
                    msg = f"lanes of the mask {int(mask):#x} have left"
                    raise FaultError(msg)
                self._run_warp_operation(instruction, group, int(mask))
                self._states[group] = RUNNING
                self._places[group] = place + 1

    def _run_warp_operation(self, instruction, threads, mask):
        name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
        if name == "bar":
            return
        lanes = self._lanes[threads]
        results = operands[0].split("|")
        if name == "activemask":
            self._write(results[0], threads, np.full(threads.size, np.uint32(mask)))
        elif name == "vote":
            votes = self._read(operands[1], 1)(threads)
            found = {"ballot": np.uint32(_mask(lanes[votes])), "all": votes.all(), "any": votes.any()}
            self._write(results[0], threads, np.full(threads.size, found[modifiers[1]]))
        elif name == "redux":
            kind = instruction.type
            values = self._read(operands[1], kind.bits)(threads)
            values = values.view(SIGNED[kind.bits]) if kind.kind == "s" else values
            reduced = _UPDATES[modifiers[1]].reduce(values, dtype=values.dtype)
            self._write(results[0], threads, np.full(threads.size, reduced))
        elif name == "match":
            values = self._read(operands[1], instruction.type.bits)(threads)
            found = [_mask(lanes[values == value]) for value in values]
            self._write(results[0], threads, np.array(found, np.uint32))
        else:
            self._shuffle(modifiers[1], operands, results, threads)

    def _shuffle(self, mode, operands, results, threads):
        values, step, limits = (
            self._read(operand, 32)(threads).astype(np.int64) for operand in operands[1:4]
        )
        lanes = self._lanes[threads].astype(np.int64)
        segment, clamp = limits >> 8 & 31, limits & 31
        last = lanes & segment | clamp & ~segment
        sources = {
            "up": lanes - step,
            "down": lanes + step,
            "bfly": lanes ^ step,
            "idx": lanes & segment | step & 31 & ~segment,
        }[mode]
        is_inside = sources >= last if mode == "up" else sources <= last
        sources = np.where(is_inside, sources, lanes)
        thread_of_lane = np.full(WARP_LANES, -1)
        thread_of_lane[lanes] = np.arange(threads.size)
        if (thread_of_lane[sources] < 0).any():
            msg = "a shuffle from a lane that does not take part"
            raise FaultError(msg)
        self._write(results[0], threads, values[thread_of_lane[sources]].astype(np.uint32))
        if len(results) > 1:
            self._write(results[1], threads, is_inside)


def _mask(lanes):
    """Return the mask of some lanes."""
    return sum(1 << int(lane) for lane in np.unique(lanes))


def _members(operand):
    """Return the members of a vector, or the one operand."""
    return [member.strip() for member in operand.strip("{}").split(",")]


def _constant(operand):
    if operand[:2] in ("0f", "0d"):
        return int(operand[2:], 16)
    return int(operand.removesuffix("U"), 0)
