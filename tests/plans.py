"""Plans on the host that tests launch with addresses, for choices that no public function offers."""

from unittest import mock

import numpy as np

from tests.inside import CPU, Options, cpu, dispatch

FENCE = 4096
CANARY = 0xA5


class Fenced:
    """An array between canaries, which begins `lead` bytes after a multiple of 256."""

    def __init__(self, values, lead=0):
        self._memory = np.full(values.nbytes + 2 * FENCE + 256 + lead, CANARY, np.uint8)
        start = FENCE + -(self._memory.ctypes.data + FENCE) % 256 + lead
        self._inside = slice(start, start + values.nbytes)
        first = self._memory[self._inside].view(values.dtype)
        self.array = first.reshape(values.shape)
        self.array[...] = values

    def check(self, told="the fence is broken"):
        """Check that nothing around the array was written to."""
        assert (self._memory[: self._inside.start] == CANARY).all(), told
        assert (self._memory[self._inside.stop :] == CANARY).all(), told


def kernels_not_loaded():
    """Have plans be made without their kernels, none of which has to be compiled then."""
    return mock.patch.object(cpu, "load")


def planned(descriptor, options=None):
    """Return the plan of a descriptor on the CPU, and the fields of its operands with their tensors.

    `options` are what functions ask for beyond it, by name.
    """
    options = options if isinstance(options, Options) else Options(**options or {})
    return dispatch.plan(descriptor, CPU, options)


def launch(descriptor, arrays, options=None, *, workspace=None):
    """Launch a descriptor on arrays by field, from the first element of each on; return the plan.

    `workspace` makes the workspace from its size.
    """
    plan, operands = planned(descriptor, options)
    scratch = Fenced(np.full(plan.workspace_size, CANARY, np.uint8)) if workspace is None else None
    made = scratch.array if scratch else workspace(plan.workspace_size)
    absent = () if "input_tensor" in arrays else (0,)
    addresses = [arrays[field].ctypes.data for field, _ in operands]
    plan.launch(*absent, *addresses, made.ctypes.data)
    if scratch:
        scratch.check()
    return plan
