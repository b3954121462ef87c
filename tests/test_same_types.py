"""The type of a result is that of the caller's own array, whatever equal types the process saw before."""

import itertools

import numpy as np
import pytest

import dmlops

FIELDS = [("a", "<i4"), ("b", "<f4")]
SECONDS = np.dtype("M8[s]")
# Types of one group are equal to NumPy.
GROUPS = {
    "records": (
        np.dtype(FIELDS),
        np.dtype((np.record, FIELDS)),
        np.dtype(FIELDS, align=True),
        np.dtype(FIELDS, metadata={"unit": "m"}),
        np.dtype([("a", np.dtype("<i4", metadata={"unit": "m"})), FIELDS[1]]),
        np.dtype([("a", np.dtype("<i4", metadata={"unit": "s"})), FIELDS[1]]),
    ),
    "fields of records": tuple(
        np.dtype([("n", inner), ("s", inner, (2,))])
        for inner in (FIELDS, (np.record, FIELDS), np.dtype(FIELDS, align=True))
    ),
    "dates": (SECONDS, *(np.dtype(SECONDS, metadata={"tz": zone}) for zone in ("UTC", "CET"))),
    "durations": (np.dtype("m8[s]"), np.dtype("m8[s]", metadata={"of": 1})),
}


def described(dtype):
    """Return all that tells a type from one that is equal, in plain values."""
    metadata = None if dtype.metadata is None else dict(dtype.metadata)
    if dtype.subdtype is not None:
        return metadata, dtype.shape, described(dtype.base)
    fields = dtype.fields and [(name, described(dtype.fields[name][0])) for name in dtype.names]
    return dtype.type, dtype.isalignedstruct, metadata, fields


def results(dtype):
    """Return results of that type of every function that can have one."""
    x = np.zeros((3, 4), dtype)
    yield dmlops.gather_nd(x, np.array([[1], [0]]))
    yield dmlops.gather_nd(x, np.array([[1, 9]]), mode="fill")
    yield dmlops.diagonal_matrix(x, value=0)
    yield dmlops.tril(x)
    yield dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype, value=0)
    yield dmlops.diagonal_matrix(shape=(2, 2), like=x, value=0)
    yield dmlops.gather_nd(x[:, ::2], np.array([[1], [0]]))
    if dtype.kind in "mM":
        yield dmlops.top_k(x, 2).values
        yield dmlops.top_k(x, 2, lengths=[0, 1, 2]).values


@pytest.mark.parametrize("group", GROUPS)
def test_results_have_the_type_of_this_call(group):
    types = GROUPS[group]
    assert len({str(described(dtype)) for dtype in types}) == len(types)
    for first, second in itertools.permutations(types, 2):
        assert first == second
        for dtype in (first, first, second, first, second):
            for result in results(dtype):
                assert described(result.dtype) == described(dtype)
