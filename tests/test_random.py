"""Random problems on the CPU, against NumPy; see `tests.random_cases` for how to ask for more of them."""

import numpy as np

from dmlops import dispatch
from dmlops.memory import CPU
from tests.random_cases import SEED, random_cases

FENCE = 64
ALIGNMENT = 256


def fenced(content, lead=0):
    """Return a copy of bytes between fences, and all of that memory; `lead` bytes off the alignment."""
    whole = np.full(content.size + 2 * FENCE + ALIGNMENT + lead, 0xA5, np.uint8)
    start = -(whole.ctypes.data + FENCE) % ALIGNMENT + FENCE + lead
    inner = whole[start : start + content.size]
    inner[...] = content
    return inner, whole


def execute(case, rng):
    """Run a problem on the CPU, all of its memory between fences."""
    plan, operands = dispatch.plan(case.descriptor, CPU, case.options)
    memory = {
        field: fenced(case.before[field], desc.data_type.bytes * int(rng.integers(16)))
        for field, desc in operands
    }
    scratch, around = fenced(rng.integers(0, 256, plan.workspace_size, np.uint8))
    memory["workspace"] = scratch, around
    addresses = [
        memory[field][0].ctypes.data + desc.offset * desc.data_type.bytes for field, desc in operands
    ]
    absent = () if "input_tensor" in memory else (0,)
    plan.launch(*absent, *addresses, scratch.ctypes.data)
    for field, (inner, whole) in memory.items():
        inside = inner.copy()
        inner[...] = 0xA5
        assert (whole == 0xA5).all(), f"{case}\nthe fence around {field} is broken"
        inner[...] = inside
    case.check({field: memory[field][0] for field in case.before})


def test_random_cases(capsys):
    count = 0
    for number, case in random_cases(60):
        execute(case, np.random.default_rng(number))
        count += 1
    with capsys.disabled():
        print(f" {count} random problems of seed {SEED} on the CPU", end="")
    assert count
