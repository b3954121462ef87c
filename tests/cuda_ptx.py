"""The PTX of CUDA kernels, which tests compile once and keep in the cache directory."""

import importlib

from dmlops.devices import cuda
from dmlops.store import kernel_store, once


def ptx_of(variant, capability):
    """Return what Numba compiles a variant to."""
    compiler = importlib.import_module("kernels_cuda.runtime.compiler")

    def compile_to_ptx():
        kernel = compiler.make_kernel(variant, capability)
        return compiler.compile_ptx(kernel, variant.label, capability).encode()

    key = cuda.key(variant, "ptx_{}{}".format(*capability))
    with once.LOCK:
        return kernel_store.find_or_compile(key, compile_to_ptx).decode()
