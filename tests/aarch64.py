"""Compile for aarch64 with Numba and LLVM, on any machine.

``python -m tests.aarch64`` compiles all CPU kernels for Linux on aarch64 into the cache directory. An
emulated process finds them there if both have the variables of ``processor.environment("aarch64")``.
"""

import llvmlite.binding as llvm
from llvmlite.binding import targets
from numba.core import codegen

from tests import inside

LINUX, MACOS = "aarch64-unknown-linux-gnu", "arm64-apple-darwin23.1.0"


def compile_for(triple):
    """Let this process compile for another system; `kernels_cpu` must not have been imported yet."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for module in (llvm, targets):
        module.get_process_triple = module.get_default_triple = lambda: triple
    # Numba would link its own code into this process.
    codegen.JITCPUCodegen._add_module = codegen.JITCPUCodegen.set_env = lambda *_: None


def all_kernels():
    """Return all CPU kernels by label."""
    operators = map(inside.cpu_kernels, ("diagonal_matrix", "gather_nd", "nonzero_coordinates", "top_k"))
    kernels = [inside.native_call.CALL, *(kernel for each in operators for kernel in each.all_kernels())]
    return {kernel.label: kernel for kernel in kernels}


def main():
    compile_for(LINUX)
    assert inside.processor.LEVEL == "aarch64", "the environment must name the processor"
    kernels = all_kernels()
    for i, (label, kernel) in enumerate(kernels.items(), 1):
        print(f"{i}/{len(kernels)} {label}: {len(inside.cpu.artifact(kernel))} bytes", flush=True)


if __name__ == "__main__":
    main()
