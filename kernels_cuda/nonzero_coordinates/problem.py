"""What a plan is asked for."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from kernels_cpu.cached import cached_property
from kernels_cuda.runtime.launch import as_signed


class Matrices(NamedTuple):
    """Matrices whose columns are contiguous; strides in elements."""

    n_matrices: int
    batch_stride: int
    height: int
    width: int
    column_stride: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """An input, and the coordinates and the count to write.

    The fields are explained where they are made, in `dmlops.operators.nonzero_coordinates.Problem`.
    """

    element_size: int
    magnitude: int
    sizes: tuple[int, ...]
    dims: tuple[tuple[int, int], ...]
    capacity: int
    coordinate_strides: tuple[int, int]
    coordinate_size: int
    count_size: int
    fill: int | None

    @cached_property
    def n_elements(self) -> int:
        """How many elements the input has."""
        return prod(size for size, _ in self.dims) if all(self.sizes) else 0

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements lie side by side in order."""
        return self.n_elements <= 1 or (len(self.dims) == 1 and self.dims[0][1] == 1)

    @property
    def signed_fill(self) -> int:
        """The fill as kernels take it."""
        return as_signed(self.fill or 0)

    @property
    def word_magnitude(self) -> int:
        """The magnitude of every element of a word of 32 bits, or of an element of 64."""
        magnitude = self.magnitude
        if magnitude < 1 << (8 * self.element_size) and self.element_size < 4:
            magnitude *= 0xFFFFFFFF // ((1 << (8 * self.element_size)) - 1)
        return as_signed(magnitude)

    def matrices(self, least_rows: int) -> Matrices | None:
        """Return the layout as matrices with contiguous columns, if it is, and mask words lie within rows.

        They have at least `least_rows` rows.
        """
        if len(self.dims) not in (2, 3):
            return None
        (height, row_stride), (width, column_stride) = self.dims[-2:]
        if row_stride != 1 or height < least_rows or width % 32:
            return None
        n_matrices, batch_stride = self.dims[0] if len(self.dims) == 3 else (1, 0)
        return Matrices(n_matrices, batch_stride, height, width, column_stride)
