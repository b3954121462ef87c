"""Bugs of gathers in other libraries."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import INDEX_DTYPES, assert_same, random
from tests.peer_bugs.calls import gather_nd


class TestGather:
    """Indices out of range, negative, of any type, and shapes without elements."""

    @pytest.mark.parametrize("batches", [(2, 3), (3, 2), (1, 3), (3, 1)], ids=str)
    def test_batches_that_differ_are_refused(self, library, batches):
        """ONNX Runtime's CPU GatherND divided by zero where the batch sizes differ.

        https://github.com/microsoft/onnxruntime/issues/23828
        """
        x = library.from_numpy(np.arange(3.0 * batches[0]).reshape(batches[0], 3))
        indices = library.from_numpy(np.ones((batches[1], 1), "int64"))
        with pytest.raises(InvalidDescriptorError, match="batch"):
            dmlops.gather_nd(x, indices, batch_dims=1)

    def test_an_index_beyond_every_dimension(self, library):
        """TensorFlow's GPU gather_nd returned zeros for indices out of range, where its CPU raised.

        https://github.com/tensorflow/tensorflow/issues/12608
        """
        cases = ((np.ones((5, 5, 5)), [[6, 6, 6]]), (np.ones((1, 5)), [[-50_000_000_000_000_000]]))
        for x, indices in cases:
            with pytest.raises(dmlops.IndexOutOfRangeError):
                gather_nd(library, x, indices)
            assert (gather_nd(library, x, indices, mode="clip") == 1).all()
            assert (gather_nd(library, x, indices, mode="fill") == 0).all()

    def test_the_first_bad_tuple_is_named(self, library):
        """TensorFlow's GPU gather_nd filled in zeros for [8, -1], so that the bug behind it stayed hidden.

        https://github.com/tensorflow/tensorflow/issues/15091
        """
        indices = np.stack([np.arange(10), np.full(10, 4)], -1)
        indices[8, 1] = -6
        with pytest.raises(
            IndexError, match=r"got tuple \(8, -6\) at position \(8,\), but coordinate 1 is -6"
        ):
            gather_nd(library, np.ones((10, 5)), indices)

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_negative_indices_count_from_the_end(self, library, dtype):
        """ONNX Runtime's Gather refused the negative indices that ONNX allows.

        https://github.com/microsoft/onnxruntime/issues/1533
        """
        x = np.arange(12.0).reshape(3, 4)
        indices = np.array([[-1, -1], [-3, -4], [2, -2]], dtype)
        assert gather_nd(library, x, indices).tolist() == [11, 0, 10]

    def test_no_mode_reads_outside(self, library):
        """TVM's gather_nd read other memory for negative indices and for those out of range.

        https://github.com/apache/tvm/issues/20297
        """
        x = np.full((6, 9), 99, "float32")
        x[1:4, 2:7] = 1
        indices = random("tvm").integers(-20, 20, (300, 2))
        for mode in ("clip", "fill"):
            expected = reference.gather_nd(x[1:4, 2:7], indices, mode=mode)
            assert_same(gather_nd(library, x[1:4, 2:7], indices, mode=mode), expected)
            assert (expected <= 1).all()

    def test_indices_do_not_wrap_around(self, library):
        """CuPy wraps indices out of range around, so that element 5 of 5 is element 0.

        https://github.com/chainer/chainer/issues/4648
        """
        x, indices = np.arange(5) + 1, np.arange(7)[:, np.newaxis]
        assert gather_nd(library, x, indices, mode="clip").tolist() == [1, 2, 3, 4, 5, 5, 5]
        assert gather_nd(library, x, indices, mode="fill").tolist() == [1, 2, 3, 4, 5, 0, 0]
        with pytest.raises(IndexError, match=r"coordinate 0 is 5"):
            gather_nd(library, x, indices)

    @pytest.mark.parametrize("mode", ["clip", "fill"])
    def test_indices_are_not_changed(self, library, mode):
        """CuPy's indexing wrote the indices that it had brought into range back to the caller's array.

        https://github.com/cupy/cupy/issues/705
        """
        before = np.array([[10, -7], [0, -1], [1, 5]], "int32")
        indices = library.from_numpy(before.copy())
        dmlops.gather_nd(library.from_numpy(np.ones((3, 4))), indices, mode=mode)
        assert_same(library.to_numpy(indices), before)

    def test_fill_begins_beyond_the_length_from_the_end(self, library):
        """A JAX user took it for a bug that mode="fill" fills only below -n.

        https://github.com/jax-ml/jax/issues/28998
        """
        indices = np.arange(-10, 10)[:, np.newaxis]
        result = gather_nd(library, np.ones(4), indices, mode="fill")
        assert result.tolist() == [0] * 6 + [1] * 8 + [0] * 6

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
    def test_index_types_too_small_to_count_are_refused(self, library, dtype):
        """JAX took element 128 of 200, asked for by a uint8, for element -128 and returned the last one.

        https://github.com/jax-ml/jax/issues/16836
        """
        x, indices = library.from_numpy(np.arange(200)), library.from_numpy(np.ones((1, 1), dtype))
        with pytest.raises(TypeError, match=dtype):
            dmlops.gather_nd(x, indices)

    @pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
    def test_every_index_type(self, library, index_dtype):
        """The ONNX-MLIR verifier of GatherND crashed for unsigned index types.

        https://github.com/Xilinx/onnx-mlir/pull/1003
        """
        x = np.arange(200, dtype="float32")
        indices = np.array([[0], [127], [128], [199]], index_dtype)
        assert gather_nd(library, x, indices).tolist() == [0, 127, 128, 199]
        with pytest.raises(IndexError, match="coordinate 0 is 200"):
            gather_nd(library, x, indices + index_dtype.type(1))

    def test_more_batches_than_an_index_type_counts(self, library):
        """JAX counted 256 batches in the int8 of the indices, and returned NaN for the second half.

        https://github.com/jax-ml/jax/issues/16557
        """
        x = np.arange(70_000, dtype="float32")[:, np.newaxis]
        indices = np.zeros((70_000, 1, 1), "int32")
        assert_same(gather_nd(library, x, indices, batch_dims=1), x)

    def test_slices_without_elements(self, library):
        """TensorFlow's gather_nd refused to take a slice without elements.

        https://github.com/tensorflow/tensorflow/issues/50246
        """
        assert gather_nd(library, np.zeros((2, 0, 5)), [[0]]).shape == (1, 0, 5)

    def test_a_batch_of_slices_without_elements(self, library):
        """MIGraphX aborted while it read a Gather from shape (1, 8400, 0).

        https://github.com/ROCm/AMDMIGraphX/issues/5246
        """
        x = np.zeros((1, 8400, 0), "float32")
        assert gather_nd(library, x, np.zeros((1, 1), "int64")).shape == (1, 8400, 0)
        assert gather_nd(library, x, np.array([0])).shape == (8400, 0)

    def test_no_index_at_all(self, library):
        """mlprodict's Gather crashed where there are no indices.

        https://github.com/sdpython/mlprodict/issues/216
        """
        assert gather_nd(library, np.ones((3, 4)), np.zeros((0, 1), "int64")).shape == (0, 4)

    @pytest.mark.parametrize("dtype", ["int32", "uint64"])
    def test_tuples_of_no_index_select_everything(self, library, dtype):
        """tensorflow-directml crashed in GatherND where the last dimension of the indices is 0.

        https://github.com/microsoft/tensorflow-directml/pull/178
        """
        x = np.array([[65, 17, 2], [-14, -25, -1], [76, 22, 3]], "float32")
        assert_same(gather_nd(library, x, np.zeros((2, 0), dtype)), np.stack([x, x]))

    def test_the_same_row_twice(self, library):
        """TensorFlow's gather_nd could not take rows, as its own documentation shows.

        https://github.com/tensorflow/tensorflow/issues/3712
        """
        x = np.array([[1, 1, 1, 1], [1, 2, 3, 4]])
        assert gather_nd(library, x, [[1], [1]]).tolist() == [[1, 2, 3, 4]] * 2

    @pytest.mark.parametrize("rows", [65_535, 65_536, 200_000])
    def test_more_than_65535_rows(self, library, rows):
        """ggml's CUDA get_rows failed beyond 65535 rows, the limit of a grid's second dimension.

        https://github.com/ggml-org/ggml/issues/877
        """
        x = np.arange(2 * rows).reshape(rows, 2)
        indices = np.arange(rows)[::-1, np.newaxis].copy()
        assert_same(gather_nd(library, x, indices), x[::-1])

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
    def test_gathered_integers_stay_exact(self, library, dtype):
        """A gather of vocabulary numbers that Tenstorrent's compiler lowered to an embedding corrupted them.

        https://github.com/tenstorrent/tt-xla/issues/4329
        """
        highest = np.iinfo(dtype).max
        x = np.array([257, 50_257, 16_777_217, highest, highest - 1], dtype)
        assert_same(gather_nd(library, x, np.arange(5)[:, np.newaxis]), x)

    def test_an_output_of_the_wrong_shape_is_refused(self, library):
        """CuPy's take crashed the process where `out` had the wrong shape.

        https://github.com/chainer/chainer/pull/1013
        """
        x = library.from_numpy(np.arange(24).reshape(2, 3, 4))
        indices = library.from_numpy(np.array([[1]]))
        for shape in ((), (1,), (3, 4), (1, 3, 5)):
            out = library.from_numpy(np.zeros(shape, "int64"))
            with pytest.raises(InvalidDescriptorError, match=r"^gather_nd\.out: got shape"):
                dmlops.gather_nd(x, indices, out=out)
