"""What a plan is asked for: matrices, and the band that is set in them."""

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from kernels_cuda.diagonal_matrix.parameters import BandParameters, MatrixParameters


class Band(NamedTuple):
    """What is set: diagonals from `begin` to `end`, or all others if `inverted`, to the bits `value`."""

    begin: int
    end: int
    inverted: bool
    has_input: bool
    value: int

    def parameters(self, element_size: int) -> BandParameters:
        """Return the band as kernels take it."""
        splat = self.value
        if element_size < 8:
            splat *= 0xFFFFFFFF // ((1 << (8 * element_size)) - 1)
        return BandParameters(
            begin=self.begin,
            end=self.end,
            inverted=int(self.inverted),
            has_input=int(self.has_input),
            low_value=splat & 0xFFFFFFFF,
            high_value=splat >> 32 if element_size == 8 else splat,
        )

    def seen_from(self, y: int, height: int, width: int) -> "Band":
        """Return the band as it is in the `height` rows from row `y` on."""
        begin, end = (max(-height, min(bound + y, width)) for bound in (self.begin, self.end))
        return self._replace(begin=begin, end=end)

    def transposed(self, height: int) -> "Band":
        """Return the band as it is in the transposed matrix, whose rows have `height` elements."""
        begin, end = (min(1 - bound, height) for bound in (self.end, self.begin))
        return self._replace(begin=begin, end=end)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Matrices of one layout.

    Attributes
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    batch : tuple of (size, x_stride, output_stride)
        All dimensions but rows and columns; strides in elements.
    height, width : int
        Rows and columns of a matrix.
    x_strides, output_strides : tuple of two ints
        Elements from row to row and from column to column.
    band : Band
        What is set.
    """

    element_size: int
    batch: tuple[tuple[int, int, int], ...]
    height: int
    width: int
    x_strides: tuple[int, int]
    output_strides: tuple[int, int]
    band: Band

    @property
    def n_rows(self) -> int:
        """How many rows all matrices have."""
        return prod(size for size, *_ in self.batch) * self.height

    @property
    def n_elements(self) -> int:
        """How many elements all matrices have."""
        return self.n_rows * self.width

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the output, if its columns are contiguous."""
        return self.width * self.element_size

    @property
    def are_strided(self) -> bool:
        """Whether the columns of a row lie apart in the input."""
        return self.band.has_input and self.x_strides[1] != 1

    @property
    def matrix(self) -> MatrixParameters:
        """Layout and band as kernels take them."""
        strides = (stride * self.element_size for stride in (*self.x_strides, *self.output_strides))
        return MatrixParameters(*strides, self.band.parameters(self.element_size))

    def transposed(self) -> "Problem":
        """Return the problem with rows for columns."""
        return replace(
            self,
            height=self.width,
            width=self.height,
            x_strides=self.x_strides[::-1],
            output_strides=self.output_strides[::-1],
            band=self.band.transposed(self.height),
        )

    def rows(self, first: int, count: int) -> "Problem":
        """Return the problem of some rows of each matrix."""
        return replace(self, height=count, band=self.band.seen_from(first, count, self.width))

    def bytes_between(self, x_elements: int, output_elements: int) -> tuple[int, int]:
        """Return numbers of elements of input and output as bytes."""
        return x_elements * self.element_size, output_elements * self.element_size
