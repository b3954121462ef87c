"""The words by which a plan on the CPU knows its host.

The width of vectors is no word: compiled plans are for one processor, as kernels are (`processor`).

================= ================================================================
`THREADS`         how many threads the work may be spread over
`STREAMING_BYTES` the size from which on outputs are written past the caches
================= ================================================================
"""

import ctypes

THREADS, STREAMING_BYTES = range(2)
WORDS = (ctypes.c_int64 * 2)()
"""The words of this process, for compiled plans; 0 threads while their number is not known yet."""
