"""`Descriptor.from_json` refuses other text than that of `to_json` with one error that names the field."""

import dataclasses
import json

import numpy as np
import pytest

import dmlops
from dmlops import (
    Descriptor,
    DiagonalMatrix1,
    InvalidDescriptorError,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
)

pytestmark = pytest.mark.quick

X = {"data_type": "FLOAT32", "sizes": [3, 4]}
TOP_K1 = {"operator": "TopK1", "input_tensor": X, "axis": 1, "k": 2, "axis_direction": "DECREASING"}
DIAGONAL = {
    "operator": "DiagonalMatrix1",
    "output_tensor": X,
    "value": 1,
    "diagonal_fill_begin": 0,
    "diagonal_fill_end": 1,
}
PUBLIC = [getattr(dmlops, name) for name in dmlops.__all__]
FORMS = {each for each in PUBLIC if isinstance(each, type) and issubclass(each, Descriptor)} - {Descriptor}
NAMES = ", ".join(sorted(form.__name__ for form in FORMS))


def read(data=TOP_K1, *without, **changes):
    changed = {name: value for name, value in data.items() if name not in without} | changes
    return Descriptor.from_json(json.dumps(changed))


def tensor(**changes):
    return {"input_tensor": X | changes}


def test_what_others_may_write():
    expected = read()
    assert read(axis_direction=1) == expected
    assert read(output_value_tensor=None, output_index_tensor=None) == expected
    assert read(**tensor(data_type=1, strides=None)) == expected
    assert read(DIAGONAL, input_tensor=None, value_data_type=None) == read(DIAGONAL, value_data_type=1)
    assert read(dict(reversed(TOP_K1.items()))) == expected
    assert TopK1.from_json(expected.to_json()) == expected


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_no_json(name):
    """Python's json module writes and reads these."""
    with pytest.raises(InvalidDescriptorError, match=rf"^Descriptor.from_json: got {name}, but JSON has no"):
        Descriptor.from_json(json.dumps(DIAGONAL).replace('"value": 1', f'"value": {name}'))


@pytest.mark.parametrize(
    ("member", "name"),
    [('"operator": "TopK"', "operator"), ('"k": 1', "k"), ('"k": 2', "k"), ('"axis": 1', "axis")],
)
def test_names_that_are_given_twice(member, name):
    text = json.dumps(TOP_K1)
    told = rf"^Descriptor.from_json: got '{name}' 2 times, but only one of them could count; names"
    for twice in (f"{text[:-1]}, {member}}}", f"{{{member}, {text[1:]}"):
        with pytest.raises(InvalidDescriptorError, match=told):
            Descriptor.from_json(twice)
    with pytest.raises(InvalidDescriptorError, match=r"^Descriptor.from_json: got 'sizes' 2 times"):
        Descriptor.from_json(text.replace('"sizes": [3, 4]', '"sizes": [3, 4], "sizes": [3, 4]'))


def test_descriptors_of_another_class():
    with pytest.raises(
        InvalidDescriptorError,
        match=r"^TopK\.operator: got 'TopK1', but TopK\.from_json reads no other; Descriptor\.from",
    ):
        TopK.from_json(json.dumps(TOP_K1))


@pytest.mark.parametrize("digits", ["1e401", "-1e401", "1e999"])
def test_numbers_beyond_float64(digits):
    shown = digits.replace("e", r"E\+")
    for field, text in (("axis", "it is not an integer"), ("k", "it is not an integer")):
        written = json.dumps(TOP_K1 | {field: 77}).replace("77", digits)
        with pytest.raises(InvalidDescriptorError, match=rf"^TopK1\.{field}: got .*{shown}.*, but {text}"):
            Descriptor.from_json(written)
    written = json.dumps(DIAGONAL | {"value": 77}).replace("77", digits)
    with pytest.raises(InvalidDescriptorError, match=rf"^DiagonalMatrix1\.value: got .*{shown}.* it fills"):
        Descriptor.from_json(written)


NUMBERS = {
    "inf": 0x7FF << 52,
    "-inf": 0xFFF << 52,
    "nan": 0x7FF8 << 48,
    "0xfff8000000000000": 0xFFF8 << 48,
    "0x7ff8000000000001": 0x7FF8 << 48 | 1,
    "0xfff82468a0000000": 0xFFF82468A << 28,  # of a float32
    "0x000fffffffffffff": (1 << 52) - 1,
    2.0**-1022: 1 << 52,
    -0.0: 1 << 63,
    1.75: 0x3FFC << 48,
}


