"""A workspace is for one execution at a time: if others write to it, only answers suffer.

The arrays lie between pages that nobody may touch, and each script runs in a process of its own.
"""

import pytest

from tests.marks import exhaustive
from tests.scripts import run_script

BEGIN = """
import signal, threading, time
import numpy as np
import dmlops
from tests.guarded import Guarded

def guarded(array):
    block = Guarded(array.shape, array.dtype)
    kept.append(block)
    block.array[...] = array
    return block.array

kept = []

signal.alarm(240)  # a process that hangs ends, with an exit status that fails the test
dmlops.set_num_threads(1)

def compiled(shape, k, axis, dtype):
    rng = np.random.default_rng(0)
    x = (40 * rng.standard_normal(shape)).astype(dtype)
    desc = dmlops.TopK1(input_tensor=dmlops.TensorDesc(x.dtype.name.upper(), shape), axis=axis, k=k,
                        axis_direction=dmlops.AxisDirection.DECREASING)
    return dmlops.compile(desc), x

def nonzero(shape, dtype):
    x = (np.random.default_rng(0).random(shape) < 0.3).astype(dtype)
    desc = dmlops.NonzeroCoordinates(input_tensor=dmlops.TensorDesc(x.dtype.name.upper(), shape))
    return dmlops.compile(desc), x

def placed(operator, x):
    tensors = {"input_tensor": guarded(x)}
    for name, desc in operator.outputs.items():
        tensors[name] = guarded(np.empty(desc.sizes, desc.data_type.name.lower()))
    return tensors
"""
OPERATORS = {
    "sort": "compiled((300, 5000), 700, 1, 'float32')",
    "sort wide": "compiled((40, 3000), 2000, 1, 'int64')",
    "rows": "compiled((20, 50257), 300, 1, 'float32')",
    "few of rows": "compiled((20, 50257), 50, 1, 'float32')",
    "short rows": "compiled((3000, 256), 8, 1, 'float32')",
    "short rows wide": "compiled((3000, 256), 8, 1, 'int64')",
    "columns": "compiled((9000, 64), 100, 0, 'float32')",
    "side by side": "compiled((4096, 256), 16, 0, 'float32')",
    "nonzero": "nonzero((300, 5000), 'float32')",
}
SHARED = """
workspace = guarded(np.zeros(operator.workspace_size, np.uint8))
ends = time.perf_counter() + 2

def work():
    tensors = placed(operator, x)
    while time.perf_counter() < ends:
        operator.execute(tensors, workspace=workspace)

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
SCRIBBLED = """
workspace = guarded(np.zeros(operator.workspace_size, np.uint8))
is_over = threading.Event()

def scribble():
    rng, words = np.random.default_rng(1), workspace[: workspace.size // 8 * 8].view(np.int64)
    while not is_over.is_set():
        kind = rng.integers(4)
        if kind == 0:
            words[:] = rng.integers(-(2**63), 2**63 - 1)
        elif kind == 1:
            words[rng.integers(0, words.size, 1000)] = rng.integers(-(2**63), 2**63 - 1, 1000)
        else:
            words[rng.integers(words.size) :][:5000] = rng.integers(-(2**20), 2**20)

thread = threading.Thread(target=scribble)
thread.start()
tensors, ends = placed(operator, x), time.perf_counter() + 2
while time.perf_counter() < ends:
    operator.execute(tensors, workspace=workspace)
is_over.set()
thread.join()
"""
RIGHT = """
tensors = placed(operator, x)
operator.execute(tensors, workspace=workspace)
alone = placed(operator, x)
operator.execute(alone)
for name in operator.outputs:
    if name != "output_coordinates_tensor":  # whose rows behind the count are undefined
        assert tensors[name].tobytes() == alone[name].tobytes()
print("done")
"""


@pytest.mark.parametrize("name", ["sort", *map(exhaustive, [*OPERATORS][1:])])
@pytest.mark.parametrize("use", [SHARED, SCRIBBLED], ids=["shared", "scribbled"])
def test_only_answers_suffer(use, name):
    script = f"operator, x = {OPERATORS[name]}\n"
    assert run_script(BEGIN, script, use, RIGHT).strip() == "done"
