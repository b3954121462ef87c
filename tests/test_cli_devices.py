"""Devices on the command line: the choice of a device, and the output of `info` and `warmup`.

Stand-ins replace the GPUs, so that these tests also run on machines without one.
"""

import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests import inside
from tests.command_line import assert_refused, replace_gpus
from tests.inside import cuda, warmup
from tests.scripts import ROOT, run_script

pytestmark = pytest.mark.quick

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)


def gpu(number=0, capability=(9, 0)):
    return SimpleNamespace(
        name=f"GPU {number}",
        device_id=number,
        compute_capability=capability,
        properties=SimpleNamespace(multiprocessor_count=132),
    )


@pytest.fixture
def gpus(monkeypatch):
    """Play GPUs: three, two of them of a kind."""
    devices = [gpu(), gpu(1, (12, 0)), gpu(2)]
    replace_gpus(monkeypatch, lambda: devices)


@pytest.mark.parametrize(
    ("data", "options", "is_on_cpu"),
    [(X, (), False), (X + 1j, (), True), (X + 1j, ("--device", "cuda"), False)],
    ids=["int32", "complex128", "complex128 on cuda"],
)
def test_types_that_a_gpu_does_not_take_stay_on_the_cpu(command, gpus, data, options, is_on_cpu):
    """Other calls run on the GPU, or are refused where it is but played."""
    np.save("x.npy", data)
    code, printed, error = command("nonzero", "x.npy", *options)
    assert ("(CPU)" in printed) == is_on_cpu
    assert (code, error) == (0, "") if is_on_cpu else code in (0, 1)


def test_info_names_each_gpu(command, gpus, monkeypatch):
    driver = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (0, 12090))
    _, printed, _ = command("info")
    assert re.search(r"driver serves +CUDA 12\.9\n", printed)
    assert re.search(r"cuda:0 +GPU 0, sm_90, 132 multiprocessors\n", printed)
    assert re.search(r"cuda:1 +GPU 1, sm_120, 132 multiprocessors\n", printed)
    assert re.search(r"cuda:2 +GPU 2, ", printed)


def test_info_explains_what_runs(command, gpus, monkeypatch):
    target = inside.variant.typical_target
    monkeypatch.setattr(cuda, "target", lambda *place: {(0, "info"): target("sm_90")}[place])
    printed = {}
    for arch in ((), ("--arch", "sm_90"), ("--arch", "sm_75")):
        code, printed[arch], _ = command("info", "--explain", "64,50257,50,float32", *arch)
        assert code == 0
    assert printed[()] == printed["--arch", "sm_90"]
    assert re.match(
        r"one_pass \(sm_90, 132 multiprocessors\): the fastest, .* measured on sm_90\n", printed[()]
    )
    assert "Next would be block, " in printed[()]
    assert "by a rule, because nothing like it was measured on sm_75" in printed["--arch", "sm_75"]
    assert_refused(
        command("info", "--arch", "sm_90"), "--arch sm_90: it says where top_k would run; --explain"
    )


ALGORITHMS = (
    "rounds",
    "partition",
    "one_pass",
    "sampled",
    "block",
    "cluster",
    "grid",
    "columns",
    "sort",
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_user_forces_an_algorithm(command, monkeypatch, algorithm):
    n = 100 if algorithm == "rounds" else 9000
    line = "info", "--explain", f"64,{n},3,float32", "--arch", "sm_90"
    chosen = command(*line)
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", algorithm)
    told = f"{algorithm} (sm_90, 132 multiprocessors): because DMLOPS_TOP_K_ALGORITHM asks for it\n"
    assert command(*line) == (0, told, "")
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "")
    assert command(*line) == chosen


def test_algorithms_that_cannot_be_forced(command, monkeypatch):
    line = "info", "--explain", "64,100,70,float32", "--arch", "sm_90"
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "quick")
    assert_refused(
        command(*line), "ALGORITHM: got 'quick', ", f" must be one of {', '.join(ALGORITHMS)}, copy"
    )
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "rounds")
    assert_refused(command(*line), "algorithm 'rounds' does not take k 70 of rows of 100, by value")


