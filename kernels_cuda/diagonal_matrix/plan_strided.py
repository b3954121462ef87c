"""The launches for matrices whose columns lie apart (`strided`)."""

from collections.abc import Iterator
from math import prod

from kernels_cuda.diagonal_matrix.band import Band, Part
from kernels_cuda.diagonal_matrix.sizes import THREADS, VECTOR
from kernels_cuda.layout import dimension_columns, divisor, make_table
from kernels_cuda.runtime.launch import load
from kernels_cuda.runtime.variant import Target, Variant


def strided_variant(element_size: int) -> Variant:
    """Return the kernel."""
    factory = "kernels_cuda.diagonal_matrix.strided:strided_source"
    return Variant("diagonal_strided", factory, (element_size,))


def strided_parts(
    element_size: int,
    batch: tuple[tuple[int, int, int], ...],
    height: int,
    width: int,
    x_strides: tuple[int, int],
    output_row: int,
    band: Band,
    head: int,
    most_vectors: int,
    target: Target,
) -> Iterator[Part]:
    """Make the launches: one, or as many as it takes to have at most `most_vectors` in each.

    A row may begin `head` bytes after a 16-byte boundary. Strides are in elements.
    """
    vectors_a_row = -(-(width * element_size + head) // VECTOR)
    n_rows = prod(size for size, *_ in batch) * height
    if n_rows * vectors_a_row <= most_vectors:
        kernel = load(strided_variant(element_size), target)
        table = make_table(dimension_columns(batch, False, (element_size, element_size)), False, target)
        launch = kernel.prepare(
            -(-n_rows * vectors_a_row // THREADS),
            THREADS,
            0,
            2,
            n_rows * vectors_a_row,
            vectors_a_row,
            *divisor(vectors_a_row, wide=False),
            height,
            *divisor(height, wide=False),
            width,
            *(stride * element_size for stride in (*x_strides, output_row)),
            *band.numbers(element_size),
            max(len(batch), 1),
            *table.arguments(None, 0),
        )
        yield Part(0, 0, launch)
        return
    # Some of the first dimension that has more than one index.
    dims = batch or ((height, x_strides[0], output_row),)
    (size, x_stride, output_stride), *inner = dims
    step = max(most_vectors // (n_rows // size * vectors_a_row), 1)
    for first in range(0, size, step):
        count = min(step, size - first)
        some, some_batch, some_height = band, batch, height
        if batch:
            some_batch = ((count, x_stride, output_stride), *inner) if step > 1 else tuple(inner)
        else:
            some, some_height = band.seen_from(first, count, width), count
        for part in strided_parts(
            element_size,
            some_batch,
            some_height,
            width,
            x_strides,
            output_row,
            some,
            head,
            most_vectors,
            target,
        ):
            x, output = (first * stride * element_size for stride in (x_stride, output_stride))
            yield part._replace(x=x + part.x, output=output + part.output)
