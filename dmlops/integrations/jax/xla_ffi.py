"""XLA's foreign function interface, for handlers that are written in Python.

XLA calls a handler with a *call frame*: the addresses of operands and results, attributes, and a table of
functions, one of which returns the stream. The structures are those of ``xla/ffi/api/c_api.h``, which jaxlib
ships (`jax.ffi.include_dir`), up to the last member that is needed here. Their layout is fixed for version 0:
minor versions only append members.

A handler takes the GIL. JAX releases it before it runs or awaits a computation, because `jax.pure_callback`
needs it too. A computation may still run when Python exits. A thread that then asks for the GIL waits
forever, and the process waits for the thread. XLA therefore calls a few instructions of machine code, which
enter Python until the interpreter begins to exit, and return an error from then on.
"""

import atexit
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import llvmlite.binding as llvm

from dmlops.store.once import registered

# These structures fit this version, and later ones of the same major version.
_OLDEST = (0, 1)
_METADATA = 1  # the only kind of extension
_STRING = 4  # XLA_FFI_AttrType_STRING
_COMMAND_BUFFER_COMPATIBLE = 1
_INVALID_ARGUMENT, _ABORTED = 3, 10

_Int, _Int64, _Pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p


def _structure(**members: object) -> Any:
    """Return a structure, whose first member is always its size."""
    fields = ("struct_size", ctypes.c_size_t), *members.items()
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


_Version = _structure(extension=_Pointer, major=_Int, minor=_Int)
_Metadata = _structure(version=_Version, traits=ctypes.c_uint32)
_Extension = _structure(type=_Int, next=_Pointer, metadata=ctypes.POINTER(_Metadata))
_ErrorArguments = _structure(extension=_Pointer, message=ctypes.c_char_p, code=_Int)
_StreamArguments = _structure(extension=_Pointer, context=_Pointer, stream=_Pointer)
_Api = _structure(
    extension=_Pointer,
    version=_Version,
    internal_api=_Pointer,
    create_error=ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_ErrorArguments)),
    get_error_message=_Pointer,
    destroy_error=_Pointer,
    register_handler=_Pointer,
    get_stream=ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_StreamArguments)),
)
_Buffer = _structure(extension=_Pointer, type=_Int, data=_Pointer, rank=_Int64, sizes=ctypes.POINTER(_Int64))
_Buffers = _structure(
    extension=_Pointer, count=_Int64, types=_Pointer, buffers=ctypes.POINTER(ctypes.POINTER(_Buffer))
)


class _Characters(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("count", ctypes.c_size_t))


_Attributes = _structure(
    extension=_Pointer,
    count=_Int64,
    types=ctypes.POINTER(_Int),
    names=_Pointer,
    values=ctypes.POINTER(ctypes.POINTER(_Characters)),
)
_Frame = _structure(
    extension=ctypes.POINTER(_Extension),
    api=ctypes.POINTER(_Api),
    context=_Pointer,
    stage=_Int,
    operands=_Buffers,
    results=_Buffers,
    attributes=_Attributes,
)


class Call(NamedTuple):
    """One call of a handler."""

    text: bytes
    """The only attribute of the call, a string."""
    operands: Sequence[int]
    results: Sequence[int]
    """Where they lie in memory; 0 for one without elements."""
    last_size: int
    """The size of the last result, if that has one dimension; -1 otherwise."""


Handler = Callable[[Call, Callable[[], int]], None]
"""Runs a call; the second argument tells the CUDA stream that the call is to be put on."""

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Frame), ctypes.POINTER(ctypes.c_int64))
_TEXTS = (
    b"dmlops: Python has ended before the computation",
    b"dmlops: a signal interrupted the computation",
)


class _State(NamedTuple):
    """The objects that XLA uses for the life of the process, and that all imports of dmlops share."""

    handlers: dict[tuple[str, str], Handler]
    """By name and platform; a later import of dmlops writes its own."""
    kept: list[object]
    """What machine code refers to."""
    running: ctypes.c_int64
    is_over: ctypes.c_int64
    """The number of handlers that may be in Python now, and whether Python is closed to others."""
    errors: Sequence[ctypes.Structure]
    """What handlers answer if Python is closed, and after an interrupt."""

    @classmethod
    def new(cls) -> "_State":
        """Return the state of a process without handlers."""
        size = ctypes.sizeof(_ErrorArguments)
        errors = [_ErrorArguments(size, None, text, _ABORTED) for text in _TEXTS]
        state = cls({}, [], ctypes.c_int64(0), ctypes.c_int64(0), errors)
        atexit.register(state.end)
        return state

    def end(self) -> None:
        """Close Python to further handlers, and wait for those that are in it."""
        self.is_over.value = 1
        while self.running.value:
            time.sleep(0.001)


