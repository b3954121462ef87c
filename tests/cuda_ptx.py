"""The PTX of CUDA kernels, which tests compile once and keep in the cache directory."""

from tests import inside
from tests.inside import cuda, kernel_store, once


def ptx_of(variant, capability):
    """Return what Numba compiles a variant to."""
    compiler = inside.compiler

    def compile_to_ptx():
        kernel = compiler.make_kernel(variant, capability)
        return compiler.compile_ptx(kernel, variant.label, capability).encode()

    key = cuda.key(variant, "ptx_{}{}".format(*capability))
    with once.LOCK:
        return kernel_store.find_or_compile(key, compile_to_ptx).decode()
