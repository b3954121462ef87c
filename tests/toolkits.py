"""The compilers of several CUDA toolkits side by side, without a GPU: what each makes of a kernel.

    python -m tests.toolkits FOLDER    # install them from PyPI: a folder each, of 200 MB

`DMLOPS_TOOLKITS` then tells the tests that folder. A toolkit is its NVVM and its nvJitLink, as where it is
installed. ctypes calls those of each toolkit in a process of its own: Numba translates a kernel only once.
"""

import ctypes
import importlib
import re
import struct
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests import inside

# The oldest that the docs promise, those that place shared memory as it does, and the newest.
TOOLKITS = {
    "12.8": ("nvidia-cuda-nvcc-cu12==12.8.*", "nvidia-nvjitlink-cu12==12.8.*"),
    "12.9": ("nvidia-cuda-nvcc-cu12==12.9.*", "nvidia-nvjitlink-cu12==12.9.*"),
    "13.0": ("nvidia-nvvm==13.0.*", "nvidia-nvjitlink==13.0.*"),
    "newest": ("nvidia-nvvm", "nvidia-nvjitlink"),
}
PTX_INPUT = 2  # of nvJitLinkInputType
# Attributes of functions in `.nv.info`, each with two words: a symbol and a value.
WORDS, FRAME_SIZE, REGISTER_COUNT = 4, 0x11, 0x2F


class Assembled(NamedTuple):
    """A kernel as a toolkit assembles it.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    frame_bytes : int
        Local memory of a thread: the kernels have no arrays there, so it is what they spill.
    shared_bytes : int
        Where dynamic shared memory begins. The static arrays end there; before them is 1 KiB that devices
        from 8.0 on keep for themselves.
    asked_alignment : int
        The largest alignment that the PTX asks for dynamic shared memory; 0 if it has none.
    """

    registers: int
    frame_bytes: int
    shared_bytes: int
    asked_alignment: int


class Ir(NamedTuple):
    """A kernel as Numba gives it to NVVM: modules, options, and the limit on registers."""

    modules: list[str]
    options: list[str]
    max_registers: int | None


def install(folder):
    """Install all toolkits below a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    started = [
        subprocess.Popen([*command, "--target", str(folder / name), *packages])
        for name, packages in TOOLKITS.items()
    ]
    if any([process.wait() for process in started]):  # noqa: C419 - waits for all
        sys.exit("a toolkit was not installed")


def start(folder):
    """Return a process for each toolkit, which `assemble` runs in."""
    spawn = get_context("spawn")
    return {name: ProcessPoolExecutor(1, spawn, _load, (folder / name,)) for name in TOOLKITS}


def translate(variant, capability):
    """Return what Numba gives to NVVM for a kernel."""
    compiler = inside.compiler
    nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
    taken = []

    def compile_ir(modules, fastmath, **options):
        assert not fastmath
        texts = [nvvm.llvm_replace(module) for module in modules]
        taken.append((texts, [f"-{name.replace('_', '-')}={value}" for name, value in options.items()]))
        return b".entry kernel("

    kernel = compiler.make_kernel(variant, capability)
    with mock.patch.object(nvvm, "compile_ir", compile_ir):
        compiler.compile_ptx(kernel, variant.label, capability)
    ((modules, options),) = taken
    return Ir(modules, options, compiler.max_registers(kernel))


def _load(folder):
    global _nvvm, _linker
    _nvvm, _linker = (
        ctypes.CDLL(str(next(folder.rglob(f"lib{name}.so*")))) for name in ("nvvm", "nvJitLink")
    )


def assemble(ir, arch):
    """Compile a kernel by the toolkit of this process."""
    return assemble_ptx(_ptx(ir), arch, ir.max_registers)


def assemble_ptx(ptx, arch, max_registers=None):
    """Make a cubin of PTX by the toolkit of this process."""
    alignments = map(int, re.findall(rb"\.extern \.shared \.align (\d+)", ptx))
    return _read(_cubin(ptx, arch, max_registers))._replace(asked_alignment=max(alignments, default=0))


def _ptx(ir):
    program, options = ctypes.c_void_p(), _strings(ir.options)
    _checked(_nvvm.nvvmCreateProgram(ctypes.byref(program)))
    for module in map(str.encode, ir.modules):
        _checked(_nvvm.nvvmAddModuleToProgram(program, module, ctypes.c_size_t(len(module)), None))
    status = _nvvm.nvvmCompileProgram(program, len(options), options)
    _checked(status, lambda: _output(program, _nvvm.nvvmGetProgramLogSize, _nvvm.nvvmGetProgramLog))
    ptx = _output(program, _nvvm.nvvmGetCompiledResultSize, _nvvm.nvvmGetCompiledResult)
    _nvvm.nvvmDestroyProgram(ctypes.byref(program))
    return ptx


def _cubin(ptx, arch, max_registers):
    limit = [f"-maxrregcount={max_registers}"] if max_registers else []
    linker, options = ctypes.c_void_p(), _strings([f"-arch={arch}", *limit])
    _checked(_linker.nvJitLinkCreate(ctypes.byref(linker), len(options), options))
    status = _linker.nvJitLinkAddData(linker, PTX_INPUT, ptx, ctypes.c_size_t(len(ptx)), b"kernel")
    status = status or _linker.nvJitLinkComplete(linker)
    _checked(status, lambda: _output(linker, _linker.nvJitLinkGetErrorLogSize, _linker.nvJitLinkGetErrorLog))
    cubin = _output(linker, _linker.nvJitLinkGetLinkedCubinSize, _linker.nvJitLinkGetLinkedCubin)
    _linker.nvJitLinkDestroy(ctypes.byref(linker))
    return cubin


def _strings(values):
    return (ctypes.c_char_p * len(values))(*map(str.encode, values))


def _output(handle, get_size, get):
    size = ctypes.c_size_t()
    _checked(get_size(handle, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(get(handle, buffer))
    return buffer.raw


def _checked(status, log=lambda: b""):
    if status:
        message = f"status {status}: {log().decode()}"
        raise RuntimeError(message)


def _read(cubin):
    """Read what a cubin, an ELF file of 64 bits, says of its only kernel."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    _, n_sections, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * i) for i in range(n_sections)]
    sections = {}
    for name, _, _, _, begin, size in headers:
        text = cubin[headers[names][4] + name :].split(b"\0", 1)[0].decode()
        sections[text] = (begin, size)
    values = _values(cubin, *sections[".nv.info"])
    shared = sum(size for name, (_, size) in sections.items() if name.startswith(".nv.shared."))
    return Assembled(max(values[REGISTER_COUNT]), max(values[FRAME_SIZE]), shared, 0)


def _values(cubin, begin, size):
    """Return the values of the attributes of all functions."""
    values, place = {}, begin
    while place < begin + size:
        form, attribute, n_bytes = struct.unpack_from("<BBH", cubin, place)
        place += 4
        if form == WORDS:
            values.setdefault(attribute, []).append(struct.unpack_from("<I", cubin, place + 4)[0])
            place += n_bytes
    return values


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    install(Path(sys.argv[1]))
