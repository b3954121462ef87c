"""A first CUDA call whose kernels are in the cache does not import Numba."""

import pytest

from tests.scripts import run_script

pytest.importorskip("cuda.core")

# With a driver that agrees to everything, and cubins without code in the store.
WITHOUT_GPU = """
    import ctypes, importlib, os, sys
    import cuda.bindings
    import numpy as np
    from cuda.bindings import driver as real

    class Driver:
        properties = {
            "MAJOR": 9, "MINOR": 0, "COUNT": 132, "OPTIN": 227 << 10, "RATE": 3_201_000, "WIDTH": 6144
        }

        def __getattr__(self, name):
            return (lambda *_: (real.CUresult(0), 1)) if name.startswith("cu") else getattr(real, name)

        def cuDeviceGetAttribute(self, attribute, device):
            return real.CUresult(0), self.properties[attribute.name.rpartition("_")[2]]

        def cuPointerGetAttribute(self, attribute, pointer):
            return real.CUresult(0), 0

        def cuCtxGetDevice(self):
            return real.CUresult(0), 0

    class Array:
        places = iter(range(1 << 40, 1 << 60, 1 << 40))

        def __init__(self, shape, dtype):
            self.shape, self.dtype, data = shape, np.dtype(dtype), (next(self.places), False)
            self.__cuda_array_interface__ = {
                "version": 3, "shape": shape, "typestr": np.dtype(dtype).str, "data": data,
            }

    cuda.bindings.driver = driver = Driver()
    from tests import inside
    from tests.inside import OPERATORS, cuda, cuda_driver, kernel_store, once

    launch, n_launched = inside.launch, 0

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def entry(*_):
        global n_launched
        n_launched += 1
        return 0

    launch.launch_entry = lambda: entry
    for operator in OPERATORS.values():
        for variant in inside.cuda_kernels(operator.name).variants():
            with once.LOCK:
                kernel_store.find_or_compile(cuda.key(variant, "sm_90"), lambda: b"\\x7fELF")
"""
SAY_WHAT_WAS_IMPORTED = """
    print(n_launched, sorted({"numba", "cuda.core"} & sys.modules.keys()))
"""
EXECUTE = """
    from dmlops import FeatureLevel, compile
    from tests.compiled import DESCRIPTORS, numpy_dtype

    for descriptor in DESCRIPTORS.values():
        operator = compile(descriptor, device="cuda", feature_level=FeatureLevel.EXTENDED)
        tensors = {**operator.inputs, **operator.outputs}
        arrays = {key: Array(desc.sizes, numpy_dtype(desc.data_type)) for key, desc in tensors.items()}
        workspace = Array((operator.workspace_size + 256,), "uint8")
        for _ in range(70):
            operator.execute(arrays, workspace=workspace)
"""
CALL = """
    import dmlops

    x = Array((64, 200), "float32")
    for _ in range(100):  # a module imported by a later call would stall it
        dmlops.top_k(x, 5, out=(Array((64, 5), "float32"), Array((64, 5), "uint32")))
    dmlops.gather_nd(x, Array((9, 1), "int64"), mode="clip", out=Array((9, 200), "float32"))
    dmlops.diagonal_matrix(x, out=Array((64, 200), "float32"))
    dmlops.nonzero_coordinates(
        Array((64,), "float32"), size=64, out=(Array((64, 1), "uint32"), Array((1,), "uint32"))
    )
"""


@pytest.mark.parametrize("calls", [EXECUTE, CALL], ids=["compiled", "functions"])
def test_kernels_of_the_cache_need_no_numba(calls, tmp_path):
    script = WITHOUT_GPU + calls + SAY_WHAT_WAS_IMPORTED
    n_launched, imported = run_script(script, DMLOPS_CACHE_DIR=str(tmp_path)).split(maxsplit=1)
    assert int(n_launched) > 0
    assert imported.strip() == "[]"


