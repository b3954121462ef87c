"""The operators inside JAX's transformations: `jit`, `vmap` and derivatives, on the CPU and on CUDA.

The functions are those of `dmlops` for JAX arrays. XLA calls the kernels through its foreign function
interface, on its own stream and with memory that it allocates. To compute a derivative, the kernels find the
positions, and JAX's own operations move the elements.
"""

try:
    import jax  # noqa: F401
except ImportError as error:
    msg = 'dmlops.integrations.jax needs JAX; type: pip install "dmlops[jax]" (on a GPU also "jax[cuda13]")'
    raise ImportError(msg) from error

from dmlops.integrations.jax.diagonal_matrix import diagonal_matrix
from dmlops.integrations.jax.gather_nd import gather_nd
from dmlops.integrations.jax.nonzero_coordinates import nonzero_coordinates
from dmlops.integrations.jax.sample import sample
from dmlops.integrations.jax.top_k import top_k

__all__ = ["diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k"]
