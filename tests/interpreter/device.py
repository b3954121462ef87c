"""A stand-in for the driver, which interprets the launches of plans."""

import ctypes
import functools
import importlib
from contextlib import contextmanager
from unittest import mock

from tests.cuda_plans import Config
from tests.cuda_ptx import ptx_of
from tests.interpreter.machine import Machine, Sizes
from tests.interpreter.program import parse

# CUlaunchAttributeID
_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6


@functools.cache
def program_of(variant, arch):
    """Return the kernel of a variant as it is for an architecture."""
    compiler = importlib.import_module("kernels_cuda.runtime.compiler")
    capability_of = importlib.import_module("kernels_cuda.runtime.variant").capability_of
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
        self._launch = importlib.import_module("kernels_cuda.runtime.launch")

    def load(self, variant, target):
        """Return a kernel that `entry` knows."""
        self._loaded.append((variant, target.arch))
        return self._launch.Kernel(len(self._loaded), target)

    def entry(self, config, function, addresses, extra):
        """Run a launch, as ``cuLaunchKernelEx`` does; the stream is not looked at."""
        given, (variant, arch) = Config.from_address(config), self._loaded[function - 1]
        attributes = [given.attributes[number] for number in range(given.n_attributes)]
        n_blocks = next((each.value[0] for each in attributes if each.id == _CLUSTER_DIMENSION), 1)
        if not any(each.id == _PROGRAMMATIC_STREAM_SERIALIZATION for each in attributes):
            self._memory.settle()  # otherwise the launch may begin before what came before it has ended
        program = program_of(variant, arch)
        arguments = [
            ctypes.c_int64.from_address(ctypes.c_uint64.from_address(addresses + 8 * place).value).value
            for place in range(len(program.parameters))
        ]
        sizes = Sizes(given.grid[0], given.block[0], n_blocks, given.shared_bytes)
        self.races |= Machine(program, self._memory, sizes, arguments).run()
        self.launched.append(variant.label)
        return 0


@contextmanager
def interpreted(memory):
    """Have plans launch their kernels on an `Interpreter` that accesses a `GlobalMemory`."""
    interpreter = Interpreter(memory)
    launch = interpreter._launch
    with (
        mock.patch.object(launch, "_load", interpreter.load),
        mock.patch.dict(launch._KERNELS, clear=True),
        mock.patch.object(launch, "_driver_version", return_value=12_090),
        mock.patch.object(launch, "launch_entry", return_value=interpreter.entry),
    ):
        yield interpreter
        memory.settle()
