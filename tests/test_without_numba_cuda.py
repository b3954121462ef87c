"""With the driver and cuda-core alone, stored kernels run on a GPU, and errors name the missing package."""

import os

import pytest

from tests.compiled import DESCRIPTORS
from tests.scripts import ROOT, run_script
from tests.test_cuda_first_call import WITHOUT_GPU

pytest.importorskip("cuda.core")


def run_without(packages, *codes, **environment):
    """Run a script where packages look as if they were not installed; return what it printed."""
    path = os.pathsep.join([str(ROOT / "tests" / "without"), str(ROOT)])
    return run_script(*codes, PYTHONPATH=path, DMLOPS_WITHOUT=" ".join(packages), **environment)


def test_cpu_calls():
    script = """
        import dmlops

        print(dmlops.top_k([3, 1, 2], 2).values.tolist(), dmlops.nonzero_coordinates([0, 5]).count)
        print(dmlops.gather_nd([3, 1, 2], [[2]]).tolist(), dmlops.diagonal_matrix(shape=(1, 2)).tolist())
    """
    assert run_without(["numba_cuda", "numba.cuda"], script) == "[3, 2] 1\n[2] [[1.0, 0.0]]\n"


def test_cuda_calls_whose_kernels_are_kept(tmp_path):
    script = """
        import dmlops

        # Numbers of elements and indices that the driver does not count.
        driver.cuStreamIsCapturing = lambda _: (
            real.CUresult(0), real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        )
        driver.cuMemAllocAsync = lambda size, stream: (real.CUresult(0), next(Array.places))
        x = Array((64, 200), "float32")
        results = [
            *dmlops.top_k(x, 5),
            dmlops.gather_nd(x, Array((9, 1), "int64"), mode="clip"),
            dmlops.diagonal_matrix(x),
            *dmlops.nonzero_coordinates(x, size=64),
        ]
        print(n_launched > 4, *(f"{type(array).__name__}{array.shape}" for array in results))
    """
    printed = run_without(
        ["numba", "llvmlite", "numba_cuda", "cuda.core"], WITHOUT_GPU, script, DMLOPS_CACHE_DIR=str(tmp_path)
    )
    shapes = ["(64, 5)", "(64, 5)", "(9, 200)", "(64, 200)", "(64, 2)", "()"]
    assert printed.strip() == " ".join(["True", *(f"DeviceArray{shape}" for shape in shapes)])


def test_no_driver_is_told():
    script = f"""
        import dmlops
        from tests.compiled import DESCRIPTORS

        try:
            dmlops.compile(DESCRIPTORS[{next(iter(DESCRIPTORS))!r}], device="cuda")
        except dmlops.UnsupportedFeatureError as error:
            print(error)
    """
    (printed,) = run_without(["numba_cuda", "numba.cuda"], script, CUDA_VISIBLE_DEVICES="").splitlines()
    assert printed.startswith("TopK1.device: got cuda:0, but the CUDA driver does not give that device")
    assert "nvidia-smi" in printed
