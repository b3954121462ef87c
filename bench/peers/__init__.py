"""The contenders: dmlops and the libraries that people use today, each in its best form.

A contender writes to given outputs if it can and the workload gives them, and gets indices of its preferred
type. Its note says how its answer differs from that of dmlops (sorted, stable, 32-bit indices).
"""

# Each of these modules adds to the table.
from bench.peers import top_k, top_k_kernels  # noqa: F401
from bench.peers.others import band_mask, index_key
from bench.peers.table import OURS, Contender, Contract, Task, contenders, library_of

__all__ = ["OURS", "Contender", "Contract", "Task", "band_mask", "contenders", "index_key", "library_of"]
