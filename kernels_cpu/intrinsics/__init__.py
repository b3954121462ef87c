"""Operations that Numba lacks, written in LLVM's generic IR: the only modules that make any for operators.

Kernels work on plain pointers, which are indexed as arrays are: passing a Numba array on costs two atomic
updates of its reference count. Nothing here checks bounds: a caller proves that every byte which an intrinsic
touches lies inside the array.

Kernels count in signed integers of 64 bits, which is what Python's own integers become in them: sizes,
strides, offsets and indices. Unsigned ones are words of bits. The two meet only by a conversion, `jit.int64`
or `jit.uint64`: Numba makes floats of what mixes them.
"""
