"""Device functions for your own kernels; they need numba-cuda (the extra ``cuda-jit`` or ``cuda12-jit``)."""

from kernels_cuda.device_functions import block_compact, block_top_k, warp_top_k

__all__ = ["block_compact", "block_top_k", "warp_top_k"]
