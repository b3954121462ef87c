"""`out`: unsuitable arrays are refused before anything is written, with an error that says why."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests.data import as_strided

pytestmark = pytest.mark.quick

X = np.arange(12, dtype="float32").reshape(3, 4)


def full(shape, dtype="float32"):
    return np.full(shape, 77, dtype)


def read_only(array):
    array.flags.writeable = False
    return array


# The outputs that each call accepts, and the ways in which others are unsuitable.
OUTPUTS = {
    "top_k": (lambda out: dmlops.top_k(X, 2, out=out), lambda: (full((3, 2)), full((3, 2), "uint32"))),
    "nonzero_coordinates": (
        lambda out: dmlops.nonzero_coordinates(X, out=out),
        lambda: (full((5, 2), "int64"), full(1, "int64")),
    ),
    "gather_nd": (lambda out: dmlops.gather_nd(X, [[0], [2]], out=out), lambda: (full((2, 4)),)),
    "diagonal_matrix": (lambda out: dmlops.diagonal_matrix(X, out=out), lambda: (full((3, 4)),)),
}
MISFITS = {
    "shape": (
        lambda array: full((*array.shape, 2), array.dtype),
        r"got shape \(.*\), but the .* ha(s|ve) shape \(.*\); shapes must be equal",
    ),
    "transposed_shape": (
        lambda array: full((array.shape[-1] + 3, *array.shape[:-1], 1), array.dtype),
        r"got shape \(.*\), but the .* ha(s|ve) shape \(.*\); shapes must be equal",
    ),
    "type": (
        lambda array: full(array.shape, "float16"),
        r"got float16, but .*; (types must be equal|it must be uint32, uint64, int32 or int64)",
    ),
    "read_only": (
        lambda array: read_only(array.copy()),
        "got a read-only array, but it is written to; an output must be writable",
    ),
    "unaligned": (
        lambda array: np.zeros(array.nbytes + 1, "u1")[1:].view(array.dtype).reshape(array.shape),
        "got an unaligned array, but .* not a multiple of the element size; it must be aligned to its",
    ),
    "overlapping_itself": (
        lambda array: np.lib.stride_tricks.as_strided(full(99, array.dtype), array.shape, (0,) * array.ndim),
        r"got strides \(0.*\), but .*; the strides of an output must not overlap",
    ),
    "complex": (
        lambda array: full(array.shape, "complex64"),
        "got complex64, but .*; (types must be equal|it must be uint32, uint64, int32 or int64)",
    ),
    "no_array": (lambda array: array.tolist(), "got list, but it is written to; an output must be an array"),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_do_not_fit(name, misfit):
    function, make = OUTPUTS[name]
    spoil, text = MISFITS[misfit]
    for place, array in enumerate(make()):
        if misfit == "overlapping_itself" and array.size == 1:
            continue
        outputs = list(make())
        outputs[place] = spoil(array)
        with pytest.raises((InvalidDescriptorError, TypeError), match=text) as caught:
            function(out=tuple(outputs) if len(outputs) == 2 else outputs[0])
        suffix = f"out[{place}]" if len(outputs) == 2 else "out"
        assert str(caught.value).startswith(f"{name}.{suffix}: ")
        for output in outputs:
            if isinstance(output, np.ndarray) and misfit != "unaligned":
                assert (output == 77).all()


@pytest.mark.parametrize("name", OUTPUTS)
def test_fitting_outputs_are_accepted(name):
    function, make = OUTPUTS[name]
    outputs = make()
    function(out=outputs if len(outputs) == 2 else outputs[0])
    assert not all((output == 77).all() for output in outputs)


class TestOverlap:
    """An output that shares memory with an input or with the other output."""

    @pytest.mark.parametrize("shift", [0, 1, 5])
    def test_with_the_input(self, shift):
        memory = np.zeros(40, "float32")
        memory[:12] = range(12)
        before = memory.copy()
        x, out = memory[:12].reshape(3, 4), memory[shift : shift + 12].reshape(3, 4)
        calls = [
            (lambda: dmlops.diagonal_matrix(x, out=out), "diagonal_matrix.out"),
            (lambda: dmlops.gather_nd(x, [[0], [1], [2]], out=out), "gather_nd.out"),
            (lambda: dmlops.top_k(x, 4, out=(out, np.zeros((3, 4), "uint32"))), r"top_k.out\[0\]"),
            (lambda: dmlops.top_k(x, 4, out=(full((3, 4)), out.view("int32"))), r"top_k.out\[1\]"),
            (
                lambda: dmlops.nonzero_coordinates(
                    x, out=(out.view("int32").reshape(6, 2), np.zeros(1, "int32"))
                ),
                r"nonzero_coordinates.out\[0\]",
            ),
        ]
        for call, where in calls:
            with pytest.raises(
                InvalidDescriptorError,
                match=rf"^{where}: got an overlapping array, but it shares memory with .*\.x",
            ):
                call()
            np.testing.assert_array_equal(memory, before)

    def test_with_the_indices(self):
        memory = np.zeros(8, "int64")
        with pytest.raises(
            InvalidDescriptorError, match=r"^gather_nd.out: .*shares memory with gather_nd.indices"
        ):
            dmlops.gather_nd(np.ones(4, "int64"), memory[:4].reshape(4, 1), out=memory[3:7])

    def test_of_two_outputs(self):
        memory = np.zeros(30, "uint32")
        with pytest.raises(
            InvalidDescriptorError, match=r"^top_k.out\[1\]: .*shares memory with top_k.out\[0\]"
        ):
            dmlops.top_k(X, 2, out=(memory[:6].view("float32").reshape(3, 2), memory[5:11].reshape(3, 2)))
        with pytest.raises(
            InvalidDescriptorError, match=r"^nonzero_coordinates.out\[[01]\]: .*shares memory with"
        ):
            dmlops.nonzero_coordinates(X, out=(memory[:10].reshape(5, 2), memory[4:5]))
        assert (memory == 0).all()

    def test_interleaved_arrays_do_not_overlap(self):
        memory = np.zeros((3, 8), "float32")
        memory[:, ::2] = X
        assert dmlops.diagonal_matrix(memory[:, ::2], value=5, out=memory[:, 1::2]).base is memory
        np.testing.assert_array_equal(memory[:, ::2], X)
        expected = X.copy()
        np.fill_diagonal(expected, 5)
        np.testing.assert_array_equal(memory[:, 1::2], expected)

    @pytest.mark.parametrize("first", ["x", "out"])
    def test_of_arrays_that_run_backwards(self, first):
        memory = np.zeros(40, "float32")
        for start in range(25):
            places = {first: memory[12:24], "x" if first == "out" else "out": memory[start : start + 12]}
            x, out = (places[name][::-1].reshape(3, 4) for name in ("x", "out"))
            x[...] = X
            if start in (0, 24):
                dmlops.diagonal_matrix(x, value=5, out=out)
                assert (np.diagonal(out) == 5).all()
            else:
                with pytest.raises(InvalidDescriptorError, match="shares memory"):
                    dmlops.diagonal_matrix(x, value=5, out=out)
            np.testing.assert_array_equal(x, X)

    def test_that_is_too_hard_to_rule_out(self):
        """From the tests of NumPy: whether these share an address would take minutes to find out."""
        memory = np.zeros(192_163_377, "int8")
        x = as_strided(memory, (1049, 1049, 1049), (36674, 61119, 85569))
        out = as_strided(memory[64_023_025:], (30, 30), (12223, 12224))
        with pytest.raises(
            InvalidDescriptorError, match=r"gather_nd\.out: .* shares memory with gather_nd\.x"
        ):
            dmlops.gather_nd(x, np.broadcast_to(0, (30, 30, 3)), out=out)
