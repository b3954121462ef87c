"""torch tensors that are not plain are refused, and the process survives."""

import subprocess
import sys

import pytest

from tests.conftest import HAS_GPU
from tests.scripts import ROOT, TIMEOUT_S

pytest.importorskip("torch")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_others_are_refused(device):
    if device == "cuda" and not HAS_GPU:
        pytest.skip("there is no GPU")
    command = [sys.executable, "-m", "tests.no_plain_tensors", device]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
