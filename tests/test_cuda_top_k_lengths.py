"""What plans of top_k put on a stream for results by index and for rows with lengths; no kernel is loaded."""

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from dmlops.operators import Options
from tests.cuda_areas import check_areas
from tests.cuda_plans import APART, planned

T = TensorDataType
# (shape, axis, k), and what ends the algorithm's launches.
PROBLEMS = {
    "rounds": ((3000, 100), 1, 5, "top_k_rounds"),
    "warp": ((3000, 200), 1, 20, "top_k_warp"),
    "block": ((7, 20_000), 1, 100, "top_k_block"),
    "grid": ((2, 3_000_001), 1, 500, "top_k_block"),
    "tile": ((50, 4000), 1, 2500, "top_k_tile"),
    "sort": ((3, 100_003), 1, 50_000, "top_k_sort"),
    "columns": ((1 << 13, 1 << 16), 0, 3, "top_k_columns"),
    "tables": ((5, 4, 3, 250), 3, 50, "top_k_"),
    "many_elements": ((1 << 20, 1 << 13), 1, 7, "top_k_block"),
}
OPTIONS = {"unsorted": (False, False), "lengths": (True, True), "unsorted-lengths": (False, True)}


def planned_with(name, is_sorted, has_lengths, length_type=T.INT64, data_type=T.FLOAT32):
    """Plan a problem with strided outputs; the dimensions of rows do not merge."""
    sizes, axis, k, _ = PROBLEMS[name]
    selected = (*sizes[:axis], k, *sizes[axis + 1 :])
    strides = [3]
    for size in selected[:0:-1]:
        strides.insert(0, strides[0] * size + 1)
    rows = sizes[:axis] + sizes[axis + 1 :]
    descriptor = TopK1(
        input_tensor=TensorDesc(data_type, sizes),
        axis=axis,
        k=k,
        axis_direction=AxisDirection.INCREASING,
        output_value_tensor=TensorDesc(data_type, selected, tuple(strides)),
        output_index_tensor=TensorDesc(T.INT64, selected),
    )
    lengths = TensorDesc(length_type, rows) if has_lengths else None
    return planned(descriptor, Options(is_sorted=is_sorted, lengths=lengths))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_workspace(name, options):
    found = planned_with(name, *OPTIONS[options])
    check_areas(found)
    assert planned_with(name, True, False).plan.workspace_size <= found.plan.workspace_size


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_order_of_launches(name, options):
    is_sorted, has_lengths = OPTIONS[options]
    names = [launch.name for launch in planned_with(name, is_sorted, has_lengths).asked]
    names = [name for name in names if name != "top_k_offsets"]
    for added, is_there, place in (
        ("top_k_mask", has_lengths, 0),
        # The rounds put their results in order themselves.
        ("top_k_by_index", not is_sorted and name != "rounds", -1),
        ("top_k_pad", has_lengths, -1),
    ):
        assert (added in names) == is_there
        if is_there:
            assert set(names[:1] if place == 0 else names[-1:]) == {added}
            names = [name for name in names if name != added]
    assert names[-1].startswith(PROBLEMS[name][-1] if not has_lengths or name != "columns" else "top_k_")


@pytest.mark.parametrize("name", PROBLEMS)
def test_algorithms_read_copies_of_rows_with_lengths(name):
    """Kernels that do not read lengths read the copy, and the outputs are where they were."""
    found = planned_with(name, False, True)
    x, lengths, values, indices = found.addresses
    outputs, readers = set(), {"top_k_mask", "top_k_by_index", "top_k_pad"}
    for launch in found.asked:
        for parameter, address in launch.arguments.items():
            if not isinstance(address, int) or address < APART:
                continue
            if values <= address < found.workspace:
                outputs.add((launch.name, parameter))
            if address < lengths:
                assert (parameter, address) == ("x", x)
                assert launch.name in readers
            elif address < values:
                assert (parameter, address) == ("lengths", lengths)
                assert launch.name in readers
            elif address < indices:
                assert parameter in ("values", "sorted_keys")
            elif address < found.workspace:
                assert parameter in ("indices", "sorted_positions")
    writers = ("top_k_rounds" if name == "rounds" else "top_k_by_index", "top_k_pad")
    assert {(writer, output) for writer in writers for output in ("values", "indices")} <= outputs


@pytest.mark.parametrize("data_type", [T.BOOL, T.INT8, T.UINT16, T.FLOAT16, T.BFLOAT16, T.FLOAT32, T.UINT64])
def test_fillers_come_last(data_type):
    """The copy's fillers are the last in order of all elements; the output's are infinite or extreme."""
    (mask, pad) = (planned_with("warp", True, True, data_type=data_type).asked[place] for place in (0, -1))
    ones = (1 << data_type.bits) - 1
    filler, padding = mask.filler & ones, pad.padding & ones
    if data_type.is_float:
        # A NaN, and plus infinity.
        assert data_type.infinity < filler < 1 << (data_type.bits - 1)
        assert padding == data_type.infinity
    else:
        assert filler == (ones >> 1 if data_type.is_signed else ones)
        assert padding == (1 if data_type == T.BOOL else filler)


@pytest.mark.parametrize("length_type", [T.INT32, T.UINT32, T.INT64, T.UINT64])
def test_lengths_of_every_type(length_type):
    mask = planned_with("warp", True, True, length_type).asked[0]
    assert (mask.length_format.size, mask.is_signed) == (length_type.bytes, int(length_type.is_signed))
