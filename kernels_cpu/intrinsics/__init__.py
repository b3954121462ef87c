"""Operations that Numba lacks, in LLVM's generic IR: the only modules that define intrinsics for operators.

Kernels work on plain pointers, which are indexed like arrays: passing on a Numba array costs two atomic
updates of its reference count. Nothing here checks bounds: the caller proves that every byte that an
intrinsic touches is inside the array.

Kernels count in signed 64-bit integers, which is what Python's own integers become in them: sizes, strides,
offsets and indices. Unsigned integers are words of bits. The two only meet in a conversion, `jit.int64` or
`jit.uint64`, because Numba turns a mixture of both into floats.
"""
