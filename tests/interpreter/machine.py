"""The order in which threads go on.

Of the threads that can go on, those that are furthest behind do, together, so that threads that took
different branches meet again. Warp operations wait for all lanes that they name.
"""

from typing import NamedTuple

import numpy as np

from tests.interpreter.arithmetic import UPDATES
from tests.interpreter.memory import SIGNED, FaultError
from tests.interpreter.steps import Steps
from tests.interpreter.threads import WARP_LANES, Threads

# Blocks run at the same time up to so many threads.
MOST_THREADS = 4096
RUNNING, AT_BARRIER, AT_WARP_OPERATION, AT_CLUSTER_BARRIER, DONE = range(5)
_WAITS = {
    AT_BARRIER: "a barrier",
    AT_WARP_OPERATION: "a warp operation",
    AT_CLUSTER_BARRIER: "a cluster's barrier",
}
_BRANCHES = {"bra", "ret", "exit", "trap"}
_BARRIERS = {"bar", "barrier"}
_WARP_OPERATIONS = {"shfl", "vote", "redux", "match", "activemask"}


class Sizes(NamedTuple):
    """Of a launch: blocks, threads of a block, blocks of a cluster, bytes of dynamic shared memory."""

    n_grid: int
    n_threads: int
    n_cluster: int = 1
    shared_bytes: int = 0


