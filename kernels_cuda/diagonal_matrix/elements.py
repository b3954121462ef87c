"""Any layout, element by element: a thread writes a few, a block apart."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.parameters import THREADS, Dims, ElementsParameters, elements_per_thread
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i64, u32


def elements_kernel(element_size: int, wide: bool) -> Any:
    """Make the kernel that goes element by element."""
    register, divide, _ = arithmetic(wide)
    _, two_offsets, _ = offset_functions(wide)
    read = ptx.READ[element_size]
    store = ptx.STORE_STREAM[element_size]
    scalar = ptx.REGISTER[element_size]
    n_units = elements_per_thread(wide)

    @cuda.jit
    def diagonal_elements(x, output, p: ElementsParameters, dims: dims_type(Dims, wide)):
        matrix = p.matrix
        band = matrix.band
        value = band.low_value
        if element_size == 8:
            value |= band.high_value << 32
        targets = cuda.local.array(n_units, i64)
        results = cuda.local.array(n_units, scalar)
        first = i64(cuda.blockIdx.x) * (THREADS * n_units) + i64(cuda.threadIdx.x)
        for k in range(n_units):
            # Threads past the end repeat the last element and do not store it.
            position = register(min(first + k * THREADS, p.n_elements - 1))
            row = divide(position, p.width)
            column = i64(position - row * register(p.width.size))
            batch = divide(row, p.height)
            y = i64(row - batch * register(p.height.size))
            x_at, output_at = two_offsets(batch, dims, dims.x_strides, dims.output_strides)
            targets[k] = output + output_at + y * matrix.output_row + column * matrix.output_column
            in_band = u32(band.begin <= column - y and column - y < band.end)
            results[k] = scalar(0)
            if in_band != u32(band.inverted):
                results[k] = scalar(value)
            elif band.has_input:
                results[k] = read(x + x_at + y * matrix.x_row + column * matrix.x_column)
        for k in range(n_units):
            if first + k * THREADS < p.n_elements:
                store(targets[k], results[k])

    return diagonal_elements
