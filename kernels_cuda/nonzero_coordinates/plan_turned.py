"""The launches for matrices whose columns, not their rows, are contiguous (`turned`)."""

from typing import NamedTuple

from kernels_cuda.nonzero_coordinates.sizes import FILLED_WORDS, GRANULE, TURNED_THREADS
from kernels_cuda.runtime.launch import Launch, Pointer, as_signed, load
from kernels_cuda.runtime.variant import Target, Variant

_WARPS = TURNED_THREADS // 32
# Matrices of fewer rows waste most of what is loaded.
LEAST_ROWS = 16


class Matrices(NamedTuple):
    """Matrices whose columns are contiguous; strides in elements."""

    n_matrices: int
    batch_stride: int
    height: int
    width: int
    column_stride: int


def mask_variant(element_size: int) -> Variant:
    """Return the kernel that fills the mask."""
    return Variant(
        "nonzero_mask_turned", "kernels_cuda.nonzero_coordinates.turned:mask_source", (element_size,)
    )


def count_variant() -> Variant:
    """Return the kernel that counts."""
    return Variant("nonzero_count", "kernels_cuda.nonzero_coordinates.turned:count_source")


def matrices_of(dims: tuple[tuple[int, int], ...]) -> Matrices | None:
    """Return a merged layout as such matrices, if it is one of some height, and rows are whole words.

    Examples
    --------
    >>> matrices_of(((1000, 1), (64, 1000)))
    Matrices(n_matrices=1, batch_stride=0, height=1000, width=64, column_stride=1000)
    """
    if len(dims) not in (2, 3):
        return None
    (height, row_stride), (width, column_stride) = dims[-2:]
    if row_stride != 1 or height < LEAST_ROWS or width % 32:
        return None
    n_matrices, batch_stride = dims[0] if len(dims) == 3 else (1, 0)
    return Matrices(n_matrices, batch_stride, height, width, column_stride)


def steps_of(
    matrices: Matrices, element_size: int, magnitude: int, pointers: tuple[Pointer, ...], target: Target
) -> list[Launch]:
    """Return the launches that fill the mask and count; `pointers` are those of input, mask and counts.

    An element is non-zero where ``bits & magnitude`` is.
    """
    x, mask, counts = pointers
    row_words = matrices.width // 32
    n_row_tiles = -(-matrices.height // 32)
    n_word_tiles = -(-row_words // FILLED_WORDS)
    n_units = matrices.n_matrices * n_row_tiles * n_word_tiles
    n_words = matrices.n_matrices * matrices.height * row_words
    strides = (stride * element_size for stride in (matrices.batch_stride, matrices.column_stride))
    numbers = (as_signed(magnitude), n_units, matrices.height, n_row_tiles, row_words, n_word_tiles, *strides)
    fill, count = load(mask_variant(element_size), target), load(count_variant(), target)
    return [
        Launch(fill, -(-n_units // _WARPS), TURNED_THREADS, 0, (x, mask), numbers),
        Launch(count, -(-n_words * 32 // GRANULE), TURNED_THREADS, 0, (mask, counts), (n_words,)),
    ]