class Machine:
    """Runs a kernel.

    Parameters
    ----------
    program : Program
        The kernel.
    memory : GlobalMemory
        What it may access.
    sizes : Sizes
        Of the launch.
    arguments : sequence of int
        The kernel's arguments.
    """

    def __init__(self, program, memory, sizes, arguments):
        self._program, self._sizes = program, sizes
        self._steps_of = Steps(program, memory, dict(zip(program.parameters, arguments, strict=True)))
        self._steps = [self._step(instruction) for instruction in program.instructions]

    def _step(self, instruction):
        """Return the step of an instruction, or None if it decides who goes on."""
        if instruction.name not in _BRANCHES | _BARRIERS | _WARP_OPERATIONS:
            return self._steps_of.step(instruction)
        assert instruction.guard is None or instruction.name in _BRANCHES, instruction.text
        return None

    def run(self):
        """Run all blocks; return the races in shared memory."""
        sizes, races = self._sizes, set()
        step = sizes.n_cluster * max(1, MOST_THREADS // (sizes.n_threads * sizes.n_cluster))
        for first_block in range(0, sizes.n_grid, step):
            n_blocks = min(step, sizes.n_grid - first_block)
            self._threads = Threads(self._program, sizes, first_block, n_blocks)
            self._places = np.zeros(self._threads.count, np.int64)
            self._states = np.full(self._threads.count, RUNNING)
            while (self._states != DONE).any():
                self._go_on()
            races |= self._threads.shared.races
        return races

    def _go_on(self):
        """Run the threads of the first cluster that are furthest behind, and all others at the same place.

        As the first cluster always goes on, none may wait for ever for one before it.
        """
        running = np.flatnonzero(self._states == RUNNING)
        clusters = self._threads.clusters
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
            block = self._threads.first_block + self._threads.blocks[threads[0]]
            thread = self._threads.numbers[threads[0]]
            msg = f"{fault}: {instruction.text}, block {block}, thread {thread}"
            raise FaultError(msg) from None

    def _run_straight(self, place, threads, running):
        """Run instructions up to a branch, a barrier, a warp operation, or where other threads are."""
        others = self._places[running][self._places[running] > place]
        end = others.min() if others.size else len(self._steps)
        while place < end and self._steps[place] is not None:
            self._places[threads] = place
            try:
                self._steps[place](self._threads, threads)
            except FaultError as fault:
                fault.add_note(self._program.instructions[place].text)
                raise
            place += 1
        self._places[threads] = place

    def _branch(self, instruction, place, threads):
        takes = np.ones(threads.size, bool)
        if instruction.guard is not None:
            takes = self._threads.register(instruction.guard)[threads] ^ instruction.is_negated
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
        complete = self._arrived(AT_BARRIER, self._threads.blocks)
        if complete.any():
            waiting = (self._states == AT_BARRIER) & complete[self._threads.blocks]
            for block in np.flatnonzero(complete):
                if np.unique(self._places[waiting & (self._threads.blocks == block)]).size > 1:
                    msg = "threads of a block wait at different barriers"
                    raise FaultError(msg)
            self._release(waiting)
            self._threads.shared.block_barriers[complete] += 1
        clusters = self._threads.clusters
        complete = self._arrived(AT_CLUSTER_BARRIER, clusters)
        if complete.any():
            self._release((self._states == AT_CLUSTER_BARRIER) & complete[clusters])
            self._threads.shared.cluster_barriers[complete] += 1
            self._threads.shared.block_barriers[np.repeat(complete, self._sizes.n_cluster)] += 1

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

    def _read(self, operand, bits, chosen):
        return self._steps_of.read(operand, bits)(self._threads, chosen)

    def _meet(self, instruction, place):
        """Run a warp operation for the lanes that have all arrived; the others wait."""
        is_here = (self._places == place) & np.isin(self._states, (RUNNING, AT_WARP_OPERATION))
        for warp in np.unique(self._threads.warps[is_here]):
            of_warp = self._threads.warps == warp
            threads = np.flatnonzero(is_here & of_warp)
            living = _mask(self._threads.lanes[of_warp & (self._states != DONE)])
            if instruction.name == "activemask":
                named = np.full(threads.size, _mask(self._threads.lanes[threads]), np.uint32)
            else:
                named = self._read(instruction.operands[-1], 32, threads)
            for mask in np.unique(named):
                group = threads[named == mask]
                present = _mask(self._threads.lanes[group])
                if present & ~int(mask):
                    msg = f"a lane is not in its own mask {int(mask):#x}"
                    raise FaultError(msg)
                if int(mask) & living != present:
                    self._states[group] = AT_WARP_OPERATION
                    continue
                if int(mask) & ~living and self._sizes.n_threads % WARP_LANES == 0:
                    msg = f"lanes of the mask {int(mask):#x} have left"
                    raise FaultError(msg)
                self._run_warp_operation(instruction, group, int(mask))
                self._states[group] = RUNNING
                self._places[group] = place + 1

    def _run_warp_operation(self, instruction, threads, mask):
        name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
        if name == "bar":
            return
        lanes = self._threads.lanes[threads]
        results = operands[0].split("|")
        if name == "activemask":
            self._threads.write(results[0], threads, np.full(threads.size, np.uint32(mask)))
        elif name == "vote":
            votes = self._read(operands[1], 1, threads)
            found = {"ballot": np.uint32(_mask(lanes[votes])), "all": votes.all(), "any": votes.any()}
            self._threads.write(results[0], threads, np.full(threads.size, found[modifiers[1]]))
        elif name == "redux":
            kind = instruction.type
            values = self._read(operands[1], kind.bits, threads)
            values = values.view(SIGNED[kind.bits]) if kind.kind == "s" else values
            reduced = UPDATES[modifiers[1]].reduce(values, dtype=values.dtype)
            self._threads.write(results[0], threads, np.full(threads.size, reduced))
        elif name == "match":
            values = self._read(operands[1], instruction.type.bits, threads)
            found = [_mask(lanes[values == value]) for value in values]
            self._threads.write(results[0], threads, np.array(found, np.uint32))
        else:
            self._shuffle(modifiers[1], operands, results, threads)

    def _shuffle(self, mode, operands, results, threads):
        values, step, limits = (
            self._read(operand, 32, threads).astype(np.int64) for operand in operands[1:4]
        )
        lanes = self._threads.lanes[threads].astype(np.int64)
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
        self._threads.write(results[0], threads, values[thread_of_lane[sources]].astype(np.uint32))
        if len(results) > 1:
            self._threads.write(results[1], threads, is_inside)


def _mask(lanes):
    """Return the mask of some lanes."""
    return sum(1 << int(lane) for lane in np.unique(lanes))
