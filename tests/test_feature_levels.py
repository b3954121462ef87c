"""Feature levels: the support tables, compared with an independent copy, and their consequences."""

import itertools

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    Feature,
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

pytestmark = pytest.mark.quick

SMALL = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
WITH_I64 = f"{SMALL} INT64 UINT64"
WITH_64 = f"{WITH_I64} FLOAT64"
INDICES = "INT64 INT32 UINT64 UINT32"

# Copied by hand from DirectML's pages: operator, level, {tensor: (dimension counts, data types)}.
PAGES = {
    "TopK": {
        "DML_2_0": {"data": (4, 4, "FLOAT32 FLOAT16"), "output_index_tensor": (4, 4, "UINT32")},
        "DML_2_1": {"data": (4, 4, SMALL), "output_index_tensor": (4, 4, "UINT32")},
        "DML_3_1": {"data": (1, 8, SMALL), "output_index_tensor": (1, 8, "UINT32")},
        "DML_5_0": {"data": (1, 8, WITH_I64), "output_index_tensor": (1, 8, "UINT64 UINT32")},
    },
    "GatherND": {
        "DML_2_1": {"data": (4, 4, SMALL), "indices_tensor": (4, 4, "UINT32")},
        "DML_3_0": {"data": (1, 8, SMALL), "indices_tensor": (1, 8, INDICES)},
        "DML_4_1": {"data": (1, 8, WITH_64), "indices_tensor": (1, 8, INDICES)},
    },
    "GatherND1": {
        "DML_3_0": {"data": (1, 8, SMALL), "indices_tensor": (1, 8, INDICES)},
        "DML_4_1": {"data": (1, 8, WITH_64), "indices_tensor": (1, 8, INDICES)},
    },
    "DiagonalMatrix": {
        "DML_2_0": {"data": (4, 4, "FLOAT32 FLOAT16")},
        "DML_2_1": {"data": (4, 4, SMALL)},
        "DML_4_0": {"data": (2, 4, SMALL)},
        "DML_5_1": {"data": (2, 4, WITH_64)},
    },
    "DiagonalMatrix1": {"DML_5_1": {"data": (2, 4, WITH_64)}},
    "NonzeroCoordinates": {
        "DML_3_0": {
            "data": (4, 5, SMALL),
            "output_count_tensor": (4, 5, "UINT32"),
            "output_coordinates_tensor": (4, 5, "UINT32"),
        },
        "DML_4_0": {
            "data": (1, 8, SMALL),
            "output_count_tensor": (1, 8, "UINT32"),
            "output_coordinates_tensor": (2, 8, "UINT32"),
        },
    },
}
PAGES["TopK1"] = {level: page for level, page in PAGES["TopK"].items() if level != "DML_2_0"}
TENSORS = {
    TopK: ("input_tensor", "output_value_tensor", "output_index_tensor"),
    TopK1: ("input_tensor", "output_value_tensor", "output_index_tensor"),
    GatherND: ("input_tensor", "indices_tensor", "output_tensor"),
    GatherND1: ("input_tensor", "indices_tensor", "output_tensor"),
    DiagonalMatrix: ("output_tensor",),
    DiagonalMatrix1: ("input_tensor", "output_tensor"),
    NonzeroCoordinates: ("input_tensor", "output_count_tensor", "output_coordinates_tensor"),
}
OPERATORS = tuple(TENSORS)
DML_LEVELS = [level for level in FeatureLevel if level < FeatureLevel.EXTENDED]
REAL_TYPES = [data_type for data_type in TensorDataType if data_type.bits >= 8]


def page(operator, level):
    """Return {tensor: (low, high, types)} in force at `level` by the hand-written copy, or None."""
    rows = {FeatureLevel[name]: row for name, row in PAGES[operator.__name__].items()}
    in_force = [row for since, row in rows.items() if since <= level]
    if not in_force:
        return None
    return {
        tensor: (low, high, frozenset(types.split()))
        for tensor in TENSORS[operator]
        for low, high, types in [in_force[-1].get(tensor, in_force[-1]["data"])]
    }


def allowed(operator, level, tensors):
    """Return whether the hand-written copy allows {tensor: (dimension count, type name)} at `level`."""
    rules = page(operator, level)
    # The page of NONZERO_COORDINATES as it was before DML_4_0 wants equal dimension counts.
    equal = operator is NonzeroCoordinates and level < FeatureLevel.DML_4_0
    return (
        rules is not None
        and all(
            rules[tensor][0] <= rank <= rules[tensor][1] and name in rules[tensor][2]
            for tensor, (rank, name) in tensors.items()
        )
        and not (equal and len({rank for rank, _ in tensors.values()}) > 1)
    )


