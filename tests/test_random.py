"""Random problems on the CPU, compared with NumPy: by calls, and by plans whose workspace just suffices.

Every operand is flush against pages that end the process when they are touched, inputs are read-only, and
canaries fill the rest of their pages. `tests.random_cases` says how to run more problems.
"""

import sys

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel
from tests.data import DTYPES
from tests.guarded import Guarded
from tests.marks import ORDINARY_TYPES, exhaustive, nightly
from tests.plans import planned
from tests.random_cases import SEED, array_in, random_cases
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")
N_CALLS = 3  # the first binds, the second learns, the third replays


def launch(case, memory, rng):
    """Run the plan of a problem; its workspace begins at a multiple of 64, and may be some bytes longer."""
    plan, operands = planned(case.descriptor, case.options)
    scratch = Guarded((-(-plan.workspace_size // 64) * 64,), "uint8")
    scratch.fill(rng.integers(0, 256, scratch.array.size, np.uint8))
    absent = () if "input_tensor" in memory else (0,)
    addresses = [memory[field].ctypes.data + desc.offset * desc.data_type.bytes for field, desc in operands]
    plan.launch(*absent, *addresses, scratch.array.ctypes.data)
    scratch.check(f"the workspace of {case}")


def execute(case, memory, rng):
    """Execute the compiled descriptor of a problem, whose workspace lies anywhere."""
    operator = dmlops.compile(case.descriptor, feature_level=FeatureLevel.EXTENDED)
    tensors = {**operator.inputs, **operator.outputs}
    scratch = Guarded((operator.workspace_size,), "uint8", at_end=rng.random() < 0.5)
    scratch.fill(rng.integers(0, 256, scratch.array.size, np.uint8))
    arrays = {field: array_in(memory[field], desc) for field, desc in tensors.items()}
    operator.execute(arrays, scratch.array)
    scratch.check(f"the workspace of {case}")


def check(case, rng):
    """Run a problem by calls of its function, by a plan, and by its descriptor if that says everything."""
    guarded, memory = {}, {}
    for field, kept in case.before.items():
        guarded[field] = Guarded(kept.shape, "uint8", at_end=rng.random() < 0.5)
        memory[field] = guarded[field].fill(kept, read_only=not field.startswith("output_"))
    runs = [case.call] * N_CALLS + [lambda memory: launch(case, memory, rng)]
    if case.is_told_by_descriptor():
        runs.append(lambda memory: execute(case, memory, rng))
    for run in runs:
        for field, array in memory.items():
            if array.flags.writeable:
                array[...] = case.before[field]
        run(memory)
        case.check(memory)
        for field, each in guarded.items():
            each.check(f"{field} of {case}")


def check_random_cases(count, dtypes):
    """Run random problems; return how many there were."""
    n_problems = 0
    for number, case in random_cases(count, dtypes):
        check(case, np.random.default_rng(number))
        n_problems += 1
    return n_problems


@pytest.mark.parametrize("dtypes", [ORDINARY_TYPES, exhaustive(DTYPES)], ids=["four bytes", "all types"])
def test_random_cases(dtypes, capsys):
    n_problems = check_random_cases(60, dtypes)
    with capsys.disabled():
        print(f" {n_problems} random problems of seed {SEED} on the CPU", end="")
    assert n_problems


@pytest.mark.parametrize("dtypes", [exhaustive("ORDINARY_TYPES"), nightly("DTYPES")])
def test_scalar_kernels(dtypes):
    code = f"from tests import test_random; test_random.check_random_cases(60, test_random.{dtypes})"
    run_script(code, DMLOPS_SIMD="0")
