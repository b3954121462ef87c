"""TensorDesc and the operators' descriptors: inference, constraints, error texts and JSON."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

from dmlops import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    FeatureLevel,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
)
from tests import compiled

pytestmark = pytest.mark.quick

F32, F16, U32, I64, U8 = (TensorDataType[name] for name in ("FLOAT32", "FLOAT16", "UINT32", "INT64", "UINT8"))


def f32(*sizes):
    return TensorDesc(F32, sizes)


def u32(*sizes):
    return TensorDesc(U32, sizes)


class TestTensorDesc:
    @pytest.mark.parametrize(
        ("data_type", "sizes", "strides", "size"),
        [
            ("FLOAT32", (1, 1, 3, 4), None, 48),
            ("UINT8", (5,), None, 8),  # rounded up to a multiple of 4
            ("FLOAT16", (3,), None, 8),
            ("FLOAT64", (3,), None, 24),
            ("FLOAT32", (2, 3), (8, 1), 44),  # (1 * 8 + 2 * 1 + 1) elements
            ("UINT8", (2, 3), (8, 1), 12),
            ("FLOAT32", (4, 5), (0, 1), 20),  # broadcast
            ("FLOAT32", (4, 5), (0, 0), 4),
            ("UINT4", (3,), None, 4),
            ("INT4", (9,), None, 8),
            ("UNKNOWN", (9,), None, 0),
            ("INT64", (2**20, 2**20), None, 2**43),
            ("UINT8", (2, 2), (2**33, 1), 2**33 + 4),  # no wrap at 32 bits
        ],
    )
    def test_total_tensor_size_in_bytes(self, data_type, sizes, strides, size):
        desc = TensorDesc(TensorDataType[data_type], sizes, strides)
        assert desc.total_tensor_size_in_bytes == size

    def test_fields(self):
        desc = TensorDesc(1, [np.int64(2), 3], strides=[4, np.int8(1)])
        assert (desc.data_type, desc.sizes, desc.strides) == (TensorDataType.FLOAT32, (2, 3), (4, 1))
        assert repr(desc).endswith("FLOAT32: 1>, sizes=(2, 3), strides=(4, 1))")
        assert all(type(number) is int for number in (*desc.sizes, *desc.strides))
        assert {desc} == {TensorDesc(F32, (2, 3), (4, 1))}
        assert (desc.dimension_count, desc.element_count, desc.extent, desc.offset) == (2, 6, 7, 0)
        backwards = TensorDesc(F32, (2, 3), (4, -1))
        assert (backwards.extent, backwards.offset) == (7, 2)
        with pytest.raises(dataclasses.FrozenInstanceError):
            desc.sizes = (1,)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ((F32, (2, -1)), "sizes: got (2, -1), but a size is negative; sizes must be >= 0"),
            ((F32, (2, 3), (1,)), "strides: got (1,), but sizes has 2 dimensions; strides must have as many"),
            ((F32, (2.5,)), "sizes: got (2.5,), but it is not a sequence of integers; sizes must be one"),
            ((F32, 3), "sizes: got 3, but it is not a sequence of integers; sizes must be one"),
            (
                (F32, (2,), ("a",)),
                "strides: got ('a',), but it is not a sequence of integers; strides must be one",
            ),
            (
                (99, (2,)),
                "data_type: got 99, but there is no such data type; data_type must be one of "
                f"{', '.join(each.name.lower() for each in TensorDataType if each.bytes)}",
            ),
            (
                (F32, (2**40, 2**40)),
                "sizes: got (1099511627776, 1099511627776), but these are more than 2**63 - 1 "
                "elements; a 64-bit integer must be able to count them",
            ),
            (
                (F32, (2**61,)),
                "sizes: got (2305843009213693952,), but float32 elements then span more than "
                "2**63 - 1 bytes; a 64-bit integer must be able to count them",
            ),
            (
                (I64, (2, 2), (2**60, 1)),
                "strides: got (1152921504606846976, 1), but int64 elements then span more than "
                "2**63 - 1 bytes; a 64-bit integer must be able to count them",
            ),
            (
                (F32, (1, 2), (-(2**63), 1)),
                "strides: got (-9223372036854775808, 1), but one needs more than 64 bits; "
                "strides must be in [1 - 2**63, 2**63 - 1]",
            ),
        ],
    )
    def test_errors(self, arguments, text):
        with pytest.raises(InvalidDescriptorError) as error:
            TensorDesc(*arguments)
        assert str(error.value).startswith(f"TensorDesc.{text}")

    def test_as_large_as_a_64_bit_integer_counts(self):
        assert TensorDesc(U8, (2**63 - 1,)).extent == 2**63 - 1
        assert TensorDesc(F32, (2**31, 2**31), (0, 0)).extent == 1
        assert TensorDesc(U8, (2**62, 0)).element_count == 0
        for sizes, strides in (((2**62, 2), (0, 0)), ((2**62, 2, 0), None), ((2**63,), (0,))):
            with pytest.raises(InvalidDescriptorError, match="more than 2"):
                TensorDesc(U8, sizes, strides)

    def test_enumerations_by_number_and_name(self):
        for data_type in (F16, 2, np.uint8(2), np.array(2), "FLOAT16"):
            assert TensorDesc(data_type, (1,)).data_type is F16

    def test_types_as_functions_take_them(self):
        for data_type in ("float16", "f2", np.float16, np.dtype("float16"), np.zeros(1, "float16").dtype):
            desc = TensorDesc(data_type, (2, 2))
            assert desc.data_type is F16
            filled = {"value": 1, "diagonal_fill_begin": 0, "diagonal_fill_end": 1}
            made = DiagonalMatrix1(output_tensor=desc, value_data_type=data_type, **filled)
            assert made.value_data_type is F16
        assert TensorDesc("bfloat16", (1,)).data_type is TensorDataType.BFLOAT16
        others = (None, "float17", ">f2", np.complex64, "datetime64[s]", AxisDirection.INCREASING, 2.0)
        for other in others:
            with pytest.raises(InvalidDescriptorError, match=r"data_type: got .* must be one of float32, "):
                TensorDesc(other, (1,))


def _top_k(**changes):
    arguments = {"input_tensor": f32(1, 1, 3, 4), "axis": 3, "k": 2, "axis_direction": 1}
    return TopK1(**arguments | changes)


def _nonzero(**changes):
    return NonzeroCoordinates(**{"input_tensor": f32(1, 1, 12, 5)} | changes)


def _gather(**changes):
    arguments = {
        "input_tensor": f32(1, 3, 2, 2),
        "indices_tensor": u32(1, 3, 2, 2),
        "input_dimension_count": 3,
        "indices_dimension_count": 3,
        "batch_dimension_count": 1,
    }
    return GatherND1(**arguments | changes)


def _diagonal(**changes):
    arguments = {"output_tensor": f32(4, 5), "value": 1, "diagonal_fill_begin": 0, "diagonal_fill_end": 1}
    return DiagonalMatrix1(**arguments | changes)


def _old_diagonal(**changes):
    return DiagonalMatrix(**{"output_tensor": TensorDesc(U8, (4, 5)), "offset": 0, "value": 255.9} | changes)


DESCRIPTORS = [*compiled.DESCRIPTORS.values(), *(_diagonal(value=float(text)) for text in ("nan", "inf"))]
DESCRIPTORS += filter(None, [each.older_form() for each in DESCRIPTORS])


@pytest.mark.parametrize("desc", DESCRIPTORS, ids=lambda desc: desc.name)
class TestValueSemantics:
    def test_json_is_strict(self, desc):
        json.loads(desc.to_json(), parse_constant=pytest.fail)

    def test_pickle(self, desc):
        copy = pickle.loads(pickle.dumps(desc))
        assert type(copy) is type(desc)
        assert copy.to_json() == desc.to_json()

    def test_frozen(self, desc):
        first = dataclasses.fields(desc)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(desc, first, None)
        with pytest.raises(TypeError, match="takes 1 positional argument"):
            type(desc)(getattr(desc, first))
        assert not hasattr(desc, "__dict__")


INVALID = {
    _top_k: [
        ({"k": 5}, "k: got 5, but axis 3 of input_tensor has 4 elements; k must be in [1, 4]"),
        ({"k": 0}, "k: got 0, but axis 3 of input_tensor has 4 elements; k must be in [1, 4]"),
        ({"k": 2.0}, "k: got 2.0, but it is not an integer; k must be an integer"),
        ({"k": np.array([1])}, "k: got array([1]), but it is not an integer; k must be an integer"),
        (
            {"input_tensor": f32(1, 1, 3, 1)},
            "k: got 2, but axis 3 of input_tensor has 1 element; k must be in [1, 1]",
        ),
        (
            {"input_tensor": f32(1, 1, 3, 0)},
            "k: got 2, but axis 3 of input_tensor has 0 elements; it must have at least 1",
        ),
        (
            {"input_tensor": f32(), "axis": 0},
            "axis: got 0, but input_tensor has 0 dimensions; it must have at least 1",
        ),
        ({"axis": -1}, "axis: got -1, but input_tensor has 4 dimensions; axis must be in [0, 3]"),
        ({"axis": 4}, "axis: got 4, but input_tensor has 4 dimensions; axis must be in [0, 3]"),
        (
            {"axis_direction": 2},
            "axis_direction: got 2, but there is no such AxisDirection; axis_direction must be one of "
            "INCREASING, DECREASING",
        ),
        (
            {"input_tensor": TensorDesc(F32, (1, 1, 1, 2**62), (0, 0, 0, 0)), "k": 2**62},
            "output_value_tensor.sizes: got (1, 1, 1, 4611686018427387904), but float32 elements then span",
        ),
        ({"output_value_tensor": f32(1, 1, 3, 3)}, "output_value_tensor.sizes: got (1, 1, 3, 3), but the"),
        (
            {"output_value_tensor": TensorDesc(F16, (1, 1, 3, 2))},
            "output_value_tensor.data_type: got float16, but input_tensor is float32; data_type must be",
        ),
        ({"output_index_tensor": u32(1, 1, 2, 2)}, "output_index_tensor.sizes: got (1, 1, 2, 2), but the"),
        ({"output_index_tensor": f32(1, 1, 3, 2)}, "output_index_tensor.data_type: got float32, but it"),
        (
            {"output_value_tensor": TensorDesc(F32, (1, 1, 3, 2), (6, 6, 1, 1))},
            "output_value_tensor.strides: got (6, 6, 1, 1), but sizes (1, 1, 3, 2) then may share addresses",
        ),
        ({"input_tensor": "x"}, "input_tensor: got 'x', but it is not a tensor; input_tensor must be a"),
    ],
    _nonzero: [
        (
            {"output_count_tensor": TensorDesc(TensorDataType.UNKNOWN, (1,))},
            "output_count_tensor.data_type: got unknown, but it holds the count; data_type must be an ",
        ),
        ({"output_count_tensor": u32(1, 2)}, "output_count_tensor.sizes: got (1, 2), but the count is a"),
        (
            {"output_coordinates_tensor": u32(1, 2, 60, 4)},
            "output_coordinates_tensor.sizes: got (1, 2, 60, 4), but the inputs give (1, 1, 60, 4); sizes",
        ),
        (
            {"output_coordinates_tensor": f32(1, 1, 60, 4)},
            "output_coordinates_tensor.data_type: got float32, but it holds a coordinate; data_type must be",
        ),
    ],
    _gather: [
        (
            {"input_tensor": f32(), "indices_tensor": u32()},
            "input_tensor.sizes: got 0 dimensions, but index tuples point into it; it must have at least 1",
        ),
        (
            {"input_tensor": f32(3), "input_dimension_count": 1},
            "indices_tensor.sizes: got 4 dimensions, but input_tensor has 1; both must have the same number",
        ),
        (
            {
                "input_tensor": TensorDesc(F32, (2, 2**40), (0, 0)),
                "indices_tensor": TensorDesc(U32, (2**40, 1), (0, 0)),
                "input_dimension_count": 2,
                "indices_dimension_count": 2,
                "batch_dimension_count": 0,
            },
            "output_tensor.sizes: got (1099511627776, 1099511627776), but these are more than",
        ),
        ({"input_dimension_count": 0}, "input_dimension_count: got 0, but input_tensor has 4 dimensions;"),
        ({"input_dimension_count": 2}, "input_dimension_count: got 2, but input_tensor has sizes (1, 3, 2,"),
        ({"batch_dimension_count": 3}, "batch_dimension_count: got 3, but input_tensor has 3 dimensions and"),
        ({"indices_tensor": u32(3, 2, 2)}, "indices_tensor"),
        ({"indices_tensor": f32(1, 3, 2, 2)}, "indices_tensor.data_type: got float32, but indices are"),
        ({"output_tensor": f32(1, 1, 3, 3)}, "output_tensor.sizes: got (1, 1, 3, 3), but the inputs give"),
    ],
    _diagonal: [
        ({"output_tensor": f32(5)}, "output_tensor.sizes: got 1 dimension, but a matrix has height and"),
        ({"output_tensor": None}, "output_tensor: got None, but it is not a tensor; output_tensor must be a"),
        ({"input_tensor": f32(4, 4)}, "output_tensor.sizes: got (4, 5), but the inputs give (4, 4); sizes"),
        ({"value_data_type": F16}, "value_data_type: got float16, but output_tensor is float32; it must be"),
        (
            {"value_data_type": 99},
            "value_data_type: got 99, but there is no such data type; value_data_type",
        ),
        ({"value": "a"}, "value: got 'a', but it fills float32; value must be a real number"),
        ({"value": np.array([1.0])}, "value: got array([1.]), but it fills float32; value must be a real"),
        (
            {"output_tensor": TensorDesc(U8, (4, 5)), "value": 256},
            "value: got 256, but it fills uint8; value must be an integer in [0, 255]",
        ),
        (
            {"output_tensor": TensorDesc(U8, (4, 5)), "value": 10**5000},
            "value: got an integer of 16610 bits, but it fills uint8; value must be an integer",
        ),
        ({"diagonal_fill_begin": 0.5}, "diagonal_fill_begin: got 0.5, but it is not an integer;"),
        ({"output_tensor": TensorDesc(F32, (4, 5), (4, 1))}, "output_tensor.strides: got (4, 1), but sizes"),
    ],
    _old_diagonal: [
        ({"value": "a"}, "value: got 'a', but it fills float32; value must be a real number in"),
        (
            {"value": float("inf")},
            "value: got inf, but it fills uint8; value must be in [0, 255] when its fraction is",
        ),
        ({"value": 10**40}, f"value: got {10**40}, but it fills float32; "),
        ({"value": -1}, "value: got -1.0, but it fills uint8; value must be in [0, 255] when its fraction"),
        ({"offset": None}, "offset: got None, but it is not an integer; offset must be an integer"),
    ],
}


@pytest.mark.parametrize(
    ("make", "changes", "text"),
    [
        pytest.param(make, *case, id=f"{make.__name__}-{list(case[0])}-{number}")
        for make, cases in INVALID.items()
        for number, case in enumerate(cases)
    ],
)
def test_invalid_descriptors(make, changes, text):
    name = type(make()).__name__
    with pytest.raises(InvalidDescriptorError) as error:
        make(**changes)
    assert str(error.value).startswith(f"{name}.{text}")
    assert "; " in str(error.value)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 5])
def test_outputs_that_nonzero_coordinates_describes_itself(rank):
    descriptor = NonzeroCoordinates(input_tensor=f32(*(2,) * rank))
    assert descriptor.output_count_tensor == u32(*(1,) * max(rank, 1))
    assert descriptor.output_coordinates_tensor == u32(*(1,) * (rank - 2), 2**rank, rank)


class TestOverlap:
    @pytest.mark.parametrize(
        ("sizes", "strides", "overlaps"),
        [
            ((2, 3), (3, 1), False),
            ((2, 3), (2, 1), True),
            ((2, 3), (1, 2), False),
            ((2, 3), (-3, 1), False),
            ((2, 3), (0, 1), True),
            ((1, 3), (0, 1), False),
            ((0, 3), (0, 0), False),
            ((2, 2), (3, 2), False),  # 0, 2, 3, 5
            ((3, 2), (2, 3), True),  # 0, 2, 4, 3, 5, 7: interleaved
            ((4, 2), (2, 6), True),  # 6 is met twice
            ((2, 2, 2), (1, 1, 4), True),
        ],
    )
    def test_overlaps_itself(self, sizes, strides, overlaps):
        assert TensorDesc(F32, sizes, strides).overlaps_itself is overlaps

    def test_inputs_may_overlap(self):
        TopK(input_tensor=TensorDesc(F32, (4, 4), (0, 1)), axis=1, k=2)


@pytest.mark.parametrize(
    ("member", "full"),
    [
        (TensorDataType.FLOAT16, "DML_TENSOR_DATA_TYPE_FLOAT16"),
        (AxisDirection.INCREASING, "DML_AXIS_DIRECTION_INCREASING"),
        (FeatureLevel.DML_6_4, "DML_FEATURE_LEVEL_6_4"),
    ],
)
def test_names_of_members(member, full):
    assert f"{member} {member:>12} {member:#x}" == f"{member.name} {member.name:>12} {int(member):#x}"
    assert str(member) == member.name
    assert type(member)(full) is type(member)(member.name) is member
    with pytest.raises(ValueError, match="DML_DML"):
        type(member)(f"DML_{full}")
