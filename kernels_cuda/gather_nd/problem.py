"""What a plan is asked for, as all algorithms see it."""

from dataclasses import dataclass
from math import gcd, prod

from kernels_cpu.cached import cached_property
from kernels_cuda.gather_nd.parameters import VECTOR, TupleParameters

Dimension = tuple[int, int, int, int]
"""A size, and the strides of input, indices and output in elements; 0 where it is no dimension of theirs."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Slices to gather, as runs: what of them has no gaps in input and output, or their elements.

    Attributes
    ----------
    element_size, index_size : int
        Bytes of an element and of an index.
    is_signed : bool
        Whether negative indices count from the end.
    dims : tuple of Dimension
        Batch dimensions, those of tuples, those of slices.
    n_slice_dims : int
        How many of `dims`, the last ones, are those of slices.
    coordinate_stride : int
        Elements from coordinate to coordinate of an index tuple.
    bounds : tuple of (size, x_stride)
        The dimensions that the coordinates of a tuple index.
    clips : bool
        Whether indices out of range are brought into it, or their slices filled with 0.
    """

    element_size: int
    index_size: int
    is_signed: bool
    dims: tuple[Dimension, ...]
    n_slice_dims: int
    coordinate_stride: int
    bounds: tuple[tuple[int, int], ...]
    clips: bool

    @property
    def is_gapless(self) -> bool:
        """Whether the elements of a run lie side by side in input and output."""
        return self.n_slice_dims > 0 and self.dims[-1][1:] == (1, 0, 1)

    @property
    def tuple_dims(self) -> tuple[tuple[int, int], ...]:
        """The sizes of the dimensions that index tuples have, and their strides in bytes."""
        dims = self.dims[: len(self.dims) - self.n_slice_dims]
        return tuple((size, index_stride * self.index_size) for size, _, index_stride, _ in dims)

    @cached_property
    def outer(self) -> tuple[Dimension, ...]:
        """The dimensions of runs."""
        return self.dims[:-1] if self.is_gapless else self.dims

    @property
    def run(self) -> int:
        """Elements of a run."""
        return self.dims[-1][0] if self.is_gapless else 1

    @cached_property
    def n_runs(self) -> int:
        """How many there are."""
        return prod(size for size, *_ in self.outer)

    @cached_property
    def largest_unit(self) -> int:
        """The most bytes, up to 16, that every run can be cut into if input and output begin on such."""
        strides = [
            stride for _, x_stride, _, output_stride in self.outer for stride in (x_stride, output_stride)
        ]
        strides += [stride for _, stride in self.bounds]
        return gcd(VECTOR, *(stride * self.element_size for stride in (self.run, *strides)))

    @property
    def has_gaps(self) -> bool:
        """Whether the output is not written in one piece."""
        packed = self.run
        for size, *_, output_stride in reversed(self.outer):
            if output_stride != packed:
                return True
            packed *= size
        return False

    @property
    def coordinate_bytes(self) -> int:
        """Bytes from coordinate to coordinate of an index tuple."""
        return self.coordinate_stride * self.index_size

    @property
    def bound_columns(self) -> list[list[int]]:
        """The sizes of the dimensions that coordinates index, and their strides in bytes."""
        return [[size for size, _ in self.bounds], [stride * self.element_size for _, stride in self.bounds]]

    def tuple_parameters(self, is_long: bool) -> TupleParameters:
        """Return how kernels read index tuples in registers of 32 bits, or of 64."""
        return TupleParameters(
            n_coordinates=len(self.bounds),
            coordinate_bytes=self.coordinate_bytes,
            least_index=0 if self.is_signed else -(1 << (63 if is_long else 31)),
            clips=int(self.clips),
        )