def make(operator, data_type, rank, index_type=TensorDataType.UINT32):
    """Return a small descriptor of tensors of these types and of `rank` dimensions."""
    data = TensorDesc(data_type, (2,) * rank)
    if operator in (TopK, TopK1):
        outputs = {
            "output_value_tensor": TensorDesc(data_type, (1,) + (2,) * (rank - 1)),
            "output_index_tensor": TensorDesc(index_type, (1,) + (2,) * (rank - 1)),
        }
        direction = {"axis_direction": AxisDirection.INCREASING} if operator is TopK1 else {}
        return operator(input_tensor=data, axis=0, k=1, **outputs, **direction)
    if operator in (GatherND, GatherND1):
        batch = {"batch_dimension_count": 0} if operator is GatherND1 else {}
        indices = TensorDesc(index_type, (1,) * rank)
        return operator(
            input_tensor=data,
            indices_tensor=indices,
            input_dimension_count=rank,
            indices_dimension_count=1,
            **batch,
        )
    if operator is DiagonalMatrix:
        return DiagonalMatrix(output_tensor=data, offset=0, value=1)
    if operator is DiagonalMatrix1:
        return DiagonalMatrix1(input_tensor=data, value=1, diagonal_fill_begin=0, diagonal_fill_end=1)
    shape = (1,) * (max(rank, 2) - 2) + (2**rank, rank)
    return NonzeroCoordinates(
        input_tensor=data,
        output_count_tensor=TensorDesc(index_type, (1,) * rank),
        output_coordinates_tensor=TensorDesc(index_type, shape),
    )


def described(descriptor):
    return {name: (desc.dimension_count, desc.data_type.name) for name, desc in descriptor.tensors.items()}


@pytest.mark.parametrize("operator", OPERATORS)
def test_support_table_equals_the_pages(operator):
    rows = [row.level.name for row in operator.support if row.level < FeatureLevel.EXTENDED]
    assert rows == list(PAGES[operator.__name__])
    for level in DML_LEVELS:
        row = operator.support.at(level)
        table = row and {
            tensor: (*row.allowed(tensor).dims, frozenset(kind.name for kind in row.allowed(tensor).types))
            for tensor in TENSORS[operator]
        }
        assert table == page(operator, level)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_type_and_rank_at_every_level(operator):
    lowest_rank = 2 if operator in (DiagonalMatrix, DiagonalMatrix1) else 1
    index_types = [TensorDataType[name] for name in INDICES.split()]
    checked = 0
    for data_type, rank in itertools.product(REAL_TYPES, range(lowest_rank, 10)):
        for index_type in (
            index_types if operator not in (DiagonalMatrix, DiagonalMatrix1) else index_types[:1]
        ):
            descriptor = make(operator, data_type, rank, index_type)
            tensors = described(descriptor)
            for level in DML_LEVELS:
                if allowed(operator, level, tensors):
                    descriptor.validate(level)
                else:
                    with pytest.raises(UnsupportedFeatureError):
                        descriptor.validate(level)
                checked += 1
            levels = [level for level in DML_LEVELS if allowed(operator, level, tensors)]
            assert descriptor.minimum_feature_level() == min(levels, default=FeatureLevel.EXTENDED)
            descriptor.validate(FeatureLevel.EXTENDED)
    assert checked >= 8 * len(REAL_TYPES) * len(DML_LEVELS) * (10 - lowest_rank) / 8


def test_numeric_values():
    minors = {1: 0, 2: 1, 3: 1, 4: 1, 5: 2, 6: 4}
    levels = [(major, minor) for major, last in minors.items() for minor in range(last + 1)]
    values = {f"DML_{major}_{minor}": major << 12 | minor << 8 for major, minor in levels}
    assert {level.name: level.value for level in DML_LEVELS} == values
    names = "UNKNOWN FLOAT32 FLOAT16 UINT32 UINT16 UINT8 INT32 INT16 INT8 FLOAT64 UINT64 INT64 UINT4 INT4"
    assert [TensorDataType(value).name for value in range(14)] == names.split()
    assert (AxisDirection.INCREASING, AxisDirection.DECREASING) == (0, 1)


