"""`dmlops.DeviceArray` with a stand-in for the driver: how it is described, and when its memory is freed."""

import pytest

from tests import test_cuda_failures

pytest.importorskip("cuda.bindings")


def run(script):
    """Run a script with a driver that takes notes; return what it printed, by lines."""
    return test_cuda_failures.run("from dmlops import DeviceArray\n", script)


def test_description():
    printed = run("""
        array = DeviceArray((2, 3), "int16", stream=5)
        print(array, array.nbytes, array.__dlpack_device__())
        print(array.__cuda_array_interface__)
        empty = DeviceArray([0], bool)
        print(empty.pointer, empty.stream, len(notes))

        class View:
            from_cuda_array_interface = lambda array, stream_ptr: print(array, stream_ptr) or View
            __dlpack__ = lambda **options: options

        imported, utils = once.imported, type("utils", (), {"StridedMemoryView": View})
        once.imported = lambda name: utils if name == "cuda.core.utils" else imported(name)
        print([array.__dlpack__(stream=stream, max_version=(1, 0)) for stream in (None, 7)])
    """)
    assert printed == [
        "DeviceArray(shape=(2, 3), dtype=int16, device=cuda:0) 12 (2, 0)",
        "{'version': 3, 'shape': (2, 3), 'typestr': '<i2', 'data': (4611686018427387904, False), "
        "'strides': None, 'stream': 5}",
        "0 1 1",
        "DeviceArray(shape=(2, 3), dtype=int16, device=cuda:0) 1",
        "DeviceArray(shape=(2, 3), dtype=int16, device=cuda:0) 7",
        "[{'stream': -1, 'max_version': (1, 0)}, {'stream': -1, 'max_version': (1, 0)}]",
    ]


REFUSED = {
    "shape": (
        "DeviceArray((2, -1), 'int8')",
        "InvalidDescriptorError DeviceArray.shape: got (2, -1), but a ",
    ),
    "objects": ("DeviceArray((2,), object)", "TypeError DeviceArray.dtype: got object, but "),
    "structured": ("DeviceArray((2,), 'u1,u1')", "TypeError DeviceArray.dtype: got [('f0', 'u1'), "),
    "stream": ("DeviceArray((2,), 'int8', stream='5')", "TypeError DeviceArray.stream: got '5', but "),
    "copy": ("np.asarray(DeviceArray((2,), 'int8'))", "TypeError DeviceArray: got an array on cuda:0, but "),
}


def test_what_is_refused():
    printed = run(f"""
        for code in {[code for code, _ in REFUSED.values()]}:
            try:
                eval(code)
            except Exception as error:
                print(type(error).__name__, error)
    """)
    assert len(printed) == len(REFUSED)
    for found, (_, text) in zip(printed, REFUSED.values(), strict=True):
        assert found.startswith(text)


def test_memory_is_in_the_order_of_a_stream():
    """The per-thread default stream is another one in each thread, and the legacy stream waits for all."""
    printed = run("""
        of_torch, of_cupy = type("Stream", (), {"cuda_stream": 6}), type("Stream", (), {"ptr": 7})
        for stream in (None, 0, 5, 2, of_torch, of_cupy):
            array = DeviceArray((4,), "float32", stream=stream)
            del array
            print(notes)
            notes.clear()
    """)
    assert printed == [
        f"[('allocate', 16, {allocated}), ('free', {1 << 62}, {freed})]"
        for allocated, freed in ((1, 1), (1, 1), (5, 5), (2, 1), (6, 6), (7, 7))
    ]


def test_a_capture_gives_and_takes_no_memory():
    printed = run("""
        states = {5: (success, none), 7: (success, none)}
        driver.cuStreamIsCapturing = lambda handle: states[handle]
        array = DeviceArray((4,), "float32", stream=5)
        notes.clear()
        # A capture of another stream may forbid the legacy stream to be used.
        for state in ((success, active), (real.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, none)):
            states[5] = state
            try:
                DeviceArray((4,), "float32", stream=5)
            except dmlops.InvalidDescriptorError as error:
                print(error)
        del array
        DeviceArray((0,), "float32", stream=7)
        print(notes)
        states[5] = success, none
        array = DeviceArray((8,), "float32", stream=7)
        print(notes)
    """)
    refused = (
        "DeviceArray: got a new array, but the stream is being captured into a CUDA graph, which would own "
        "the memory; allocate it before the capture: functions take it as out"
    )
    assert printed == [refused, refused, "[]", f"[('free', {1 << 62}, 5), ('allocate', 32, 7)]"]


def test_a_stream_lives_as_long_as_its_arrays():
    printed = run("""
        class Stream:
            def __cuda_stream__(self):
                return 0, 5

            def __del__(self):
                notes.append("stream")

        stream = Stream()
        array = DeviceArray((4,), "float32", stream=stream)
        del stream
        print(len(notes))
        del array
        print(notes[1:])
    """)
    assert printed == ["1", f"[('free', {1 << 62}, 5), 'stream']"]


def test_rows_are_copied_in_memory_order():
    printed = run("""
        driver.cuMemcpyAsync = lambda pointer, host, size, stream: (
            print(list(ctypes.string_at(host, size)), stream) or (success,)
        )
        DeviceArray.from_numpy(np.array([[1, 2], [3, 4]], np.uint8).T, stream=5)
        print([name for name, *_ in notes])
    """)
    assert printed == ["[1, 3, 2, 4] 5", "['allocate', 'wait', 'free']"]


def test_nothing_is_freed_while_the_process_ends():
    printed = run("""
        driver.cuMemFreeAsync = lambda *_: print("freed")
        array = DeviceArray((4,), "float32")
        kept = [array]
        kept.append(kept)
        print("end")
    """)
    assert printed == ["end"]


def test_the_device_of_memory():
    """Memory from pools has no context, and some drivers report device 0 for the memory of every device."""
    printed = run("""
        # Of the pools that devices have from the start, of one of device 1, and of one that both can reach.
        pools = {1 << 40: 100, 2 << 40: 101, 3 << 40: 200, 4 << 40: 300, 5 << 40: 0, 6 << 40: None}
        kinds, flags, current = real.CUpointer_attribute, real.CUmemAccess_flags, []

        def attribute(kind, pointer):
            if pointer == 7 << 40:  # of a context of device 3
                return (success, 30) if kind == kinds.CU_POINTER_ATTRIBUTE_CONTEXT else (success, 0)
            if kind == kinds.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE and pools[pointer]:
                return success, pools[pointer]
            # Of the last two, one has no device, and the driver does not know the other.
            is_number = kind == kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            return failure if pools[pointer] is None else success, -2 * (is_number and pools[pointer] == 0)

        def access(pool, place):
            reaches = pool == 300 or place.id == 1
            return success, flags(3) if reaches else flags.CU_MEM_ACCESS_FLAGS_PROT_NONE

        driver.cuCtxPushCurrent = lambda context: current.append(context) or (success,)
        driver.cuCtxGetDevice, driver.cuCtxPopCurrent = lambda: (success, current[-1] // 10), current.pop
        driver.cuDeviceGetCount = lambda: (success, 2)
        driver.cuDeviceGet = lambda number: (success, number)
        driver.cuDeviceGetDefaultMemPool = lambda device: (success, 100 + device)
        driver.cuPointerGetAttribute, driver.cuMemPoolGetAccess = attribute, access
        print([cuda_driver.pointer_device(pointer, "x") for pointer in (*pools, 7 << 40)], current)
    """)
    assert printed == ["[0, 1, 1, 0, None, None, 3] []"]
