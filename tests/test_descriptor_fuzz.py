"""Arbitrary tensors, descriptors and JSON raise only errors of dmlops and TypeError.

``DMLOPS_FUZZ_EXAMPLES`` sets the number of examples per test.
"""

import contextlib
import json
import os
from dataclasses import MISSING, fields, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dmlops import (
    AxisDirection,
    Descriptor,
    DiagonalMatrix,
    DiagonalMatrix1,
    DmlError,
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

OPERATORS = (DiagonalMatrix, DiagonalMatrix1, GatherND, GatherND1, NonzeroCoordinates, TopK, TopK1)
INDEX_TYPES = [TensorDataType[name] for name in ("UINT32", "UINT64", "INT32", "INT64")]
EXAMPLES = int(os.environ.get("DMLOPS_FUZZ_EXAMPLES", "60"))
# Three parts of at most 200 characters, and the names around them.
LONGEST_TEXT = 800

EDGES = [
    sign * (2**power + step)
    for power in (0, 8, 31, 32, 52, 62, 63, 64, 70)
    for step in (-1, 0, 1)
    for sign in (1, -1)
]
INTEGERS = st.one_of(
    st.integers(-3, 9),
    st.sampled_from(EDGES),
    st.integers(),
    st.integers(5_000, 10_000).map(lambda bits: 1 << bits),  # fewer digits than Python prints,
)
FLOATS = st.one_of(st.floats(), st.sampled_from([0.5, -0.0, 1e39, 1e300, 255.5]))
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, st.text(max_size=9))
NUMPY_VALUES = st.sampled_from(
    [
        *(np.int8(1), np.uint64(2**64 - 1), np.float16(0.5), np.float32("nan"), np.complex64(1j)),
        *(np.bool_(True), np.str_("1"), np.void(b"12"), np.zeros((2, 2))),
        *map(np.array, (1, [1], [], 1.5, "1", None)),
        *(np.datetime64("2026-01-01"), np.timedelta64(1, "s")),
    ]
)
OBJECTS = st.one_of(
    *(st.sampled_from(enumeration) for enumeration in (TensorDataType, AxisDirection, FeatureLevel)),
    st.sampled_from([object(), int, TensorDesc, len, b"1", {1}, 1j, Ellipsis, range(3), iter(())]),
    NUMPY_VALUES,
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
ANYTHING = st.one_of(JSON_VALUES, OBJECTS, st.lists(st.one_of(SCALARS, OBJECTS), max_size=4).map(tuple))

SIZES = st.lists(st.one_of(st.integers(0, 4), st.integers(1, 3), st.sampled_from(EDGES)), max_size=6)
DATA_TYPES = st.sampled_from(TensorDataType)


@st.composite
def tensors(draw):
    """Return a tensor of few elements, in any layout."""
    sizes = draw(st.lists(st.integers(0, 3), max_size=6))
    strides = draw(
        st.none()
        | st.lists(
            st.integers(-9, 40) | st.sampled_from(EDGES[:12]), min_size=len(sizes), max_size=len(sizes)
        )
    )
    return TensorDesc(draw(DATA_TYPES), sizes, strides)


@st.composite
def descriptor_arguments(draw):
    """Return an operator and arguments of the right types, which often fit it."""
    operator = draw(st.sampled_from(OPERATORS))
    arguments = {}
    for field in fields(operator):
        if field.default is not MISSING and draw(st.integers(0, 3)):
            continue
        if field.name.endswith("_tensor"):
            arguments[field.name] = draw(tensors())
        elif field.name == "axis_direction":
            arguments[field.name] = draw(st.sampled_from(AxisDirection))
        elif field.name == "value_data_type":
            arguments[field.name] = draw(DATA_TYPES)
        elif field.name == "value":
            arguments[field.name] = draw(st.one_of(st.integers(-3, 300), FLOATS))
        else:
            arguments[field.name] = draw(st.one_of(st.integers(0, 4), INTEGERS))
    if draw(st.integers(0, 3)):
        outputs = [name for name in arguments if name.startswith("output_")]
        for name in outputs:
            del arguments[name]
        arguments |= draw(fitting(operator))
    return operator, arguments


@st.composite
def fitting(draw, operator):
    """Return arguments that fit an operator."""
    low = 2 if operator in (DiagonalMatrix, DiagonalMatrix1) else 1
    sizes = draw(st.lists(st.integers(1, 3), min_size=low, max_size=6))
    rank = len(sizes)
    data = TensorDesc(draw(DATA_TYPES), sizes)
    if operator in (TopK, TopK1):
        axis = draw(st.integers(0, rank - 1))
        return {"input_tensor": data, "axis": axis, "k": draw(st.integers(1, sizes[axis]))}
    if operator is NonzeroCoordinates:
        return {"input_tensor": data}
    if operator is DiagonalMatrix:
        return {"output_tensor": data, "value": draw(st.floats(0, 1))}
    if operator is DiagonalMatrix1:
        field = draw(st.sampled_from(["input_tensor", "output_tensor"]))
        value = draw(FLOATS if data.data_type.is_float else st.integers(0, 1))
        fill = {"diagonal_fill_end": draw(INTEGERS), "value_data_type": None, "value": value}
        return {"input_tensor": None, field: data} | fill
    batch = draw(st.integers(0, rank - 1)) if operator is GatherND1 else 0
    tuple_size = draw(st.integers(1, rank - batch))
    indices = (*(1,) * (rank - batch - 1), *sizes[:batch], tuple_size)
    return {
        "input_tensor": data,
        "indices_tensor": TensorDesc(draw(st.sampled_from(INDEX_TYPES)), indices),
        "input_dimension_count": rank,
        "indices_dimension_count": batch + 1,
        **({"batch_dimension_count": batch} if operator is GatherND1 else {}),
    }


@contextlib.contextmanager
def only_our_errors():
    text = "of dmlops: got "
    try:
        yield
    except (DmlError, TypeError) as error:
        text = str(error)
    assert ": got " in text
    assert len(text) < LONGEST_TEXT


def exercise(desc):
    """Ask a descriptor for all that it can tell."""
    assert all(isinstance(tensor.total_tensor_size_in_bytes, int) for tensor in desc.tensors.values())
    with only_our_errors():
        copy = Descriptor.from_json(desc.to_json())
        assert copy == desc
        assert hash(copy) == hash(desc)
        assert copy.to_json() == desc.to_json()
    assert replace(desc) == desc
    assert desc.lower().lower() == desc.lower()
    older = desc.older_form()
    assert older is None or older.lower() == desc
    served = []
    for level in FeatureLevel:
        with contextlib.suppress(UnsupportedFeatureError):
            form = desc.at_level(level)
            form.validate(level)
            assert form.lower().input_tensor is None or form.lower().input_tensor.element_count >= 0
            served.append(level)
    # Levels are supersets of those below.
    assert served == [level for level in FeatureLevel if served and level >= served[0]]
    with contextlib.suppress(UnsupportedFeatureError):
        assert desc.minimum_feature_level() >= served[0]


@settings(max_examples=EXAMPLES)
@given(ANYTHING | DATA_TYPES, ANYTHING | SIZES, ANYTHING | SIZES)
def test_tensors(data_type, sizes, strides):
    with only_our_errors():
        desc = TensorDesc(data_type, sizes, strides)
        assert desc.extent * desc.data_type.bits <= 8 * (2**63 - 1)
        assert desc.element_count < 2**63
        assert TensorDesc.from_dict(json.loads(json.dumps(desc.to_dict()))) == desc


@settings(max_examples=EXAMPLES)
@given(descriptor_arguments())
def test_descriptors(case):
    operator, arguments = case
    with only_our_errors():
        exercise(operator(**arguments))


@settings(max_examples=EXAMPLES)
@given(descriptor_arguments(), st.data())
def test_descriptors_with_anything_in_a_field(case, data):
    operator, arguments = case
    name = data.draw(st.sampled_from([field.name for field in fields(operator)]))
    with only_our_errors():
        exercise(operator(**arguments | {name: data.draw(ANYTHING)}))


@settings(max_examples=EXAMPLES)
@given(descriptor_arguments(), st.data())
def test_json_with_anything_anywhere(case, data):
    operator, arguments = case
    plain = {"operator": operator.__name__}
    for name, value in arguments.items():
        plain[name] = value.to_dict() if isinstance(value, TensorDesc) else getattr(value, "name", value)
    for _ in range(data.draw(st.integers(0, 3))):
        target = data.draw(
            st.sampled_from([plain, *(part for part in plain.values() if isinstance(part, dict))])
        )
        name = data.draw(st.sampled_from([*target, "other"]))
        if data.draw(st.booleans()):
            target[name] = data.draw(JSON_VALUES)
        else:
            target.pop(name, None)
    with contextlib.suppress(ValueError):  # Python writes no integers of thousands of digits
        text = json.dumps(plain)
        with only_our_errors():
            exercise(Descriptor.from_json(text))
