"""A stand-in for the driver, which interprets the launches of plans."""

import functools
from contextlib import contextmanager

from tests import inside
from tests.cuda_plans import Config, driver_replaced, values_at
from tests.cuda_ptx import ptx_of
from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.program import parse


@functools.cache
def program_of(variant, arch):
    """Return the kernel of a variant as it is for an architecture."""
    compiler = inside.compiler
    capability_of = inside.variant.capability_of
    capability = compiler.ptx_capability(capability_of(arch))
    return parse(ptx_of(variant, capability))


class Interpreter:
    """Takes the place of the functions by which kernels are loaded and launched.

    Attributes
    ----------
    launched : list of str
        The labels of the kernels that ran.
    races : set of str
        Accesses of shared memory whose order was left to chance.
    """

    def __init__(self, memory):
        self.launched, self.races = [], set()
        self._memory, self._loaded = memory, []
        self._launch = inside.launch

    def load(self, variant, target):
        """Return a kernel that `entry` knows."""
        self._loaded.append((variant, target.arch))
        return self._launch.DeviceKernel(len(self._loaded), target)

    def entry(self, config, function, addresses, extra):
        """Run a launch, as ``cuLaunchKernelEx`` does; the stream is not looked at."""
        given, (variant, arch) = Config.from_address(config), self._loaded[function - 1]
        is_early, n_blocks = given.is_early_and_cluster()
        if not is_early:
            self._memory.settle()  # otherwise the launch may begin before what came before it has ended
        program = program_of(variant, arch)
        arguments = values_at(addresses, len(program.parameters))
        sizes = Sizes(given.grid[0], given.block[0], n_blocks, given.shared_bytes)
        self.races |= Machine(program, self._memory, sizes, arguments).run()
        self.launched.append(variant.label)
        return 0


@contextmanager
def interpreted(memory):
    """Have plans launch their kernels on an `Interpreter` that accesses a `GlobalMemory`."""
    interpreter = Interpreter(memory)
    with driver_replaced(interpreter):
        yield interpreter
        memory.settle()
