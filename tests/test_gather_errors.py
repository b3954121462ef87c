"""`gather_nd` with `mode="raise"`: the error names the right tuple for every layout."""

import re

import numpy as np
import pytest

import dmlops
from dmlops import IndexOutOfRangeError
from tests.data import LAYOUTS, sample

X = sample("float32", (4, 5, 6), "gather errors")
WHOLE = np.arange(120, dtype="int32").reshape(4, 5, 6)


def report(x, indices, batch_dims):
    """Return what the error says of the first tuple out of range, or None; plain NumPy."""
    bounds = np.array(x.shape[batch_dims : batch_dims + indices.shape[-1]], "int64")
    lowest = -bounds if indices.dtype.kind == "i" else bounds * 0
    numbers = indices.astype(object)
    is_out = (numbers < lowest) | (numbers >= bounds)
    if not is_out.any():
        return None
    *position, coordinate = np.argwhere(is_out)[0]
    dimension = batch_dims + coordinate
    return (
        f"gather_nd.indices: got tuple {tuple(indices[tuple(position)].tolist())} "
        f"at position {tuple(int(i) for i in position)}, but coordinate {coordinate} is "
        f"{indices[(*position, coordinate)]}, and dimension {dimension} of x has {x.shape[dimension]} "
        f"elements; it must be in [{lowest[coordinate]}, {bounds[coordinate] - 1}]"
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_dims", [0, 1])
def test_indices_out_of_range_in_every_layout(batch_dims, layout, given):
    rng = np.random.default_rng(5)
    for _ in range(8):
        good = rng.integers(-4, 4, (4, 3, 2))
        good[rng.integers(4), rng.integers(3), rng.integers(2)] = rng.choice([-9, 7, 2**40])
        indices = LAYOUTS[layout](good)
        text = report(X, indices, batch_dims)
        if text is None:  # it broadcasts another element
            continue
        out = {"out": np.full((4, 3, *X.shape[batch_dims + 2 :]), 77, "float32")} if given else {}
        with pytest.raises(IndexOutOfRangeError) as error:
            dmlops.gather_nd(X, indices, batch_dims=batch_dims, **out)
        assert str(error.value) == text
        assert all((array == 77).all() for array in out.values())


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "int32"])
@pytest.mark.parametrize("first", [0, 1, 6])
def test_indices_out_of_range_of_every_type(dtype, first):
    for outside in {"uint64": (2**63 + 5, 4), "uint32": (2**31 + 5, 4), "int32": (-(2**31), -5, 4)}[dtype]:
        indices = np.zeros((7, 1), dtype)
        indices[first:] = outside
        with pytest.raises(IndexOutOfRangeError, match=re.escape(report(X, indices, 0))):
            dmlops.gather_nd(X, indices)


def test_indices_out_of_range_where_there_is_nothing_to_write():
    for given in ({}, {"out": np.zeros((2, 0), "float32")}):
        with pytest.raises(IndexOutOfRangeError, match="coordinate 0 is 3, and dimension 0 of x has 3"):
            dmlops.gather_nd(np.ones((3, 0), "float32"), np.array([[2], [3]]), **given)


class TestArraysInATuple:
    """NumPy's own indexing takes an array per dimension; stacking them would answer another question."""

    @pytest.mark.parametrize("library", ["np", "torch", "jnp", "da"])
    def test_they_are_refused(self, library):
        stack = pytest.importorskip(
            {"np": "numpy", "jnp": "jax.numpy", "da": "dask.array"}.get(library, library)
        )
        arrays = tuple(stack.asarray([[0, 1], [2, 3]][i]) for i in range(2))
        # dmlops.gather_nd refuses lazy arrays of Dask as any argument.
        gathers = [] if library == "da" else [dmlops.gather_nd]
        if library in ("jnp", "da"):
            module = {"jnp": "jax", "da": "dask"}[library]
            gathers.append(pytest.importorskip(f"dmlops.integrations.{module}").gather_nd)
        for gather in gathers:
            for _ in range(3):
                for indices in (
                    arrays,
                    list(arrays),
                    [arrays, arrays],
                    [*arrays, np.array([0, 1])],
                    ([0, 1], arrays[1]),
                ):
                    remedy = rf"pass {library}\.stack\(indices, -1\) for one array per dimension"
                    with pytest.raises(
                        TypeError, match=rf"^gather_nd\.indices: got arrays in a \w+, .*{remedy}"
                    ):
                        gather(WHOLE, indices)
        if library != "da":
            x = stack.asarray(WHOLE)
            expected = WHOLE[[0, 1], [2, 3]]
            assert np.array_equal(dmlops.gather_nd(x, stack.stack(arrays, -1)), expected)

    def test_numbers_may_be_nested(self):
        one = (np.int64(1), 2, np.array(3))
        for indices, expected in (
            ([one], WHOLE[1:2, 2, 3]),
            (((1, 2, 3), one), WHOLE[[1, 1], 2, 3]),
            ((1, 2), WHOLE[1, 2]),
        ):
            assert np.array_equal(dmlops.gather_nd(WHOLE, indices), expected)
