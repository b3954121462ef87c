"""Workspaces of CUDA plans are large enough: all writes stay in their areas, for problems of any size."""

import importlib

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import (
    AxisDirection,
    DiagonalMatrix1,
    GatherND1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from dmlops.operators import Options
from tests.cuda_areas import check_areas
from tests.cuda_plans import planned

algorithms = importlib.import_module("tests.gpu.algorithms")
T = TensorDataType
ALGORITHMS = {
    operator: {choice.name: choice for choice in choices}
    for operator, choices in algorithms.ALGORITHMS.items()
}


def top_k(sizes, k, axis=-1, data_type=T.FLOAT32, index_type=T.INT64, strides=None):
    """Describe a selection."""
    axis %= len(sizes)
    selected = (*sizes[:axis], k, *sizes[axis + 1 :])
    return TopK1(
        input_tensor=TensorDesc(data_type, sizes, strides),
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING,
        output_value_tensor=TensorDesc(data_type, selected),
        output_index_tensor=TensorDesc(index_type, selected),
    )


def nonzero(sizes, strides=None, data_type=T.FLOAT32):
    """Describe a search."""
    x = TensorDesc(data_type, sizes, strides)
    return NonzeroCoordinates(
        input_tensor=x,
        output_coordinates_tensor=TensorDesc(T.INT64, (x.element_count, len(sizes))),
        output_count_tensor=TensorDesc(T.INT64, (1,)),
    )


TOP_K = {
    # name: (sizes, k, axis, areas that there must be at least)
    "one_long_row": ((1, 1 << 24), 100, 1, 2),
    "some_long_rows": ((5, 1 << 20), 1000, 1, 2),
    "parts_of_a_row": ((1, (1 << 31) + 9), 4000, 1, 4),
    "parts_of_rows": ((3, (1 << 31) + 9), 2000, 1, 4),
    "longer_than_32_bits": ((1, (1 << 33) + 5), 300, 1, 4),
    "side_by_side": ((3, 50_257, 256), 50, 1, 2),
    "columns": ((1 << 16, 1 << 13), 16, 0, 0),
    "stacked_columns": ((1 << 20, 1 << 10), 2, 0, 2),
    "twice_stacked_columns": ((1 << 25, 1 << 8), 1, 0, 2),
    "sorted": ((7, 100_003), 100_003, 1, 4),
    "sorted_in_batches": ((700, 100_003), 50_000, 1, 4),
    "sorted_of_30_bits": ((1, 1 << 30), 1 << 30, 1, 4),
    "sorted_beyond_30_bits": ((1, (1 << 30) + 77), (1 << 30) + 77, 1, 4),
    "sorted_beyond_32_bits": ((1, (1 << 32) + 77), 1 << 20, 1, 4),
    "many_rows": ((1 << 31, 3), 1, 1, 0),
    "many_rows_of_blocks": ((1 << 20, 5000), 20, 1, 0),
    "many_tiles": ((1 << 18, 5000), 5000, 1, 0),
}


@pytest.mark.parametrize("data_type", [T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64], ids=str)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("name", TOP_K)
def test_top_k(name, arch, data_type):
    sizes, k, axis, n_areas = TOP_K[name]
    algorithm = "columns" if "columns" in name else None
    found = planned(top_k(sizes, k, axis, data_type), arch=arch, algorithm=algorithm)
    areas = check_areas(found)
    if data_type == T.FLOAT32 and arch == "sm_90":
        assert areas >= n_areas


def test_tables_of_rows():
    strides = (1 << 20, 7000, 300, 1)
    for k, sizes in ((3, (30, 20, 10, 200)), (50, (5, 4, 3, 250)), (200, (5, 4, 3, 200))):
        check_areas(planned(top_k(sizes, k, strides=strides)))


@pytest.mark.parametrize("name", ALGORITHMS["top_k"])
def test_forced_algorithms_of_top_k(name):
    n_served = 0
    for sizes, k in (
        ((3, 300_000), 40),
        ((40, 700), 9),
        ((2, 20_000, 40), 20),
        ((9, 5000), 5000),
        ((6, 300), 30),
        ((6, 300), 8),
    ):
        axis = 1
        try:
            with algorithms.forced(ALGORITHMS["top_k"][name]):
                found = planned(top_k(sizes, k, axis))
        except algorithms.CannotServeError:
            continue
        check_areas(found)
        n_served += 1
    assert n_served


NONZERO = {
    # As many granules as fill their areas, for input that begins as late as it can.
    "whole_granules": ((32 * 16_384 - 15,), None),
    "contiguous": ((1000, 1001), None),
    "of_31_bits": ((1 << 31,), None),
    "beyond_31_bits": ((1 << 16, (1 << 15) + 1), None),
    "beyond_32_bits": (((1 << 33) + 3,), None),
    "transposed": ((1000, 64, 320), (64 * 1000 * 320, 1, 64)),
    "transposed_rest": ((3, 1001, 96), (96 * 1001, 1, 1001)),
    "strided": ((1000, 999), (4000, 3)),
    "strided_beyond_31_bits": ((1 << 16, (1 << 15) + 1), (1 << 18, 3)),
    "many_dimensions": ((7, 9, 11, 5, 3, 13), (1 << 20, 1 << 16, 1 << 12, 400, 60, 3)),
}


@pytest.mark.parametrize("data_type", [T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64], ids=str)
@pytest.mark.parametrize("name", NONZERO)
def test_nonzero(name, data_type):
    descriptor = nonzero(*NONZERO[name], data_type)
    for lead in (0, data_type.bytes, 16 - data_type.bytes):
        for multiprocessors in (1, 132):
            check_areas(planned(descriptor, leads=(lead, 0, 0), multiprocessors=multiprocessors))
        found = planned(descriptor, leads=(lead, 0, 0), call="count")
        # The kernels that count leave these for those that expand.
        written = found.asked + planned(descriptor, leads=(lead, 8, 0), call="expand").asked
        assert check_areas(found._replace(asked=written)) >= 3


@pytest.mark.parametrize("name", ALGORITHMS["nonzero_coordinates"])
def test_forced_algorithms_of_nonzero(name):
    for sizes, strides in (
        ((100, 120), None),
        ((1000, 1003), None),
        ((33, 64), (1, 33)),
        ((70, 90), (300, 2)),
    ):
        with algorithms.forced(ALGORITHMS["nonzero_coordinates"][name]):
            found = planned(nonzero(sizes, strides), Options(fill=3), multiprocessors=4)
        assert check_areas(found) >= 2


def test_wide_gathers_and_matrices():
    # Tables of these are longer than what one launch writes.
    sizes, strides = (2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 5), [2]
    for size in sizes[:0:-1]:
        strides.insert(0, strides[0] * size + 1)
    x = TensorDesc(T.FLOAT32, sizes, tuple(strides))
    gather = GatherND1(
        input_tensor=x,
        indices_tensor=TensorDesc(T.INT64, (*(1,) * 9, 7, 4, 2)),
        input_dimension_count=12,
        indices_dimension_count=3,
        batch_dimension_count=0,
    )
    assert planned(gather).asked[-1].variant.parameters[-1]
    assert check_areas(planned(gather)) >= 4
    matrices = DiagonalMatrix1(input_tensor=x, value=1, diagonal_fill_begin=0, diagonal_fill_end=1)
    found = planned(matrices)
    assert found.asked[-1].variant.parameters[-1]
    assert check_areas(found) >= 4
