"""Random problems on the CPU, compared with NumPy; `tests.random_cases` says how to run more of them."""

import numpy as np

from dmlops.calls import dispatch
from dmlops.devices.memory import CPU
from tests.plans import Fenced
from tests.random_cases import SEED, random_cases


def execute(case, rng):
    """Run a problem on the CPU, all of its memory between fences."""
    plan, operands = dispatch.plan(case.descriptor, CPU, case.options)
    memory = {
        field: Fenced(case.before[field], desc.data_type.bytes * int(rng.integers(16)))
        for field, desc in operands
    }
    scratch = memory["workspace"] = Fenced(rng.integers(0, 256, plan.workspace_size, np.uint8))
    addresses = [
        memory[field].array.ctypes.data + desc.offset * desc.data_type.bytes for field, desc in operands
    ]
    absent = () if "input_tensor" in memory else (0,)
    plan.launch(*absent, *addresses, scratch.array.ctypes.data)
    for field, fenced in memory.items():
        fenced.check(f"{case}\nthe fence around {field} is broken")
    case.check({field: memory[field].array for field in case.before})


def test_random_cases(capsys):
    count = 0
    for number, case in random_cases(60):
        execute(case, np.random.default_rng(number))
        count += 1
    with capsys.disabled():
        print(f" {count} random problems of seed {SEED} on the CPU", end="")
    assert count
