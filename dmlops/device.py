"""Device functions for your own kernels, which you write with ``numba.cuda.jit``.

Import it by its name; it needs numba-cuda, which the extras ``cuda-jit`` and ``cuda12-jit`` install.
"""

try:
    from kernels_cuda.device_functions import block_compact, block_top_k, warp_top_k
except ImportError as error:
    msg = "dmlops.device needs numba-cuda: install the extra cuda-jit, or cuda12-jit for CUDA 12"
    raise ImportError(msg) from error

__all__ = ["block_compact", "block_top_k", "warp_top_k"]