BEYOND_DIRECTML = {
    "empty": (TensorDesc(TensorDataType.INT8, (0, 2, 3)), "contain a zero"),
    "negative_stride": (TensorDesc(TensorDataType.INT8, (2, 2, 3), (6, 3, -1)), "negative"),
    "too_many_elements": (TensorDesc(TensorDataType.INT8, (1, 2**16, 2**16)), "4294967295 elements"),
    "too_many_elements_at_one_address": (
        TensorDesc(TensorDataType.INT8, (1, 2**16, 2**16), (0, 0, 0)),
        "4294967295 elements",
    ),
    "as_many_as_can_be": (TensorDesc(TensorDataType.INT8, (1, 2**16 - 1, 2**16 + 1)), None),
    "too_long_an_extent": (
        TensorDesc(TensorDataType.INT8, (2, 2, 2), (2**32 - 4, 2, 1)),
        "4294967295 elements",
    ),
    "longest_extent": (TensorDesc(TensorDataType.INT8, (2, 2, 2), (2**32 - 5, 2, 1)), None),
    "too_long_a_stride": (TensorDesc(TensorDataType.INT8, (1, 2, 3), (2**32, 3, 1)), "one above 4294967295"),
    "longest_stride": (TensorDesc(TensorDataType.INT8, (1, 2, 3), (2**32 - 1, 3, 1)), None),
    "broadcast": (TensorDesc(TensorDataType.INT8, (4, 2, 3), (0, 3, 1)), None),
    "bool": (TensorDesc(TensorDataType.BOOL, (1, 2, 3)), "got bool"),
    "bfloat16": (TensorDesc(TensorDataType.BFLOAT16, (1, 2, 3)), "got bfloat16"),
    "nine_dimensions": (TensorDesc(TensorDataType.INT8, (1,) * 9), "got 9 dimensions"),
}


@pytest.mark.parametrize(("tensor", "text"), BEYOND_DIRECTML.values(), ids=BEYOND_DIRECTML)
def test_what_directml_has_not_needs_extended(tensor, text):
    descriptor = DiagonalMatrix1(
        input_tensor=tensor,
        value=1,
        diagonal_fill_begin=0,
        diagonal_fill_end=1,
        output_tensor=TensorDesc(tensor.data_type, tensor.sizes),
    )
    lowest = FeatureLevel.EXTENDED if text else FeatureLevel.DML_5_1
    assert descriptor.minimum_feature_level() is lowest
    descriptor.validate(lowest)
    if text is None:
        return
    with pytest.raises(UnsupportedFeatureError, match=text) as error:
        descriptor.validate(FeatureLevel.DML_6_4)
    assert str(error.value).startswith("DiagonalMatrix1.input_tensor")
    assert "the lowest level that supports it is EXTENDED" in str(error.value)


@pytest.mark.parametrize("level", DML_LEVELS)
def test_functions_of_scalars_need_extended(level):
    x = np.float32(3).reshape(())
    with dmlops.feature_level(level):
        for call in (
            lambda: dmlops.gather_nd(x, np.zeros((2, 0), "uint32")),
            lambda: dmlops.nonzero_coordinates(x),
        ):
            with pytest.raises(UnsupportedFeatureError, match="level that supports it is EXTENDED"):
                call()


