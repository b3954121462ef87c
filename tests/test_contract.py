"""The statements of DirectML's pages that concern descriptors, one by one.

The examples on the pages, which also define values, are in the tests of the operators.
"""

import itertools

import pytest

from dmlops import (
    DiagonalMatrix1,
    GatherND,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    UnsupportedFeatureError,
)

pytestmark = pytest.mark.quick

F32, U32 = TensorDataType.FLOAT32, TensorDataType.UINT32
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def f32(*sizes):
    return TensorDesc(F32, sizes)


def u32(*sizes):
    return TensorDesc(U32, sizes)


def valid(make, *levels):
    """Return whether a descriptor can be made, and whether all these levels take it."""
    try:
        descriptor = make()
        for level in levels:
            descriptor.validate(level)
    except (InvalidDescriptorError, UnsupportedFeatureError):
        return False
    return True


class TestNonzeroCoordinates:
    @staticmethod
    def taken(sizes, coordinates=None, count=None, data_type=F32, level="DML_4_0"):
        return valid(
            lambda: NonzeroCoordinates(
                input_tensor=TensorDesc(data_type, sizes),
                output_coordinates_tensor=coordinates,
                output_count_tensor=count,
            ),
            level,
        )

    def test_count_is_a_scalar(self):
        ranks = [rank for rank in range(10) if self.taken((2, 3), count=u32(*(1,) * rank))]
        assert ranks == [*range(1, 9)]
        assert not self.taken((2, 3), count=u32(1, 2))

    @pytest.mark.parametrize(
        ("sizes", "rank"),
        [((1, 2, 3, 4), 3), ((1, 1, 5, 5, 5), 3), ((1, 1, 1, 1), 0), ((1, 1, 12, 5), 2), ((2, 1, 1), 3)],
    )
    def test_effective_rank_to_dimension_count_are_the_columns(self, sizes, rank):
        assert f32(*sizes).effective_rank == rank
        rows = f32(*sizes).element_count
        columns = [n for n in range(1, 9) if self.taken(sizes, u32(1, 1, rows, n))]
        assert columns == [*range(max(rank, 1), len(sizes) + 1)]

    def test_rows_are_the_elements(self):
        assert [m for m in range(55, 66) if self.taken((1, 1, 12, 5), u32(1, 1, m, 2))] == [60]

    def test_leading_sizes_are_one(self):
        assert self.taken((1, 1, 12, 5), u32(60, 2))
        assert self.taken((1, 1, 12, 5), u32(1, 1, 1, 1, 1, 1, 60, 2))
        assert not self.taken((1, 1, 12, 5), u32(2, 1, 60, 2))
        assert not self.taken((1, 1, 12, 5), u32(60))

    @pytest.mark.parametrize("level", ["DML_3_0", "DML_3_1"])
    def test_dimension_counts_before_4_0(self, level):
        ranks = range(1, 9)
        taken = [
            (x, count, coordinates)
            for x, count, coordinates in itertools.product(ranks, ranks, range(2, 9))
            if self.taken(
                (1,) * (x - 1) + (2,), u32(*(1,) * (coordinates - 2), 2, 1), u32(*(1,) * count), level=level
            )
        ]
        assert taken == [(4, 4, 4), (5, 5, 5)]


class TestGatherND:
    @staticmethod
    def make(x, indices, *counts, output=None, level="DML_3_0", **types):
        names = ("input_dimension_count", "indices_dimension_count", "batch_dimension_count")
        return valid(
            lambda: GatherND1(
                input_tensor=TensorDesc(types.get("data", F32), x),
                indices_tensor=TensorDesc(types.get("index", U32), indices),
                output_tensor=output,
                **dict(zip(names, counts, strict=True)),
            ),
            level,
        )

    def test_dimension_counts_are_equal(self):
        assert self.make((3, 4, 5), (1, 2, 1), 3, 2, 0)
        assert not self.make((3, 4, 5), (2, 1), 3, 2, 0)
        assert not self.make((3, 4, 5), (1, 2, 1), 3, 2, 0, output=f32(1, 2, 4, 5))

    def test_last_dimension_is_the_tuple(self):
        # {1,4,5,2} with three dimensions that count: a 4x5 array of tuples of two coordinates.
        descriptor = GatherND(
            input_tensor=f32(1, 1, 7, 8),
            indices_tensor=u32(1, 4, 5, 2),
            input_dimension_count=2,
            indices_dimension_count=3,
        )
        assert descriptor.indices_sizes[-1] == 2
        assert descriptor.output_tensor.sizes == (1, 1, 4, 5)
        assert [n for n in range(6) if self.make((2, 2, 2, 2), (1, 1, 1, n), 4, 1, 0)] == [1, 2, 3, 4]

    def test_sizes_of_the_output(self):
        # The page's own example, which its formula contradicts.
        x, indices = (3, 4, 5, 6, 7), (1, 1, 1, 2, 3)
        assert self.make(x, indices, 5, 3, 0, output=f32(1, 1, 2, 6, 7))
        assert not self.make(x, indices, 5, 3, 0, output=f32(1, 1, 2, 5, 6))

    def test_type_of_the_output(self):
        assert not self.make((3, 4), (2, 1), 2, 2, 0, output=u32(2, 4))

    def test_dimensions_that_count(self):
        # {1,1,4,6} with three: {1,4,6}.
        descriptor = GatherND(
            input_tensor=f32(1, 1, 4, 6),
            indices_tensor=u32(1, 1, 4, 1),
            input_dimension_count=3,
            indices_dimension_count=2,
        )
        assert descriptor.input_sizes == (1, 4, 6)
        assert descriptor.indices_sizes == (4, 1)
        x, indices = (1, 1, 4, 6), (1, 1, 4, 1)
        assert [n for n in range(7) if self.make(x, indices, n, 2, 0)] == [2, 3, 4]
        assert [n for n in range(7) if self.make(x, indices, 2, n, 0)] == [2, 3, 4]

    def test_batches(self):
        # {1,3,4,5,6,7} with five that count and two batches: batches {3,4}, tuples {5,6,7}.
        descriptor = GatherND1(
            input_tensor=f32(1, 3, 4, *(2,) * 7),
            indices_tensor=u32(1, 1, 1, 1, 1, 3, 4, 5, 6, 7),
            input_dimension_count=9,
            indices_dimension_count=5,
            batch_dimension_count=2,
        )
        assert descriptor.indices_sizes[:2] == (3, 4)
        assert descriptor.indices_sizes[2:] == (5, 6, 7)
        assert descriptor.output_tensor.sizes == (*(1,) * 6, 3, 4, 5, 6)
        batches = [n for n in range(-1, 5) if self.make((1, 2, 2, 2), (1, 2, 2, 1), 3, 3, n)]
        assert batches == [0, 1, 2]
        assert not self.make((3, 2, 2), (2, 2, 1), 3, 3, 1)  # batch sizes that differ


class TestDiagonalMatrix:
    @staticmethod
    def make(output, x=None, level="DML_5_1", **changes):
        arguments = {"value": 7, "diagonal_fill_begin": 0, "diagonal_fill_end": 1} | changes
        return valid(lambda: DiagonalMatrix1(input_tensor=x, output_tensor=output, **arguments), level)

    def test_bounds_are_ints(self):
        assert self.make(f32(4, 5), diagonal_fill_begin=INT32_MIN, diagonal_fill_end=INT32_MAX)
        assert not self.make(f32(4, 5), diagonal_fill_begin=INT32_MIN - 1)
        assert not self.make(f32(4, 5), diagonal_fill_end=INT32_MAX + 1)