def test_info_explains_an_architecture_without_the_packages_for_gpus():
    """The plans of other devices can be asked for without a GPU and without a compiler."""
    path = os.pathsep.join([str(ROOT / "tests" / "without"), str(ROOT)])
    script = """
        from tests.scripts import run_main

        print(run_main("dmlops", "info", "--explain", "64,50257,50,float32", "--arch", "sm_90"))
    """
    without = "cuda cuda.core cuda.bindings numba numba_cuda llvmlite"
    printed = run_script(script, PYTHONPATH=path, DMLOPS_WITHOUT=without).splitlines()
    assert printed[0].startswith("one_pass (sm_90, 132 multiprocessors): the fastest, ")
    assert printed[-1] == "0"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("1,9,2,float", "--arch", "sm_90"), "--explain 1,9,2,float: it must be ROWS,N,K,TYPE, such as "),
        (("1,9,float32", "--arch", "sm_90"), "--explain 1,9,float32: it must be ROWS,N,K,TYPE, such as "),
        (("0,9,2,int8", "--arch", "sm_90"), "--explain 0,9,2,int8: it must be ROWS,N,K,TYPE, such as "),
        (("1,9,10,int8", "--arch", "sm_90"), "TopK1.k: got 10, but axis 1 of input_tensor has 9 elements"),
        (("1,9,2,int8", "--arch", "90"), "--arch 90: it must be sm_ and a compute capability from 7.5 on, "),
        (("1,9,2,int8", "--arch", "sm_1000"), "--arch sm_1000: it must be sm_ and a compute capability "),
        (("1,9,2,int8", "--arch", "sm_90", "--json"), "--json: what --explain says is a line of text"),
        (("1,9,2,int8", "--arch", "sm_72"), "--arch sm_72: it must be sm_ and a compute capability from"),
    ],
)
def test_what_info_cannot_explain(command, options, error):
    code, _, printed = command("info", "--explain", *options)
    assert code == 1
    assert error in printed


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["CPU", "sm_120", "sm_90"]),
        (("--device", "cpu"), ["CPU"]),
        (("--device", "cuda"), ["sm_120", "sm_90"]),
    ],
)
def test_warmup_compiles_once_for_each_kind_of_device(command, gpus, monkeypatch, tmp_path, options, names):
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path / "new" / "cache"))
    compiled = []
    monkeypatch.setattr(warmup, "_compile", lambda name, tasks, n_jobs: compiled.append((name, n_jobs)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    if "cpu" not in options:
        pytest.importorskip("cuda.core")
    for jobs in (1, 3, 10**9):
        code, _, error = command("warmup", *options, "--jobs", jobs)
        assert (code, error) == (0, "")
    assert compiled == [(name, n_jobs) for n_jobs in (1, 3, 8) for name in names]


@pytest.mark.parametrize(
    ("get_all_devices", "reason"),
    [(None, "CUDA needs cuda-core: pip install "), (list, "the NVIDIA driver finds no device")],
    ids=["no package", "no device"],
)
def test_each_command_tells_why_it_has_no_gpu(command, monkeypatch, get_all_devices, reason):
    """An error where it was asked for one; otherwise the CPU is used."""
    if get_all_devices:
        replace_gpus(monkeypatch, get_all_devices)
    else:
        monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setattr(warmup, "_compile", lambda *_: pytest.fail("kernels were compiled in vain"))
    np.save("x.npy", X)
    gpus = [("top-k", "x.npy", "-k", 1, "--device", "cuda"), ("demo", "--device", "cuda")]
    gpus += [("warmup", "--device", "cuda"), ("info", "--explain", "1,9,2,int8")]
    for line in [*gpus, ("warmup", "--arch", "sm_90")] if get_all_devices is None else gpus:
        assert_refused(command(*line), reason)
    assert command("top-k", "x.npy", "-k", 1)[0] == 0
    code, printed, _ = command("info")
    assert code == 0
    assert f" none: {reason}" in printed
