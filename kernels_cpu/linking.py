"""Link object code into callable functions with llvmlite alone: found kernels need no Numba."""

import ctypes
import functools
import itertools
import sys

import llvmlite.binding as llvm

from kernels_cpu.kernel import LoadedKernel

ENTRY = "dmlops_entry"
"""The one symbol that an artifact exports: ``int64_t dmlops_entry(const int64_t *arguments)``."""

# The entry reads its words from a bytes object, which the call keeps alive, and releases the GIL. The type of
# the argument is not declared: ctypes would convert it, and turn a MemoryError into an ArgumentError.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64)
# Linked libraries stay for the life of the process, like all compiled code, even if this module does not.
_libraries: list[object] = vars(llvm).setdefault("_kept_by_dmlops", [])
# A library that could not be linked keeps its name.
_numbers = itertools.count()


@functools.cache
def _linker() -> "llvm.LLJIT":
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # On aarch64, LLVM's older linker ends the process if it puts parts of an object more than 4 GiB apart:
    # https://github.com/llvm/llvm-project/issues/71963. The newer one lacks some of Windows' object format.
    return llvm.create_lljit_compiler(use_jit_link=sys.platform != "win32")


def link(code: bytes) -> LoadedKernel:
    """Return the kernel of an artifact.

    Each artifact is linked as a library of its own, so that no two of them can see each other's symbols. The
    caller makes sure that one thread at a time links.

    Raises
    ------
    MemoryError
        If there is no memory for the code.
    RuntimeError
        If the object code is unusable here.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(ENTRY)
    try:
        library = builder.link(_linker(), f"dmlops_{next(_numbers)}")
    except RuntimeError as error:
        # The code needs no symbols that may be missing: only memory can be.
        if str(error).startswith("Failed to materialize"):
            message = f"dmlops: a kernel cannot be loaded: {error}"
            raise MemoryError(message) from error
        raise
    _libraries.append((library, _linker()))
    address = library[ENTRY]
    return LoadedKernel(address, _PROTOTYPE(address))
