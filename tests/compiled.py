"""Descriptors of every kind with their arrays, for tests of all compiled operators."""

import numpy as np

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    FeatureLevel,
    GatherND1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
)
from tests import reference
from tests.data import random, sample

ROWS, COLUMNS = 70, 5000
_DATA = TensorDesc(TensorDataType.FLOAT32, (ROWS, COLUMNS))
_LONG = TensorDesc(TensorDataType.FLOAT32, (1, 3_000_000))
_BAND = {"value": 3, "diagonal_fill_begin": -4, "diagonal_fill_end": 7}


def gather_of(x, indices):
    """Describe a gather without batches, in which all dimensions of both tensors count."""
    return GatherND1(
        input_tensor=x,
        indices_tensor=indices,
        input_dimension_count=x.dimension_count,
        indices_dimension_count=indices.dimension_count,
        batch_dimension_count=0,
    )


_GATHER = gather_of(_DATA, TensorDesc(TensorDataType.INT64, (900, 1)))
DESCRIPTORS = {
    "top_k-short_axis": TopK1(
        input_tensor=TensorDesc(TensorDataType.INT32, (2000, 100)),
        axis=1,
        k=7,
        axis_direction=AxisDirection.INCREASING,
    ),
    "top_k-rows": TopK1(input_tensor=_DATA, axis=1, k=60, axis_direction=AxisDirection.DECREASING),
    "top_k-many": TopK1(input_tensor=_DATA, axis=1, k=2500, axis_direction=AxisDirection.DECREASING),
    "top_k-sort": TopK1(input_tensor=_DATA, axis=1, k=COLUMNS, axis_direction=AxisDirection.INCREASING),
    "top_k-long_row": TopK1(input_tensor=_LONG, axis=1, k=100, axis_direction=AxisDirection.DECREASING),
    "top_k-sort_long": TopK1(
        input_tensor=TensorDesc(TensorDataType.UINT32, (200_000,)),
        axis=0,
        k=200_000,
        axis_direction=AxisDirection.DECREASING,
    ),
    "top_k-axis_0": TopK1(input_tensor=_DATA, axis=0, k=5, axis_direction=AxisDirection.DECREASING),
    "top_k-older": TopK(input_tensor=_DATA, axis=1, k=4),
    "nonzero": NonzeroCoordinates(input_tensor=_DATA),
    "nonzero-small": NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.INT32, (10, 20, 3))),
    "nonzero-large": NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.UINT32, (1700, 1000))),
    "gather": _GATHER,
    "gather-older": _GATHER.older_form(),
    "gather-scalars": gather_of(_DATA, TensorDesc(TensorDataType.INT64, (5000, 2))),
    "diagonal": DiagonalMatrix1(input_tensor=_DATA, **_BAND),
    "diagonal-built": DiagonalMatrix1(output_tensor=_DATA, **_BAND),
    "diagonal-older": DiagonalMatrix(output_tensor=_DATA, offset=9, value=0.5),
}


def numpy_dtype(data_type):
    """Return the NumPy type of a data type."""
    return np.dtype(data_type.name.lower())


def make_inputs(descriptor, seed):
    """Return host arrays for the inputs, different ones for each seed."""
    inputs = {}
    for name, desc in descriptor.inputs.items():
        dtype = numpy_dtype(desc.data_type)
        if name == "indices_tensor":
            inputs[name] = random((seed, name)).integers(-2 * ROWS, 2 * ROWS, desc.sizes).astype(dtype)
        else:
            values = sample(dtype, desc.sizes, (seed, name))
            keep = random((seed, "keep")).random(desc.sizes) < 0.2 * seed
            inputs[name] = np.where(keep, values, np.zeros((), dtype))
    return inputs


def make_outputs(descriptor):
    """Return host arrays for the outputs, filled with what no operator writes."""
    return {
        name: np.full(desc.sizes, 77, numpy_dtype(desc.data_type))
        for name, desc in descriptor.outputs.items()
    }


def cpu_answer(descriptor, inputs):
    """Return the outputs that the CPU computes."""
    operator = dmlops.compile(descriptor, device="cpu", feature_level=FeatureLevel.EXTENDED)
    outputs = make_outputs(descriptor)
    operator.execute(inputs | outputs)
    return outputs


def oracle(descriptor, inputs):
    """Return the outputs by plain NumPy; only the rows of coordinates that are defined."""
    lowest = descriptor.lower()
    x = inputs.get("input_tensor")
    if isinstance(lowest, TopK1):
        largest = lowest.axis_direction == AxisDirection.DECREASING
        values, indices = reference.top_k(x, lowest.k, axis=lowest.axis, largest=largest)
        return {"output_value_tensor": values, "output_index_tensor": indices.astype("uint32")}
    if isinstance(lowest, NonzeroCoordinates):
        coordinates, count = reference.nonzero_coordinates(x)
        return {"output_count_tensor": count, "output_coordinates_tensor": coordinates}
    if isinstance(lowest, GatherND1):
        batch = lowest.batch_dimension_count
        x = x.reshape(x.shape[x.ndim - lowest.input_dimension_count :])
        picks = inputs["indices_tensor"]
        picks = picks.reshape(picks.shape[picks.ndim - lowest.indices_dimension_count :])
        picked = reference.gather_nd(x, picks, batch_dims=batch, mode="clip")
        return {"output_tensor": picked.reshape(lowest.output_tensor.sizes)}
    output = lowest.output_tensor
    band = {"begin": lowest.diagonal_fill_begin, "end": lowest.diagonal_fill_end, "value": lowest.value}
    made = {"shape": output.sizes, "dtype": numpy_dtype(output.data_type)}
    return {"output_tensor": reference.diagonal_matrix(x, **made, **band)}
