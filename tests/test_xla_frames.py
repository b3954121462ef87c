"""Handlers that XLA calls: with frames as other versions of XLA, and its GPU backend, fill them."""

import ctypes
import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

jax = pytest.importorskip("jax")

from tests.inside import Device, xla_calls  # noqa: E402 - needs JAX
from tests.inside import xla_ffi as ffi  # noqa: E402

INVALID_ARGUMENT, ABORTED = 3, 10  # as absl numbers them
NUMBERS = itertools.count()  # a registered target stays for the life of the process


@pytest.fixture
def ask(monkeypatch):
    """Return a function that registers a handler, calls it as XLA does, and returns its error or None."""
    addresses = []
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda pointer: addresses.append(pointer.value))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, capsule, platform: None)

    def ask(handler, version=(0, 1), stream=0, **members):
        errors = []

        def create_error(arguments):
            assert arguments.contents.struct_size == ctypes.sizeof(arguments.contents)
            errors.append((arguments.contents.message.decode(), arguments.contents.code))
            return id(errors)

        def get_stream(arguments):
            assert arguments.contents.struct_size == ctypes.sizeof(arguments.contents)
            assert arguments.contents.context == 77
            arguments.contents.stream = stream
            return stream is None

        kinds = dict(ffi._Api._fields_)
        major, minor = version or (0, 0)
        about = ffi._Version(major=major, minor=minor)
        functions = kinds["create_error"](create_error), kinds["get_stream"](get_stream)
        api = ffi._Api(version=about, create_error=functions[0], get_stream=functions[1])
        frame = ffi._Frame(api=ctypes.pointer(api) if version else None, context=77, **members)
        ffi.register(f"test_of_frames_{next(NUMBERS)}", "cpu", handler)
        entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(addresses.pop())
        assert bool(entry(ctypes.addressof(frame))) == bool(errors)
        return errors[0] if errors else None

    return ask


def buffers(*arrays):
    """Return operands or results: an address and a shape each."""
    made = [
        ffi._Buffer(data=address, rank=len(shape), sizes=(ctypes.c_int64 * len(shape))(*shape))
        for address, shape in arrays
    ]
    pointers = [ctypes.pointer(each) for each in made]
    return ffi._Buffers(count=len(made), buffers=(type(pointers[0]) * len(made))(*pointers))


def attributes(kind, text):
    """Return one attribute of a call."""
    characters = ffi._Characters(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), len(text))
    values = (ctypes.POINTER(ffi._Characters) * 1)(ctypes.pointer(characters))
    return ffi._Attributes(count=1, types=(ctypes.c_int * 1)(kind), values=values)


@pytest.mark.parametrize(
    ("last", "last_size"), [((0, (5,)), 5), ((8, (5, 6)), -1), ((8, ()), -1)], ids=["row", "matrix", "none"]
)
@pytest.mark.parametrize("stream", [9, 0])
def test_a_call_is_what_the_frame_says(ask, last, last_size, stream):
    found = []
    frame = {
        "operands": buffers((16, (2, 3)), (0, (0,))),
        "results": buffers((24, (7,)), last),
        "attributes": attributes(4, b"a call"),
    }
    assert ask(lambda call, stream_of: found.extend([call, stream_of()]), stream=stream, **frame) is None
    assert found == [(b"a call", [16, 0], [24, last[0]], last_size), stream]


def test_errors_have_a_text_and_a_code(ask):
    frame = {"operands": buffers((1, ())), "results": buffers((1, ()))}

    def call(handler, kind=4, **other):
        return ask(handler, attributes=attributes(kind, b""), **frame, **other)

    def ask_for_stream(_, stream_of):
        stream_of()

    text = "RuntimeError: XLA does not tell the stream"
    assert call(ask_for_stream, stream=None) == (text, INVALID_ARGUMENT)
    text = "TypeError: a call of dmlops has one attribute, a string"
    assert call(ask_for_stream, kind=3) == (text, INVALID_ARGUMENT)
    ffi._STATE.end()  # as Python does when it exits
    try:
        text = "dmlops: Python has ended before the computation"
        assert call(ask_for_stream) == (text, ABORTED)
    finally:
        ffi._STATE.is_over.value = 0
    assert ffi._STATE.running.value == 0


@pytest.mark.parametrize(
    ("kind", "version", "error"),
    [
        (1, (0, 3), None),
        (1, None, None),  # early versions do not tell
        (1, (1, 0), "dmlops knows version 0 of XLA's foreign function interface, and this jaxlib has 1.0"),
        (2, (0, 1), "dmlops does not know extension 2 of XLA's foreign function interface"),
    ],
)
def test_xla_asks_for_the_version(ask, kind, version, error):
    metadata = ffi._Metadata(version=ffi._Version(major=9, minor=9))
    extension = ffi._Extension(type=kind, metadata=ctypes.pointer(metadata))
    told = ask(None, version=version, extension=ctypes.pointer(extension))
    assert told == (error and (f"RuntimeError: {error}", INVALID_ARGUMENT))
    if error is None:
        # 1: its launches may be captured into command buffers.
        assert (metadata.version.major, metadata.version.minor, metadata.traits) == (*(version or (0, 1)), 1)


def test_a_call_on_a_gpu_has_all_that_it_was_traced_with(monkeypatch):
    launched, address = [], 16
    bound = SimpleNamespace(inputs=[0], results=[0], workspace_size=8, name="top_k", library=None)
    bound.launch = lambda executor, addresses, workspace: launched.append((addresses, workspace))
    monkeypatch.setattr(xla_calls, "_gpus", lambda: [Device("cuda", 0)])
    monkeypatch.setattr(xla_calls, "_bound", lambda *_: bound)
    monkeypatch.setattr(xla_calls.cuda_driver, "device_made_current", nullcontext)
    monkeypatch.setattr(xla_calls, "Stream", lambda *_: nullcontext())
    xla_calls._run_on_gpu(ffi.Call(b"", [address], [32, 64], 8), lambda: 5)
    assert launched == [((address, 32), 64)]
    for call, text in (
        (ffi.Call(b"", [address], [32, 64], 7), r"top_k\.workspace: got 7 bytes, but cuda:0 needs 8"),
        (ffi.Call(b"", [address], [32], 8), "top_k.call: got 1 operands and 1 results, but "),
        (ffi.Call(b"", [address, 16], [32, 64], 8), "top_k.call: got 2 operands and 2 results, but "),
    ):
        with pytest.raises(ValueError, match=text):
            xla_calls._run_on_gpu(call, lambda: 5)
