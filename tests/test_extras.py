"""The extras for GPUs go with each torch that we allow: torch pins NVIDIA's bindings to a version of its own.

pip is asked what it would install, and of that NVIDIA's packages for Python are installed and imported.
torch itself, of several gigabytes, is not.
"""

import json
import re
import subprocess
import sys
import tomllib

import pytest

from tests.scripts import ROOT, run_script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OLDEST = re.fullmatch(r"torch>=([\d.]+)", *EXTRAS["torch"])[1]
TIMEOUT_S = 900


def pip(*arguments):
    """Run pip, which has to succeed; return what it printed."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    # The oldest torch has packages of CUDA 12, as the newest has of CUDA 13.
    ("extra", "torch"),
    [("cuda12", f"torch=={OLDEST}.*"), ("cuda", "torch"), ("cuda", ""), ("cuda12", "")],
)
def test_the_extras_beside_a_torch(tmp_path, extra, torch):
    report = tmp_path / "report.json"
    wanted = [*EXTRAS[extra], *([torch] if torch else [])]
    pip("install", "--dry-run", "--ignore-installed", "--quiet", f"--report={report}", *wanted)
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    versions = {each["metadata"]["name"]: each["metadata"]["version"] for each in found}
    pins = [f"{name}=={version}" for name, version in versions.items() if re.match("cuda-[bcp]", name)]
    assert len(pins) == 3
    pip("install", "--quiet", "--no-deps", f"--target={tmp_path / 'packages'}", *pins)
    script = """
        import cuda.bindings.driver, cuda.core, cuda.core.utils, sys
        print(cuda.bindings.__file__, cuda.core.__file__)
    """
    printed = run_script(script, PYTHONPATH=str(tmp_path / "packages"))
    assert printed.count(str(tmp_path)) == 2
