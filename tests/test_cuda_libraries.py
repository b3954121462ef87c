"""CuPy and streams on a machine without a GPU: stand-ins for the library and for the driver."""

import pytest

from tests import test_cuda_failures

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.exhaustive

# Arrays that lie in host memory, which nothing reads: no kernel is launched.
LIBRARIES = """
    import types
    from contextlib import contextmanager

    @contextmanager
    def within(what):
        notes.append((f"{what}:",))
        yield
        notes.append((f"end of {what};",))

    copied = []

    class CuPyArray:
        __module__ = "cupy"

        def __init__(self, shape, dtype, data=None, strides=None):
            memory = None if data is None else (ctypes.c_char * 4096).from_address(data.ptr)
            host = self.host = np.ndarray(shape, dtype, memory, strides=strides)
            self.shape, self.dtype = host.shape, host.dtype
            self.strides, self.itemsize = host.strides, host.itemsize
            pointer = host.ctypes.data if data is None else data.ptr
            self.data = types.SimpleNamespace(ptr=pointer, device_id=0)

        def of(self, host):
            found = CuPyArray(host.shape, host.dtype)
            found.host[...] = host
            return found

        def copy(self):
            notes.append(("copy",))
            copied.append(self.host.tobytes())
            return self.of(self.host)

        def view(self, dtype):
            return self if dtype is CuPyArray else self.of(self.host.view(dtype))

        def reshape(self, shape):
            return self.of(self.host.reshape(shape))

    class External:
        @classmethod
        def from_external(cls, stream):
            return within("stream {} {}".format(*stream.__cuda_stream__()))

    def empty(shape, dtype):
        notes.append(("empty", *shape))
        return CuPyArray(shape, dtype)

    sys.modules["cupy"] = types.SimpleNamespace(
        ndarray=CuPyArray,
        empty=empty,
        cuda=types.SimpleNamespace(
            Device=lambda number: within(f"device {number}"),
            Stream=External,
            get_current_stream=lambda number: types.SimpleNamespace(ptr=9 + number),
        ),
    )

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def put(config, *_):
        notes.append(("launch", ctypes.c_uint64.from_address(config + 32).value))
        return 0

    launch.launch_entry = lambda: put
    driver.cuEventCreate = lambda _: (success, 1 << 20)
    driver.cuEventRecord = lambda event, stream: notes.append(("record", stream)) or (success,)
    driver.cuStreamWaitEvent = lambda *of: notes.append(("wait", of[0])) or ({0: success}[of[2]],)

    def told():
        found = [" ".join(map(str, each)) for each in notes if each[0] not in ("allocate", "free", "destroy")]
        notes.clear()
        return ", ".join(found)
"""


def run(script):
    """Run a script with the stand-ins; return what it printed, by lines."""
    return test_cuda_failures.run(LIBRARIES, script)


def test_cupy():
    printed = run("""
        x = CuPyArray((3, 40), "float32")
        values, indices = dmlops.top_k(x, 2)
        print(type(values) is type(indices) is CuPyArray, values.shape, indices.dtype, told())
        dmlops.top_k(x, 2, stream=5)
        print(told())
        x.host.view("uint8")[0, :40] = range(40)
        unaligned = CuPyArray((2, 4), "float32", types.SimpleNamespace(ptr=x.data.ptr + 2), (4, 8))
        for stream in (None, 5):
            dmlops.diagonal_matrix(unaligned, stream=stream)
            print(copied.pop() == unaligned.host.tobytes(), told())
        # In a capture, scratch memory belongs to the graph.
        large = CuPyArray((1000, 1000), "float32")
        for state in (none, active):
            driver.cuStreamIsCapturing = lambda handle: (success, state)
            dmlops.nonzero_coordinates(large, out=(CuPyArray((9, 2), "int64"), CuPyArray((), "int64")))
            print([note for note, *_ in notes if note in ("empty", "allocate")])
            notes.clear()
        for call in (
            lambda: dmlops.diagonal_matrix(x, out=CuPyArray((3, 40), "float32", unaligned.data)),
            lambda: dmlops.diagonal_matrix(shape=(2, 3), dtype="datetime64[s]", like=x),
        ):
            try:
                call()
            except (TypeError, dmlops.InvalidDescriptorError) as error:
                print(error)
    """)
    assert printed == [
        "True (3, 2) int64 empty 3 2, empty 3 2, launch 9",
        "stream 0 5:, empty 3 2, empty 3 2, launch 5, end of stream 0 5;",
        "True device 0:, copy, end of device 0;, empty 2 4, launch 9",
        "True device 0:, stream 0 5:, copy, end of stream 0 5;, end of device 0;, "
        "stream 0 5:, empty 2 4, launch 5, end of stream 0 5;",
        "['empty']",
        "['allocate']",
        "diagonal_matrix.out: got an unaligned array, but its first element is at an address that is not a "
        "multiple of the element size; it must be aligned to its elements",
        "diagonal_matrix.dtype: got datetime64[s], but CuPy has no such type; it must be a type of CuPy's",
    ]


def test_a_call_waits_for_other_streams_and_they_for_it():
    printed = run("""
        x, out = Array((64, 64), "float32"), CuPyArray((64, 64), "float32")
        for producer in (None, 5, 7):
            x.__cuda_array_interface__["stream"] = producer
            dmlops.diagonal_matrix(x, out=Array((64, 64), "float32"), stream=5)
            print(told())
        dmlops.diagonal_matrix(x, out=out)
        print(told())
        driver.cuStreamIsCapturing = lambda handle: (success, active if handle == 5 else none)
        dmlops.diagonal_matrix(x, out=Array((64, 64), "float32"), stream=5)
        print(told())
        driver.cuStreamGetCtx, driver.cuCtxGetDevice = lambda handle: (success, 77), lambda: (success, 1)
        try:
            cuda_driver.check_stream_device(5, 0, "f.stream")
        except dmlops.DeviceMismatchError as error:
            print(error)
    """)
    assert printed == [
        "launch 5",
        "launch 5",
        "record 7, wait 5, launch 5, record 5, wait 7",
        "record 9, wait 0, record 7, wait 0, launch 0, record 0, wait 9, record 0, wait 7",
        "launch 5",  # a stream outside the capture cannot be ordered with it
        "f.stream: got a stream of cuda:1, but the arrays live on cuda:0; both must share a device",
    ]


def test_the_command_line_waits_for_the_first_device():
    printed = run("""
        from tests.inside import placement

        placement.cuda_devices = lambda: [0]
        place = placement.place(placement.Device.CUDA)
        array = place.put(np.zeros((2, 3), "int8"))
        driver.cuCtxPushCurrent = note("push", (success,))
        print(place.label, type(array).__name__, type(place.get(array)).__name__)
        notes.clear()
        place.wait()
        print(told())
    """)
    assert printed == ["GPU DeviceArray ndarray", "wait 0"]
