"""Sources of kernels for a GPU besides the cache: Numba, and the archives of a wheel."""

from importlib.util import find_spec

import pytest

from tests.scripts import ROOT

CAN_COMPILE = find_spec("numba_cuda") is not None
ARE_SHIPPED = any(ROOT.glob("dmlops/kernels/sm_*.kernels"))
"""Whether the package under test was built with kernels: then nothing is compiled, and Numba not imported."""

NO_COMPILER = "numba-cuda is not installed"
needs_compilations = pytest.mark.skipif(
    not CAN_COMPILE or ARE_SHIPPED, reason="the kernels are in the package" if CAN_COMPILE else NO_COMPILER
)
