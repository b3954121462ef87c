"""One computation at each feature level: older forms of operators, and added leading dimensions."""

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    FeatureLevel,
    GatherND,
    GatherND1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
    UnsupportedFeatureError,
)
from tests.compiled import cpu_answer, make_inputs, make_outputs

pytestmark = pytest.mark.quick

F32, F64, I32, I64, U32 = (
    TensorDataType[name] for name in ("FLOAT32", "FLOAT64", "INT32", "INT64", "UINT32")
)


def top_k(*sizes, data_type=F32, direction=AxisDirection.DECREASING, axis=0, **outputs):
    x = TensorDesc(data_type, sizes)
    return TopK1(input_tensor=x, axis=axis, k=1, axis_direction=direction, **outputs)


def nonzero(*sizes, columns=None, count=None):
    x = TensorDesc(F32, sizes)
    outputs = {}
    if columns is not None:
        outputs["output_coordinates_tensor"] = TensorDesc(U32, (x.element_count, columns))
    if count is not None:
        outputs["output_count_tensor"] = TensorDesc(U32, count)
    return NonzeroCoordinates(input_tensor=x, **outputs)


def gather(*sizes, data_type=F32, index_type=U32, batch=0):
    rank = len(sizes)
    return GatherND1(
        input_tensor=TensorDesc(data_type, sizes),
        indices_tensor=TensorDesc(index_type, (*(1,) * (rank - batch - 1), *sizes[:batch], 1)),
        input_dimension_count=rank,
        indices_dimension_count=batch + 1,
        batch_dimension_count=batch,
    )


def diagonal(*sizes, data_type=F32, value=1, begin=0, end=1, has_input=False):
    tensor = TensorDesc(data_type, sizes)
    field = "input_tensor" if has_input else "output_tensor"
    return DiagonalMatrix1(**{field: tensor}, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end)


