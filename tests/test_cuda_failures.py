"""The state that a failing CUDA call leaves behind, with a stand-in for the driver."""

import tempfile

import pytest

from tests.scripts import run_script
from tests.test_cuda_first_call import WITHOUT_GPU

pytest.importorskip("cuda.core")

# Every call of the driver by name and arguments; the count that is read back is 0.
TAKING_NOTES = """
    notes = []
    word = ctypes.create_string_buffer(8)

    def note(name, result):
        def call(*arguments):
            notes.append((name, *map(int, arguments[:2])))
            return result
        return call

    success, failure = real.CUresult(0), real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    none = real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    active = real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    driver.cuMemHostAlloc = lambda size, flags: (success, {8: ctypes.addressof(word)}[size])
    driver.cuStreamIsCapturing = lambda handle: (success, none)
    driver.cuMemAllocAsync = note("allocate", (success, 1 << 62))
    driver.cuMemFreeAsync = note("free", (success,))
    driver.cuMemcpyDtoHAsync = note("copy", (success,))
    driver.cuStreamSynchronize = note("wait", (success,))
    driver.cuEventRecord = note("record", (success,))
    driver.cuEventQuery = note("query", (success,))
    driver.cuEventDestroy = note("destroy", (success,))

    import dmlops
    from tests.inside import CudaArrayInterface

    CudaArrayInterface.empty = lambda self, sizes, data_type, device: Array(sizes, "uint8")
    CudaArrayInterface.address = lambda self, array: (
        array.pointer if hasattr(array, "pointer") else array.__cuda_array_interface__["data"][0]
    )

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    x = Array((1000, 1000), "float32")
"""


def run(*codes):
    """Run pieces of code with a driver that takes notes; return what they printed, by lines."""
    with tempfile.TemporaryDirectory() as folder:  # the kernels have no code, and must not be kept
        return run_script(WITHOUT_GPU, TAKING_NOTES, *codes, DMLOPS_CACHE_DIR=folder).splitlines()


def test_scratch_is_freed_and_nothing_runs_after_an_interrupt():
    printed = run("""
        for moment in ("cuMemcpyDtoHAsync", "cuStreamSynchronize"):
            before = getattr(driver, moment)
            setattr(driver, moment, interrupt)
            notes.clear()
            try:
                dmlops.nonzero_coordinates(x)
            except Interrupted:
                pass
            except BaseException as error:
                print(repr(error))
            setattr(driver, moment, before)
            print([name for name, *_ in notes])
        notes.clear()
        dmlops.nonzero_coordinates(x)
        print([name for name, *_ in notes])
        print(len(cuda_driver._pinned))
    """)
    # The second interrupt arrives during the wait, which is therefore not noted.
    assert printed[0] == "['allocate', 'free', 'wait']"
    assert printed[2] == "['allocate', 'copy', 'wait', 'free']"
    assert printed[3] == "1"


def test_an_error_of_the_library_frees_the_scratch():
    printed = run("""
        empty = CudaArrayInterface.empty

        def no_memory(self, sizes, data_type, device):
            if len(sizes) == 2:
                raise MemoryError("no memory")
            return empty(self, sizes, data_type, device)

        CudaArrayInterface.empty = no_memory
        try:
            dmlops.nonzero_coordinates(x)
        except MemoryError as error:
            print(error)
        print([name for name, *_ in notes])
    """)
    assert printed == ["no memory", "['allocate', 'copy', 'wait', 'free', 'wait']"]


def test_no_wait_after_an_error_in_a_capture():
    printed = run("""
        driver.cuStreamIsCapturing = lambda handle: (success, active)
        out = Array((900, 2), "int64"), Array((), "int64")
        launched = launch.launch_entry
        launch.launch_entry = lambda: interrupt
        try:
            dmlops.nonzero_coordinates(x, out=out)
        except Interrupted:
            print([name for name, *_ in notes])
        launch.launch_entry = launched
        try:
            dmlops.nonzero_coordinates(x)
        except dmlops.InvalidDescriptorError as error:
            print(str(error)[:36])
    """)
    assert printed == ["['allocate', 'free']", "nonzero_coordinates.size: got None, "]


def test_lent_arrays_are_kept_until_the_driver_says_that_the_call_has_ended():
    printed = run("""
        for status in (real.CUresult.CUDA_ERROR_NOT_READY, failure, success):
            driver.cuEventQuery = note("query", (status,))
            with cuda_driver.ordered(5, set(), [x]):
                pass
            print(len(cuda_driver._lent))
        notes.clear()
        driver.cuStreamIsCapturing = lambda handle: (success, active)
        with cuda_driver.ordered(5, {7}, [x]):
            pass
        print([name for name, *_ in notes], len(cuda_driver._lent))
    """)
    # A graph's inputs are the caller's to keep, and a query would end the capture.
    assert printed == ["1", "2", "0", "['record', 'destroy', 'record', 'destroy'] 0"]


BAD_INTERFACES = {
    "no_data": ("del interface['data']", "cannot be read"),
    "data_none": ("interface['data'] = None", "cannot be read"),
    "address_none": ("interface['data'] = (None, False)", "not in the memory of a CUDA device"),
    "address_0": ("interface['data'] = (0, False)", "not in the memory of a CUDA device"),
    "address_negative": ("interface['data'] = (-8, False)", "not in the memory of a CUDA device"),
    "address_too_large": ("interface['data'] = (1 << 64, False)", "not in the memory of a CUDA device"),
    "shape_none": ("interface['shape'] = None", "cannot be read"),
    "type_unknown": ("interface['typestr'] = '<q9'", "cannot be read"),
    "type_without_size": ("interface['typestr'] = '|V0'", "void"),
    "no_interface": ("bad.__cuda_array_interface__ = None", "cannot be read"),
    "mask": ("interface['mask'] = Array((8,), 'uint8')", "the mask would be lost"),
    "strides": ("interface['strides'] = (6,)", "strides must be multiples"),
    "unaligned": ("interface['data'] = ((1 << 50) + 2, False)", "not a multiple of the element size"),
}


def test_bad_interfaces():
    printed = run(f"""
        for change in {[change for change, _ in BAD_INTERFACES.values()]}:
            bad = Array((8,), "float32")
            interface = bad.__cuda_array_interface__
            exec(change)
            for field, call in (
                ("top_k.x", lambda: dmlops.top_k(bad, 2)),
                ("diagonal_matrix.out", lambda: dmlops.diagonal_matrix(x, out=bad)),
            ):
                try:
                    call()
                except (TypeError, dmlops.InvalidDescriptorError) as error:
                    print(str(error).startswith(field + ": got "), n_launched, error)
    """)
    texts = [text for _, text in BAD_INTERFACES.values() for _ in range(2)]
    for line, text in zip(printed, texts, strict=True):
        assert line.startswith("True 0 ")
        assert text in line
