"""CPU kernels compiled for aarch64, on any machine: they use vectors, and call only what every process has.

What the code does is tested where it runs; docs/how_it_works.md says how to run the tests under emulation.
"""

import json
import re

import pytest

from tests.aarch64 import LINUX, MACOS, all_kernels
from tests.inside import processor
from tests.marks import COMPILE_ALL
from tests.scripts import run_script

KERNELS = all_kernels()
# Native calls; shuffles, and a vector copied from and to any address; masks of vectors.
FEW = (
    "native_call_pi64_i64_i64",
    "diagonal_matrix_2_True_pi64_i64_i64_pu8_pu8",
    "nonzero_mark_pi64_i64_pu16_pu8",
)
GROUPS = [tuple(KERNELS)[i::8] for i in range(8)] if COMPILE_ALL else []
# These move single words.
SCALAR = re.compile(r"native_(call|look)_")

COMPILE = """
    import json
    import llvmlite.binding as llvm
    from tests.aarch64 import all_kernels, compile_for

    compile_for({triple!r})
    llvm.TargetMachine.emit_object = lambda machine, module: machine.emit_assembly(module).encode()

    from tests.inside import compile_kernel
    kernels = all_kernels()
    print(json.dumps({{label: compile_kernel(kernels[label]).decode() for label in {labels!r}}}))
"""
NEON = re.compile(r"\bv\d+\.(16b|8h|4s|2d)\b|\.(16b|8h|4s|2d)\s+v\d+")
LABEL = re.compile(r"^([\w.$]+):", re.MULTILINE)
USED = re.compile(r"\sbl?\s+([\w.$]+)|:got:([\w.$]+)|([\w.$]+)@GOTPAGE\b")
C_FUNCTIONS = {"memcpy", "memmove", "memset", "bzero"}  # the last is how macOS sets memory to zero


def used_elsewhere(assembly):
    """Return the names that assembly uses and does not define."""
    used = {name for names in USED.findall(assembly) for name in names if name}
    return used - set(LABEL.findall(assembly))


@pytest.mark.exhaustive
@pytest.mark.parametrize("labels", [FEW, *GROUPS], ids=lambda labels: f"from_{labels[0]}")
@pytest.mark.parametrize(("triple", "prefix"), [(LINUX, ""), (MACOS, "_")], ids=["linux", "macos"])
def test_code_for_aarch64(triple, prefix, labels):
    script = COMPILE.format(triple=triple, labels=labels)
    code = json.loads(run_script(script, DMLOPS_SIMD="1", **processor.environment("aarch64")))
    assert list(code) == list(labels)
    for label, assembly in code.items():
        assert f"\n{prefix}dmlops_entry:" in assembly, label
        assert bool(NEON.search(assembly)) != bool(SCALAR.match(label)), label
        names = {name.removeprefix(prefix) for name in used_elsewhere(assembly)}
        of_python = {name for name in names if KERNELS[label].uses_python and name.startswith("Py")}
        assert names - of_python <= C_FUNCTIONS, label