# Descriptor, and the lowest level that takes the computation: its form there, and its dimension count.
LOWEST = {
    "top_k": (top_k(3, 4), "DML_2_0", TopK, 4),
    "top_k-4": (top_k(1, 2, 3, 4, axis=2), "DML_2_0", TopK, 4),
    "top_k-smallest": (top_k(3, 4, direction=AxisDirection.INCREASING), "DML_2_1", TopK1, 4),
    "top_k-integers": (top_k(3, data_type=I32), "DML_2_1", TopK1, 4),
    "top_k-5": (top_k(1, 2, 3, 4, 5), "DML_3_1", TopK1, 5),
    "top_k-int64": (top_k(3, 4, data_type=I64), "DML_5_0", TopK1, 2),
    "top_k-float64": (top_k(3, 4, data_type=F64), "EXTENDED", TopK1, 2),
    "nonzero": (nonzero(3, 4), "DML_3_0", NonzeroCoordinates, 4),
    "nonzero-1": (nonzero(7), "DML_3_0", NonzeroCoordinates, 4),
    "nonzero-4": (nonzero(1, 1, 2, 4, columns=3, count=(1,)), "DML_3_0", NonzeroCoordinates, 4),
    "nonzero-5": (nonzero(2, 1, 1, 2, 4, count=()), "DML_3_0", NonzeroCoordinates, 5),
    "nonzero-wide_count": (nonzero(2, 4, count=(1,) * 5), "DML_3_0", NonzeroCoordinates, 5),
    "nonzero-6": (nonzero(1, 2, 1, 1, 2, 4), "DML_4_0", NonzeroCoordinates, 6),
    "nonzero-scalar": (nonzero(), "EXTENDED", NonzeroCoordinates, None),
    "nonzero-empty": (nonzero(0, 4), "EXTENDED", NonzeroCoordinates, 2),
    "gather": (gather(3, 4), "DML_2_1", GatherND, 4),
    "gather-5": (gather(1, 2, 3, 4, 5), "DML_3_0", GatherND1, 5),
    "gather-batch": (gather(3, 4, batch=1), "DML_3_0", GatherND1, 2),
    "gather-signed": (gather(3, 4, index_type=I32), "DML_3_0", GatherND1, 2),
    "gather-float64": (gather(3, 4, data_type=F64), "DML_4_1", GatherND1, 2),
    "diagonal": (diagonal(3, 4, begin=-1, end=0), "DML_2_0", DiagonalMatrix, 4),
    "diagonal-integers": (diagonal(3, 4, data_type=I32, value=16777216), "DML_2_1", DiagonalMatrix, 4),
    "diagonal-not_a_float": (diagonal(3, 4, data_type=I32, value=16777217), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-beyond_as_float": (
        diagonal(3, 4, data_type=I32, value=2**31 - 1),
        "DML_5_1",
        DiagonalMatrix1,
        2,
    ),
    "diagonal-band": (diagonal(3, 4, end=2), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-nothing": (diagonal(3, 4, end=0), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-inverted": (diagonal(3, 4, begin=1, end=0), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-input": (diagonal(3, 4, has_input=True), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-float64": (diagonal(3, 4, data_type=F64, value=0.1), "DML_5_1", DiagonalMatrix1, 2),
    "diagonal-nan": (
        diagonal(3, 4, value=np.uint32(0xFFC12345).view(np.float32)),
        "DML_2_0",
        DiagonalMatrix,
        4,
    ),
}
OLDER_FORMS = {
    TopK: FeatureLevel.DML_2_1,
    GatherND: FeatureLevel.DML_3_0,
    DiagonalMatrix: FeatureLevel.DML_5_1,
}


@pytest.mark.parametrize(("descriptor", "level", "form", "rank"), LOWEST.values(), ids=LOWEST)
class TestAtLevel:
    def test_the_lowest_level(self, descriptor, level, form, rank):
        served = descriptor.at_level(level)
        assert type(served) is form
        served.validate(level)
        if rank is not None:
            assert {served.tensors[name].dimension_count for name in served.inputs} <= {rank}
        for lower in FeatureLevel:
            if lower < FeatureLevel[level]:
                with pytest.raises(
                    UnsupportedFeatureError, match=f"the lowest level that supports it is {level}"
                ):
                    descriptor.at_level(lower)

    def test_every_level_above(self, descriptor, level, form, rank):
        for higher in FeatureLevel:
            if higher >= FeatureLevel[level]:
                served = descriptor.at_level(higher)
                served.validate(higher)
                newest = OLDER_FORMS.get(form, FeatureLevel.DML_1_0) <= higher
                assert type(served) is (type(descriptor) if newest else form)
        assert descriptor.at_level(FeatureLevel.EXTENDED) is descriptor

    def test_it_is_the_same_computation(self, descriptor, level, form, rank):
        served = descriptor.at_level(level)
        inputs = make_inputs(descriptor, 1)
        expected = cpu_answer(descriptor, inputs)
        outputs = make_outputs(served)
        padded = {name: x.reshape(served.inputs[name].sizes) for name, x in inputs.items()}
        dmlops.compile(served, feature_level=level).execute(padded | outputs)
        for name, array in outputs.items():
            assert array.tobytes() == expected[name].tobytes()

    def test_older_forms_are_served_by_newer_ones(self, descriptor, level, form, rank):
        older = descriptor.older_form()
        if older is not None:
            assert older.at_level(level) == descriptor.at_level(level)
            assert older.at_level(FeatureLevel.EXTENDED) == descriptor


def test_values_that_survive_as_float():
    assert diagonal(3, 4, data_type=F64, value=0.5).older_form().value == 0.5
    assert diagonal(3, 4, data_type=F64, value=float("inf")).older_form().value == float("inf")
    payload = np.uint64(0x7FF8000000000001).view(np.float64)
    assert diagonal(3, 4, data_type=F64, value=payload).older_form() is None


def test_axis_and_strides_move_along():
    desc = TopK1(
        input_tensor=TensorDesc(F32, (3, 4), (8, 2)), axis=1, k=2, axis_direction=AxisDirection.INCREASING
    )
    padded = desc.padded(4)
    assert padded.input_tensor == TensorDesc(F32, (1, 1, 3, 4), (0, 0, 8, 2))
    assert padded.axis == 3
    assert padded.output_index_tensor.sizes == (1, 1, 3, 2)
    assert desc.padded(2) == desc
    with pytest.raises(dmlops.InvalidDescriptorError, match=r"^TopK1\.input_tensor\.sizes: got .* 1 dim"):
        desc.padded(1)


@pytest.mark.parametrize(
    ("descriptor", "level", "text"),
    [
        (
            top_k(3, direction=AxisDirection.INCREASING),
            "DML_2_0",
            "TopK1.feature_level: got DML_2_0, but the operator was introduced in DML_2_1; "
            "the lowest level that supports it is DML_2_1",
        ),
        (
            top_k(3, data_type=TensorDataType.UINT4),
            "DML_6_4",
            "TopK1.input_tensor: got uint4, but DML_6_4 takes float16, float32, int16, int32, int64, "
            "int8, uint16, uint32, uint64, uint8; no level supports it",
        ),
    ],
)
def test_why_not(descriptor, level, text):
    with pytest.raises(UnsupportedFeatureError) as error:
        descriptor.at_level(level)
    assert str(error.value) == text