_STATE = registered("jax", "handlers", _State.new)
# A callback writes this, or the address of an error. If a signal raises an exception before its first line,
# it writes nothing: ctypes drops the exception, and would return whatever is in memory.
_DONE = 1
_ENTRY = """
define ptr @{name}(ptr %frame) {{
entry:
  %outcome = alloca i64
  store i64 0, ptr %outcome
  atomicrmw add ptr inttoptr (i64 {running} to ptr), i64 1 seq_cst
  %is_over = load atomic i64, ptr inttoptr (i64 {is_over} to ptr) seq_cst, align 8
  %may_run = icmp eq i64 %is_over, 0
  br i1 %may_run, label %run, label %refuse
run:
  call void inttoptr (i64 {callback} to ptr)(ptr %frame, ptr %outcome)
  %written = load i64, ptr %outcome
  %its_error = inttoptr i64 %written to ptr
  switch i64 %written, label %end [ i64 0, label %refuse
                                   i64 {done}, label %succeed ]
succeed:
  br label %end
refuse:
  %reason = phi ptr [ inttoptr (i64 {ended} to ptr), %entry ], [ inttoptr (i64 {interrupted} to ptr), %run ]
  %api_at = getelementptr i8, ptr %frame, i64 {api_at}
  %api = load ptr, ptr %api_at
  %create_error_at = getelementptr i8, ptr %api, i64 {create_error_at}
  %create_error = load ptr, ptr %create_error_at
  %error = call ptr %create_error(ptr %reason)
  br label %end
end:
  %answer = phi ptr [ %its_error, %run ], [ null, %succeed ], [ %error, %refuse ]
  atomicrmw sub ptr inttoptr (i64 {running} to ptr), i64 1 seq_cst
  ret ptr %answer
}}
"""


def register(name: str, platform: str, handler: Handler) -> None:
    """Register a handler with XLA as one whose launches may be captured into CUDA graphs."""
    _STATE.handlers[name, platform] = handler
    registered("jax", (name, platform), lambda: _register(name, platform))


def _register(name: str, platform: str) -> None:
    def run(frame: ctypes.Structure, outcome: "ctypes._Pointer[ctypes.c_int64]") -> None:
        try:
            frame = frame.contents
            if frame.extension:
                _describe(frame)
            else:
                _STATE.handlers[name, platform](_decoded(frame), lambda: _stream(frame))
            outcome[0] = _DONE
        except BaseException as error:  # no Python caller could receive it
            outcome[0] = _error(frame, f"{type(error).__name__}: {error}")

    callback = _CALLBACK(run)
    entry = _entry(f"{name}_{platform}", callback)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.c_void_p(entry)), platform=platform)


def _entry(name: str, callback: "ctypes._FuncPointer") -> int:
    """Return the address of machine code that calls the handler."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    code = _ENTRY.format(
        name=name,
        running=ctypes.addressof(_STATE.running),
        is_over=ctypes.addressof(_STATE.is_over),
        callback=ctypes.cast(callback, ctypes.c_void_p).value,
        api_at=_Frame.api.offset,
        create_error_at=_Api.create_error.offset,
        ended=ctypes.addressof(_STATE.errors[0]),
        interrupted=ctypes.addressof(_STATE.errors[1]),
        done=_DONE,
    )
    compiler = llvm.create_lljit_compiler(use_jit_link=sys.platform != "win32")
    library = llvm.JITLibraryBuilder().add_ir(code).export_symbol(name).link(compiler, name)
    _STATE.kept.append((callback, compiler, library))
    return int(library[name])


def _describe(frame: ctypes.Structure) -> None:
    """Answer the only question that XLA asks of a handler before it calls it."""
    extension = frame.extension.contents
    if extension.type != _METADATA:
        msg = f"dmlops does not know extension {extension.type} of XLA's foreign function interface"
        raise RuntimeError(msg)
    major, minor = _OLDEST
    if frame.api:  # older versions leave it out
        version = frame.api.contents.version
        if version.major != major:
            msg = (
                f"dmlops knows version {major} of XLA's foreign function interface, "
                f"and this jaxlib has {version.major}.{version.minor}"
            )
            raise RuntimeError(msg)
        minor = version.minor
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = major, minor
    metadata.traits = _COMMAND_BUFFER_COMPATIBLE


def _decoded(frame: ctypes.Structure) -> Call:
    attributes, results = frame.attributes, frame.results
    if attributes.count != 1 or attributes.types[0] != _STRING:
        msg = "a call of dmlops has one attribute, a string"
        raise TypeError(msg)
    text = attributes.values[0].contents
    last = results.buffers[results.count - 1].contents
    return Call(
        ctypes.string_at(text.start, text.count),
        _addresses(frame.operands),
        _addresses(results),
        last.sizes[0] if last.rank == 1 else -1,
    )


def _addresses(buffers: ctypes.Structure) -> list[int]:
    return [buffer.contents.data or 0 for buffer in buffers.buffers[: buffers.count]]


def _stream(frame: ctypes.Structure) -> int:
    arguments = _StreamArguments(ctypes.sizeof(_StreamArguments), None, frame.context, None)
    if frame.api.contents.get_stream(arguments):
        msg = "XLA does not tell the stream"
        raise RuntimeError(msg)
    return arguments.stream or 0


def _error(frame: ctypes.Structure, text: str) -> int:
    arguments = _ErrorArguments(
        ctypes.sizeof(_ErrorArguments), None, text.encode(errors="replace"), _INVALID_ARGUMENT
    )
    return frame.api.contents.create_error(arguments)  # type: ignore[no-any-return]
