"""The launches of top_k plans for results by index and for rows with lengths; no kernel is loaded."""

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from tests.cuda_plans import planned

T = TensorDataType
# (shape, axis, k), what ends the algorithm's launches, and the algorithm, if it is forced.
PROBLEMS = {
    "rounds": ((3000, 100), 1, 5, "top_k_rounds", "rounds"),
    "block": ((7, 20_000), 1, 300, "top_k_block", "block"),
    "grid": ((2, 3_000_001), 1, 500, "top_k_block", "grid"),
    "partition": ((500, 2000), 1, 1500, "top_k_partition", "partition"),
    "sort": ((3, 100_003), 1, 50_000, "top_k_sort", "sort"),
    "sampled": ((300, 100_003), 1, 2048, "top_k_finish", "sampled"),
    "columns": ((1 << 13, 1 << 16), 0, 3, "top_k_columns", "columns"),
    "grid-parts": ((2, (1 << 31) + 9), 1, 50, "top_k_block", "grid"),
    "tables": ((5, 4, 3, 250), 3, 50, "top_k_", None),
    "many_elements": ((1 << 20, 1 << 13), 1, 7, "top_k_block", "block"),
}
# The sort calls what it reads its source, and its passes may go through the outputs.
SORTED_INTO = {
    *(("source", "x"), ("source", "values"), ("sorted_keys", "values")),
    *(("source_positions", "indices"), ("sorted_positions", "indices")),
}
# The last kernels of plans whose results are ordered by index: algorithms that write them in this order, and
# the kernels that reorder the results of other algorithms.
BY_INDEX = {
    *("top_k_rounds", "top_k_shared_rounds", "top_k_block", "top_k_one_pass"),
    *("top_k_partition", "top_k_cluster", "top_k_finish", "top_k_selected", "top_k_columns"),
}
REORDERING = {"top_k_by_index"}
OPTIONS = {"unsorted": (False, False), "lengths": (True, True), "unsorted-lengths": (False, True)}


def planned_with(name, is_sorted, has_lengths, length_type=T.INT64, data_type=T.FLOAT32):
    """Plan a problem with strided outputs; the dimensions of rows do not merge."""
    sizes, axis, k, _, algorithm = PROBLEMS[name]
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
    return planned(descriptor, {"is_sorted": is_sorted, "lengths": lengths}, algorithm=algorithm)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_order_of_launches(name, options):
    is_sorted, _ = OPTIONS[options]
    names = [launch.name for launch in planned_with(name, *OPTIONS[options]).asked]
    ordered = [launch.name for launch in planned_with(name, True, False).asked]
    assert ordered[-1].startswith(PROBLEMS[name][3])
    assert names == [launch.name for launch in planned_with(name, is_sorted, False).asked]
    if is_sorted:
        assert names == ordered
    elif names[-1] in REORDERING:
        assert names[: len(ordered)] == ordered
        assert {*names[len(ordered) :]} <= REORDERING | {"top_k_offsets"}
    else:
        assert names[-1] in BY_INDEX
        assert not REORDERING & {*names}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_reads_x_reads_lengths(name):
    """Each kernel takes the operands under their names, and lengths if it reads rows or fills results up."""
    found = planned_with(name, False, True)
    x, lengths, values, indices = found.addresses
    seen = set()
    for launch in found.asked:
        for parameter, address in launch.arguments.items():
            if not isinstance(address, int) or not x <= address < found.workspace:
                continue
            begin = max(operand for operand in found.addresses if operand <= address)
            operand = {x: "x", lengths: "lengths", values: "values", indices: "indices"}[begin]
            assert parameter == operand or (parameter, operand) in SORTED_INTO
            if operand in ("x", "values"):
                assert launch.lengths == lengths
            seen.add((launch.name, operand))
    last = found.asked[-1].name
    assert {operand for kernel, operand in seen if kernel == last} == {"x", "lengths", "values", "indices"}


@pytest.mark.parametrize("data_type", [T.BOOL, T.INT8, T.UINT16, T.FLOAT16, T.BFLOAT16, T.FLOAT32, T.UINT64])
def test_fillers_come_last(data_type):
    """Fillers of partial rows come after all elements; the padding of results is infinite or extreme."""
    *_, parts, whole = planned_with("grid-parts", True, True, data_type=data_type).asked
    ones = (1 << data_type.bits) - 1
    filler, padding = parts.padding & ones, whole.padding & ones
    if data_type.is_float:
        # A NaN, and plus infinity.
        assert data_type.infinity < filler < 1 << (data_type.bits - 1)
        assert padding == data_type.infinity
    else:
        assert filler == (ones >> 1 if data_type.is_signed else ones)
        assert padding == (1 if data_type == T.BOOL else filler)
