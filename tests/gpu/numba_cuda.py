"""Numba's CUDA package, for tests of its arrays and launches; without it they are skipped."""

import importlib
import warnings

import pytest


def numba_cuda():
    """Return the module ``numba.cuda``."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its deprecations are not our errors
        return importlib.import_module("numba.cuda")
