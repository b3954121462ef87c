"""The native part of the fast path refuses objects that only look like the arrays of an earlier call."""

import numpy as np
import pytest

import dmlops

pytestmark = pytest.mark.quick


def test_masked_arrays():
    x = np.arange(24, dtype="float32").reshape(4, 6)
    out = np.empty_like(x)
    for _ in range(4):
        dmlops.diagonal_matrix(x, value=3, out=out)
        dmlops.diagonal_matrix(x, value=3)
    masked = np.ma.masked_array(x, mask=x > 3)
    with pytest.raises(TypeError, match="mask"):
        dmlops.diagonal_matrix(masked, value=3, out=out)
    with pytest.raises(TypeError, match="mask"):
        dmlops.diagonal_matrix(masked, value=3)
    with pytest.raises(TypeError, match="mask"):
        dmlops.diagonal_matrix(x, value=3, out=np.ma.masked_array(out, mask=x > 3))