class TestCompile:
    @pytest.mark.parametrize("level", [FeatureLevel.DML_5_0, "DML_5_0", 0x5000])
    def test_levels_by_number_and_name(self, level):
        descriptor = make(TopK1, TensorDataType.INT64, 4)
        descriptor.validate(level)
        dmlops.compile(descriptor, feature_level=level)
        with dmlops.feature_level(level):
            dmlops.compile(descriptor)
            with pytest.raises(UnsupportedFeatureError, match="DML_5_0 takes"):
                dmlops.top_k([1.0, 2.0], 1)

    @pytest.mark.parametrize("level", [0x3050, "DML_3_2", "dml_5_0", 1.5, True, None, [0x5000], 2**70])
    def test_levels_that_do_not_exist(self, level):
        descriptor = make(TopK1, TensorDataType.FLOAT32, 4)
        shown = {0x3050: "0x3050", 2**70: "0x400000000000000000"}.get(level if type(level) is int else None)
        text = f"got {shown or repr(level)}, but there is no such feature level; it must be one of DML_1_0, "
        with pytest.raises(dmlops.InvalidDescriptorError) as error:
            descriptor.validate(level)
        assert str(error.value).startswith(f"TopK1.feature_level: {text}")
        with (
            pytest.raises(dmlops.InvalidDescriptorError, match=r"^feature_level.level: got"),
            dmlops.feature_level(level),
        ):
            pytest.fail("the block was entered")
        if level is not None:
            with pytest.raises(dmlops.InvalidDescriptorError, match=r"^compile.feature_level: got"):
                dmlops.compile(descriptor, feature_level=level)

    def test_context_manager_sets_the_default_of_both(self):
        x = [[1.0, 2.0], [3.0, 4.0]]
        descriptor = make(TopK1, TensorDataType.FLOAT64, 2)
        with dmlops.feature_level(FeatureLevel.DML_3_1):
            with pytest.raises(UnsupportedFeatureError, match="DML_3_1"):
                dmlops.top_k(x, 1)
            with pytest.raises(UnsupportedFeatureError, match="DML_3_1"):
                dmlops.compile(descriptor, device="cpu")
            with dmlops.feature_level(FeatureLevel.EXTENDED):
                assert dmlops.top_k(x, 1).values.tolist() == [[2.0], [4.0]]
                dmlops.compile(descriptor, device="cpu")
            with pytest.raises(UnsupportedFeatureError):
                dmlops.top_k(x, 1)
        assert dmlops.top_k(x, 1).values.tolist() == [[2.0], [4.0]]

    def test_context_ends_with_an_error(self):
        with pytest.raises(ZeroDivisionError), dmlops.feature_level(FeatureLevel.DML_1_0):
            raise ZeroDivisionError
        assert dmlops.top_k([1.0, 2.0], 1).values.tolist() == [2.0]


class TestCheckFeatureSupport:
    """The two questions that DirectML's CheckFeatureSupport knows."""

    def test_data_types(self):
        def supported(data_type):
            return dmlops.check_feature_support(Feature.TENSOR_DATA_TYPE_SUPPORT, data_type)

        assert {data_type.name for data_type in TensorDataType if supported(data_type)} == {
            *WITH_64.split(),
            "BFLOAT16",
            "BOOL",
        }
        assert supported(TensorDataType.FLOAT32) is True
        assert supported(TensorDataType.UNKNOWN) is False

    def test_highest_of_the_requested_levels(self):
        def highest(*levels):
            return dmlops.check_feature_support(Feature.FEATURE_LEVELS, levels)

        assert (
            highest(FeatureLevel.DML_5_0, FeatureLevel.DML_6_2, FeatureLevel.DML_1_0) is FeatureLevel.DML_6_2
        )
        assert highest(*FeatureLevel) is FeatureLevel.EXTENDED
        assert highest("DML_3_0", "DML_2_0") is FeatureLevel.DML_3_0
        # Applications written for a newer DirectML also request its levels.
        assert highest(0x5000, 0x6500) is FeatureLevel.DML_5_0
        assert highest(0x7000, 0x6400, 0x20000) is FeatureLevel.DML_6_4

    def test_devices_that_do_not_exist(self):
        for device in ("cuda:7777", "cuda:999999999"):
            for feature, query in ((0, 1), (1, [0x3000])):
                with pytest.raises(
                    UnsupportedFeatureError, match=f"check_feature_support.device: got {device}, but"
                ):
                    dmlops.check_feature_support(feature, query, device=device)
        for device in ("cuda:", "cuda:1_0", "cuda:\u0663", f"cuda:{'9' * 5000}", "", None, 7):
            with pytest.raises(dmlops.InvalidDescriptorError, match="there is no such device"):
                dmlops.check_feature_support(0, 1, device=device)

    @pytest.mark.parametrize(
        ("feature", "query", "error", "text"),
        [
            (2, 1, UnsupportedFeatureError, "feature: got 2, but"),
            (0, 99, dmlops.InvalidDescriptorError, "query: got 99, but"),
            (1, [1], dmlops.InvalidDescriptorError, "query: got 0x1, but there is no such"),
            (1, "DML_6_4", dmlops.InvalidDescriptorError, "query: got 'DML_6_4', but"),
            (1, [0x6500], UnsupportedFeatureError, "query: got [25856], but cpu serves none"),
            (1, 0x3000, dmlops.InvalidDescriptorError, "query: got 12288, but"),
        ],
    )
    def test_errors(self, feature, query, error, text):
        with pytest.raises(error) as caught:
            dmlops.check_feature_support(feature, query)
        assert str(caught.value).startswith(f"check_feature_support.{text}")
