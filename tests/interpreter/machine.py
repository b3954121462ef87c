"""The order in which threads proceed.

Of the threads that can proceed, those that are furthest behind do, all at once, so that threads meet again
after different branches; their order is random, and with it that of their stores and updates. In one of four
launches, warps run ahead of others by turns. Warp operations wait for all lanes that they name.
"""

from typing import NamedTuple

import numpy as np

from tests.interpreter.arithmetic import UPDATES
from tests.interpreter.memory import SIGNED, FaultError, fault_if
from tests.interpreter.steps import Steps
from tests.interpreter.threads import WARP_LANES, Threads
from tests.random_cases import SEED

# Blocks run at the same time up to so many threads.
MOST_THREADS = 4096
RUNNING, AT_BARRIER, AT_WARP_OPERATION, AT_CLUSTER_BARRIER, AT_MESSAGES, DONE = range(6)
_WAITS = {
    AT_BARRIER: "a barrier",
    AT_WARP_OPERATION: "a warp operation",
    AT_CLUSTER_BARRIER: "a cluster's barrier",
    AT_MESSAGES: "messages",
}
_BRANCHES = {"bra", "ret", "exit", "trap"}
_BARRIERS = {"bar", "barrier"}
_WARP_OPERATIONS = {"shfl", "vote", "redux"}


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

    Attributes
    ----------
    are_messages_late : bool
        Whether messages come when nobody can go on without them, rather than at once.
    """

    def __init__(self, program, memory, sizes, arguments):
        self._program, self._sizes, self._memory = program, sizes, memory
        self._rng = np.random.default_rng((SEED, len(program.instructions), sizes.n_grid, sizes.shared_bytes))
        self._is_out_of_step = self._rng.random() < 1 / 4
        self.are_messages_late = self._rng.random() < 3 / 4
        self._steps_of = Steps(program, memory, dict(zip(program.parameters, arguments, strict=True)))
        self._steps = [self._step(instruction) for instruction in program.instructions]

    def _step(self, instruction):
        """Return the step of an instruction, or None if it decides who goes on."""
        is_message = instruction.name == "mbarrier" or instruction.modifiers[:1] == ("async",)
        is_message &= instruction.name != "cp"
        if not is_message and instruction.name not in _BRANCHES | _BARRIERS | _WARP_OPERATIONS:
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
            self._memory.begin_blocks(self._threads.shared.clocks)
            self._places, self._told = np.zeros(self._threads.count, np.int64), {}
            self._states = np.full(self._threads.count, RUNNING)
            while (self._states != DONE).any():
                self._go_on()
            while self._deliver():
                pass
            self._threads.messages.check_end()
            races |= self._threads.shared.races
        return races

    def _go_on(self):
        """Run the threads of a cluster that are furthest behind, and all others at the same place.

        Mostly the first cluster, which all may wait for, and sometimes another, which it may wait for.
        """
        running = np.flatnonzero(self._states == RUNNING)
        clusters = self._threads.clusters
        unfinished = clusters[self._states != DONE]
        first = unfinished.min() if self._rng.random() < 7 / 8 else self._rng.choice(unfinished)
        of_first = running[clusters[running] == first]
        if not of_first.size and self._deliver():
            self._pass_barriers()
            return
        if not of_first.size:
            raise FaultError(self._deadlock(clusters == first))
        if self._is_out_of_step:
            favoured = self._threads.warps % 2 == self._threads.warps[self._rng.choice(of_first)] % 2
            running, of_first = running[favoured[running]], of_first[favoured[of_first]]
        place = self._places[of_first].min()
        threads = self._rng.permutation(running[self._places[running] == place])
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

    def _deliver(self):
        """Let a message come, and tell whether one was under way."""
        living = np.unique(self._threads.blocks[self._states != DONE])
        return self._threads.messages.deliver(self._rng, living)

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
        if instruction.name in ("mbarrier", "st"):
            self._message(instruction, place, threads)
        elif instruction.name == "bra":
            self._places[threads] = self._program.labels[instruction.operands[0]]
        elif instruction.name in ("ret", "exit"):
            self._states[threads] = DONE
        elif instruction.name == "trap":
            fault_if(threads.size, "trap")
        elif "cluster" not in instruction.modifiers:
            assert len(instruction.operands) <= 1, f"a barrier of some threads: {instruction.text}"
            self._states[threads] = AT_BARRIER
        elif "arrive" in instruction.modifiers:
            # A thread that has arrived waits at the next one, before which others may do something.
            self._places[threads] = place + 1
            if "relaxed" not in instruction.modifiers:
                self._tell_cluster(threads)
        else:
            self._states[threads] = AT_CLUSTER_BARRIER
        self._pass_barriers()

    def _tell_cluster(self, threads):
        """Keep what threads know who arrive at the barrier of their cluster."""
        clusters = self._threads.clusters[threads]
        for cluster in np.unique(clusters):
            warps = np.unique(self._threads.warps[threads[clusters == cluster]])
            told = self._threads.shared.clocks.tell(warps)
            self._told[cluster] = np.maximum(self._told.get(cluster, 0), told)

    def _pass_barriers(self):
        """Let threads go on that have all arrived."""
        complete = self._arrived(AT_BARRIER, self._threads.blocks)
        if complete.any():
            for block in np.flatnonzero(complete):
                waiting = (self._states == AT_BARRIER) & (self._threads.blocks == block)
                fault_if(
                    np.unique(self._places[waiting]).size > 1, "threads of a block wait at different barriers"
                )
                self._threads.shared.clocks.meet(np.unique(self._threads.warps[waiting]))
                self._meet_at_barrier(waiting)
        clusters = self._threads.clusters
        complete = self._arrived(AT_CLUSTER_BARRIER, clusters)
        if complete.any():
            for cluster in np.flatnonzero(complete):
                waiting = (self._states == AT_CLUSTER_BARRIER) & (clusters == cluster)
                warps = np.unique(self._threads.warps[waiting])
                self._threads.shared.clocks.learn(warps, self._told.pop(cluster, 0))
                self._threads.shared.have_met[cluster] = True
                self._meet_at_barrier(waiting)
        waiting = np.flatnonzero(self._states == AT_MESSAGES)
        for place in np.unique(self._places[waiting]):
            self._pass_messages(place, waiting[self._places[waiting] == place])

    def _arrived(self, state, groups):
        """Tell of which groups all threads that have not left are in a state."""
        n_waiting = np.bincount(groups[self._states == state], minlength=groups[-1] + 1)
        n_living = np.bincount(groups[self._states != DONE], minlength=groups[-1] + 1)
        return (n_waiting == n_living) & (n_waiting > 0)

    def _meet_at_barrier(self, threads):
        self._threads.shared.order.meet(np.unique(self._threads.warps[threads]))
        self._release(threads)

    def _release(self, threads):
        self._states[threads] = RUNNING
        self._places[threads] += 1

    def _message(self, instruction, place, threads):
        """Run what has to do with messages; threads that wait for some do so at once, without a loop."""
        operands, warps = instruction.operands, self._threads.warps[threads]
        messages = self._threads.messages

        def read(operand, bits):
            return self._read(operand, bits, threads)

        def address(operand):
            return self._steps_of.address(operand)(self._threads, threads)

        if "try_wait" in instruction.modifiers:
            self._states[threads] = AT_MESSAGES
            return
        if instruction.name == "st":
            parts = self._steps_of.message(instruction)(self._threads, threads)
            messages.send(address(operands[2]), parts, warps, instruction.text)
            while not self.are_messages_late and self._deliver():
                pass
        elif instruction.modifiers[0] == "init":
            messages.make(address(operands[0]), warps, read(operands[1], 32))
        else:
            assert instruction.modifiers[:2] == ("arrive", "expect_tx"), instruction.text
            messages.announce(address(operands[1]), warps, read(operands[2], 32))
        self._places[threads] = place + 1

    def _pass_messages(self, place, threads):
        """Let threads go on that have got what they wait for."""
        result, barrier, parity = self._program.instructions[place].operands
        found = self._threads.messages.is_complete(
            self._steps_of.address(barrier)(self._threads, threads),
            self._threads.warps[threads],
            self._read(parity, 32, threads),
        )
        self._threads.write(result, threads[found], np.ones(found.sum(), bool))
        self._release(threads[found])

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
        threads = self._threads
        here = np.flatnonzero((self._places == place) & np.isin(self._states, (RUNNING, AT_WARP_OPERATION)))
        living = threads.lane_masks(np.flatnonzero(self._states != DONE))
        named = self._read(instruction.operands[-1], 32, here)
        for mask in np.unique(named):
            group = here[named == mask]
            warps = np.unique(threads.warps[group])
            present = threads.lane_masks(group)[warps]
            fault_if((present & ~mask).any(), f"a lane is not in its own mask {int(mask):#x}")
            is_complete = mask & living[warps] == present
            fault_if(
                (is_complete & (mask & ~living[warps] != 0)).any() and not self._sizes.n_threads % WARP_LANES,
                f"lanes of the mask {int(mask):#x} have left",
            )
            complete = np.isin(threads.warps[group], warps[is_complete])
            self._states[group[~complete]] = AT_WARP_OPERATION
            group = group[complete]
            if group.size:
                self._run_warp_operation(instruction, group)
                self._states[group] = RUNNING
                self._places[group] = place + 1

    def _run_warp_operation(self, instruction, group):
        """Run a warp operation for lanes of any number of warps; each has all lanes of its mask."""
        name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
        if name == "bar":
            return
        threads, (result, *is_inside) = self._threads, operands[0].split("|")
        lanes, rows = threads.lanes[group], np.unique(threads.warps[group], return_inverse=True)[1]
        kind = instruction.type

        def by_lane(values, missing):
            """Return values as one row for each warp."""
            found = np.full((rows.max() + 1, WARP_LANES), missing, values.dtype)
            found[rows, lanes] = values
            return found

        if name == "vote":
            votes = by_lane(self._read(operands[1], 1, group), modifiers[1] == "all")
            counted = {"all": votes.all(axis=1), "any": votes.any(axis=1), "ballot": _masks(votes)}
            found = counted[modifiers[1]][rows]
        elif name == "redux":
            values = self._read(operands[1], kind.bits, group)
            values = values.view(SIGNED[kind.bits]) if kind.kind == "s" else values
            taking_part = by_lane(lanes >= 0, False)
            found = by_lane(values, 0)
            if modifiers[1] not in ("add", "or", "xor"):
                # A lane that is missing is as the first one that is not.
                first = found[np.arange(len(found)), taking_part.argmax(axis=1)]
                found = np.where(taking_part, found, first[:, None])
            found = UPDATES[modifiers[1]].reduce(found, axis=1, dtype=values.dtype)[rows]
        else:
            found, inside = self._shuffled(modifiers[1], operands, group, by_lane, rows)
            if is_inside:
                threads.write(is_inside[0], group, inside)
        threads.write(result, group, found)

    def _shuffled(self, mode, operands, group, by_lane, rows):
        """Return what a shuffle gives each lane, and whether it is from within its segment."""
        values = self._read(operands[1], 32, group)
        step, limits = (self._read(operand, 32, group).astype(np.int64) for operand in operands[2:4])
        lanes = self._threads.lanes[group].astype(np.int64)
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
        fault_if(
            not by_lane(lanes >= 0, False)[rows, sources].all(),
            "a shuffle from a lane that does not take part",
        )
        return by_lane(values, 0)[rows, sources], is_inside


def _masks(holds):
    """Return the mask of the lanes for which something holds, for each row of lanes."""
    return (holds.astype(np.uint64) << np.arange(WARP_LANES, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