IN_WHEEL = """
    from pathlib import Path

    from tests.inside import kernel_archive

    kernel_store.WHEEL = Path(os.environ["DMLOPS_CACHE_DIR"])
    brought = {
        variant.label: b"from the wheel"
        for operator in OPERATORS.values()
        for variant in inside.cuda_kernels(operator.name).variants()
    }
    path = kernel_store.WHEEL / "sm_86.kernels"
    kernel_archive.write(path, kernel_archive.Origin("cuda", "sm_86", cuda.sources(), ""), brought)
    kernel_store.wheel_targets.cache_clear()
    Driver.properties |= {"MAJOR": 8, "MINOR": 9}
    loaded = set()

    def load(code, *_):
        loaded.add(code)
        return real.CUresult.CUDA_SUCCESS, 1

    Driver.cuLibraryLoadData = staticmethod(load)
"""


def test_kernels_of_the_wheel_need_neither_cache_nor_numba(tmp_path):
    script = WITHOUT_GPU + IN_WHEEL + CALL + "    print(loaded)" + SAY_WHAT_WAS_IMPORTED
    loaded, launched = run_script(script, DMLOPS_CACHE_DIR=str(tmp_path)).splitlines()
    assert loaded == "{b'from the wheel'}"
    assert launched.endswith(" []")


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("cuLibraryLoadData", "CUDA_ERROR_NO_BINARY_FOR_GPU"),
        ("cuKernelGetFunction", "CUDA_ERROR_INVALID_IMAGE"),
    ],
)
def test_what_the_driver_refuses_is_compiled(function, answer, tmp_path):
    """With one warning for all kernels, which says what the driver had against them."""
    refusing = f"""
    last = [b""]

    def load(code, *_):
        last[0] = code
        return answer("cuLibraryLoadData")

    def answer(function):
        is_refused = function == {function!r} and last[0] == b"from the wheel"
        loaded.add(last[0])
        return (real.CUresult.{answer} if is_refused else real.CUresult.CUDA_SUCCESS), 1

    Driver.cuLibraryLoadData = staticmethod(load)
    Driver.cuKernelGetFunction = staticmethod(lambda _: answer("cuKernelGetFunction"))
    cuda.compiled = lambda variant, arch: b"compiled for " + arch.encode()
    """
    script = WITHOUT_GPU + IN_WHEEL + refusing + CALL + "    print(sorted(loaded))"
    output, log = run_script(script, errors=True, DMLOPS_CACHE_DIR=str(tmp_path))
    assert output.strip() == "[b'compiled for sm_89', b'from the wheel']"
    assert log.count("compiles kernels again") == 1
    assert f"the driver refuses what the wheel has for sm_89 ({answer})" in log


def test_without_numba_cuda_the_extra_is_named(tmp_path):
    script = """
        import sys
        from dmlops import UnsupportedFeatureError
        from tests.inside import cuda, once, variant

        sys.modules["numba_cuda"] = None
        for _ in range(2):
            try:
                with once.LOCK:
                    cuda.artifact(variant.Variant("top_k_block", "any:thing", (4, 256)), "sm_87")
            except UnsupportedFeatureError as error:
                print(error)
    """
    first, second = run_script(script, DMLOPS_CACHE_DIR=str(tmp_path)).splitlines()
    assert first.startswith("dmlops: the kernel dmlops_top_k_block_4_256 must be compiled for sm_87, but ")
    assert "numba-cuda is not installed" in first
    assert 'pip install ".[cuda-jit]" (or ".[cuda12-jit]" for a CUDA 12 driver)' in first
    assert second == first


def test_without_cuda_packages_the_extra_is_named():
    script = """
        import sys, dmlops
        from tests.compiled import DESCRIPTORS
        sys.modules["cuda.bindings"] = None
        try:
            dmlops.compile(DESCRIPTORS["top_k-rows"], device="cuda")
        except dmlops.UnsupportedFeatureError as error:
            print(error)
    """
    told = "device: got cuda:0, but the CUDA packages are not installed (cuda.bindings is missing)"
    assert run_script(script).startswith(f'TopK1.{told}; type: pip install ".[cuda-jit]"')
    # A wheel that has kernels needs no compilers.
    wheel = """
        from pathlib import Path
        from tests.inside import kernel_store
        kernel_store.WHEEL = Path("/site-packages/dmlops/kernels")
        kernel_store.wheel_targets = lambda: ("sm_90",)
    """
    assert 'type: pip install "dmlops[cuda]"' in run_script(wheel, script)