@pytest.mark.parametrize(("written", "bits"), NUMBERS.items(), ids=str)
def test_numbers_keep_their_bits(written, bits):
    wide = DIAGONAL | {"output_tensor": X | {"data_type": "FLOAT64"}}
    value = np.uint64(bits).view("float64")
    for descriptor in (read(wide, value=written), dataclasses.replace(read(wide), value=value)):
        assert np.float64(descriptor.value).view("uint64") == bits
        assert repr(json.loads(descriptor.to_json())["value"]) == repr(written)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"k": True}, "k: got True, but true and false are no integers; it must be an integer"),
        ({"axis_direction": "UP"}, "axis_direction: got 'UP', but there is no such AxisDirection; "),
        (
            {"input_tensor": 5},
            "input_tensor: got 5, but it does not describe a tensor; it must be an object with ",
        ),
        ({"output_value_tensor": {}}, "output_value_tensor.data_type: got nothing, but it is missing; "),
        (
            tensor(data_type="FLOAT99"),
            "input_tensor.data_type: got 'FLOAT99', but there is no such data type; ",
        ),
        (tensor(sizes=7), "input_tensor.sizes: got 7, but it is not an array of integers; sizes must be"),
        (tensor(sizes=[3, "4"]), "input_tensor.sizes: got [3, '4'], but it is not a sequence of integers; "),
        (tensor(sizes=[3, True]), "input_tensor.sizes: got [3, True], but it is not an array of integers; "),
        (tensor(strides=[3, True]), "input_tensor.strides: got [3, True], but it is not an array of "),
        (
            tensor(stride=[4, 1]),
            "input_tensor: got member 'stride', but a tensor has none; it has data_type, ",
        ),
    ],
)
def test_fields(changes, text):
    with pytest.raises(InvalidDescriptorError) as error:
        read(**changes)
    assert str(error.value).startswith(f"TopK1.{text}")
    assert "; " in str(error.value)


@pytest.mark.parametrize("field", ["input_tensor", "axis", "k", "axis_direction"])
def test_missing_fields(field):
    with pytest.raises(InvalidDescriptorError) as error:
        read(TOP_K1, field)
    assert str(error.value) == (
        f"TopK1.{field}: got nothing, but the operator needs it; the fields of TopK1 are input_tensor, axis, "
        "k, output_value_tensor, output_index_tensor, axis_direction"
    )


def test_a_field_of_another_name():
    with pytest.raises(
        InvalidDescriptorError, match=r"^TopK1: got field 'lengths', but TopK1 has none of that"
    ):
        read(lengths=None)


@pytest.mark.parametrize("name", ["Conv", "_DiagonalDescriptor", "Descriptor", "", None, 5, ["TopK1"], {}])
def test_operators(name):
    with pytest.raises(InvalidDescriptorError) as error:
        read(operator=name)
    assert str(error.value) == (
        f"Descriptor.operator: got {name!r}, but no operator has that name; operator must be one of {NAMES}"
    )


@pytest.mark.parametrize("text", ["[]", "null", "1", '"TopK1"', "true"])
def test_text_that_is_no_object(text):
    with pytest.raises(
        InvalidDescriptorError, match=r"^Descriptor.from_json: got .*, but it is not an object; "
    ):
        Descriptor.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "TopK1", "{'operator': 'TopK1'}", '{"operator": "TopK1",}', "\x00", "\ud800", "\ufeff{}"),
        "[" * 100_000,
        '{"a":' * 100_000,
        *(json.dumps(TOP_K1).replace("4", digits) for digits in ("4" * 5000, "4e" + "9" * 20)),
        "x" * 10**6,
    ],
    ids=range(13),
)
def test_text_that_is_no_json(text):
    with pytest.raises(
        InvalidDescriptorError, match=r"(?s)^Descriptor.from_json: got ['\"].*, but it cannot be"
    ) as error:
        Descriptor.from_json(text)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("text", [None, 5, b"{}", bytearray(b"{}"), {}, TOP_K1])
def test_what_is_not_text(text):
    with pytest.raises(
        TypeError, match=r"^Descriptor.from_json: got .*, but it is not text; text must be a str"
    ):
        Descriptor.from_json(text)


def test_integers_that_json_readers_refuse_are_not_written():
    tensor = TensorDesc(TensorDataType.INT8, (2, 2))
    for end in (2**70, 10**4000):
        descriptor = DiagonalMatrix1(
            output_tensor=tensor, value=1, diagonal_fill_begin=0, diagonal_fill_end=end
        )
        assert Descriptor.from_json(descriptor.to_json()) == descriptor
    descriptor = DiagonalMatrix1(
        output_tensor=tensor, value=1, diagonal_fill_begin=0, diagonal_fill_end=10**5000
    )
    with pytest.raises(ValueError, match="4300 digits"):
        descriptor.to_json()


def test_tensors_by_themselves():
    assert TensorDesc.from_dict(X) == TensorDesc(TensorDataType.FLOAT32, (3, 4))
    for data in (None, [], "x", {}, {"sizes": [1]}, X | {"sizes": "1"}, X | {"x": 1}):
        with pytest.raises(InvalidDescriptorError, match=r"^TensorDesc"):
            TensorDesc.from_dict(data)
