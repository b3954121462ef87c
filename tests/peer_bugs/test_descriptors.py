"""Bugs that users of DirectML reported."""

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    FeatureLevel,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
    UnsupportedFeatureError,
)
from tests.data import assert_same
from tests.libraries import execute
from tests.peer_bugs.reports import INT64_MAX, INT64_MIN


class TestDescriptors:
    """What users of DirectML reported."""

    def test_k_beyond_the_size_is_refused(self):
        """TensorFlow's InTopK crashed on DirectML, which takes no k beyond the size of the axis.

        https://github.com/microsoft/tensorflow-directml-plugin/pull/300
        """
        tensor = TensorDesc(TensorDataType.FLOAT32, (1, 1, 3, 4))
        for k in (0, 5):
            with pytest.raises(
                InvalidDescriptorError, match=rf"TopK1\.k: got {k}, .*; k must be in \[1, 4\]"
            ):
                TopK1(input_tensor=tensor, axis=3, k=k, axis_direction=AxisDirection.DECREASING)

    def test_64_bit_indices(self):
        """A model whose Gather, TopK and NonZero use 64-bit indices failed on DirectML with E_INVALIDARG.

        https://github.com/microsoft/onnxruntime/issues/27118
        """
        x = np.array([[3, 1, 2]], "float32")
        tensor = TensorDesc(TensorDataType.FLOAT32, x.shape)
        results = execute(
            TopK1(
                input_tensor=tensor,
                axis=1,
                k=3,
                axis_direction=AxisDirection.DECREASING,
                output_index_tensor=TensorDesc(TensorDataType.UINT64, x.shape),
            ),
            input_tensor=x,
        )
        assert_same(results["output_index_tensor"], np.array([[0, 2, 1]], "uint64"))
        gather = GatherND1(
            input_tensor=tensor,
            indices_tensor=TensorDesc(TensorDataType.INT64, (2, 2)),
            input_dimension_count=2,
            indices_dimension_count=2,
            batch_dimension_count=0,
        )
        results = execute(gather, input_tensor=x, indices_tensor=np.array([[0, -1], [-1, 0]]))
        assert_same(results["output_tensor"].ravel(), np.array([2, 3], "float32"))

    def test_sizes_of_zero_are_refused_by_name_and_empty_arrays_are_taken(self):
        """Callers of DirectML's nonzero have to work round its refusal of empty tensors.

        https://github.com/microsoft/onnxruntime/pull/13768
        """
        descriptor = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, (3, 0)))
        with pytest.raises(UnsupportedFeatureError, match=r"input_tensor: got \(3, 0\), .*; .* is EXTENDED$"):
            descriptor.validate(FeatureLevel.DML_6_4)
        coordinates, count = dmlops.nonzero_coordinates(np.zeros((3, 0), "float32"))
        assert coordinates.shape == (0, 2)
        assert count.item() == 0

    def test_indices_out_of_range_are_clamped(self):
        """ONNX Runtime raised, returned zeros or clamped indices out of range, depending on where it ran.

        https://github.com/microsoft/onnxruntime/issues/25251
        """
        x, indices = np.array([10, 20, 30], "float32"), np.array([[3], [-4], [INT64_MAX], [INT64_MIN], [-1]])
        gather = GatherND1(
            input_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 3)),
            indices_tensor=TensorDesc(TensorDataType.INT64, (5, 1)),
            input_dimension_count=1,
            indices_dimension_count=2,
            batch_dimension_count=0,
        )
        results = execute(gather, input_tensor=x[np.newaxis], indices_tensor=indices)
        assert results["output_tensor"].ravel().tolist() == [30, 10, 30, 10, 30]
        assert dmlops.gather_nd(x, indices, mode="clip").tolist() == [30, 10, 30, 10, 30]
        with pytest.raises(dmlops.IndexOutOfRangeError):
            dmlops.gather_nd(x, indices)
