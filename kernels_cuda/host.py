"""Launches without Python in between: a list of them is one call of host code that Numba compiles.

A list is a table of words: the addresses of the driver's `cuCtxGetDevice`, `cuLaunchKernel` and
`cuLaunchKernelEx`, the device that must be current, how many launches there are, which base is the workspace
(`NOTHING` for none), and how many pairs of bases must be apart. Then follow

- for each base that is given, the bits of it that the list depends on, and what they must be;
- for each pair, the numbers of both bases: the second must not begin more than `above` and less than `below`
  bytes after the first, and then these two;
- for each launch `STEP_FIELDS`, for each pointer the number of a base and how many bytes on it is, and the
  other parameters.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels_cuda.cache import cache_folder
from kernels_cuda.launch import N_BASES, WORKSPACE_ALIGNMENT

STEP_FIELDS = ("function", "grid", "block", "shared_bytes", "is_early", "n_pointers", "n_parameters")
MOST_PARAMETERS = 256
_HEAD_WORDS = 7

# The driver's structures, in words: a CUlaunchConfig is followed by its only attribute here.
_CONFIG_WORDS, _ATTRIBUTE_WORDS = 7, 9
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
# What a list returns where another device is current, or none, and where bases are not what it takes; no
# status of the driver is negative.
OTHER_DEVICE = -1
OTHER_BASES = -2
_ONE_ABOVE = 1 << 32  # a 1 in the upper half of a word

_WORD, _HALF = ir.IntType(64), ir.IntType(32)


@intrinsic
def _load(typing_context, address):
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context, address, value):
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, value = arguments
        builder.store(value, builder.inttoptr(address, _WORD.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _stack_words(count: int) -> Any:
    def words(typing_context):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                memory = builder.alloca(_WORD, count)
            return builder.ptrtoint(memory, _WORD)

        return types.int64(), generate

    words.__name__ = words.__qualname__ = f"_stack_words_{count}"
    return intrinsic(words)


_bases = _stack_words(N_BASES + 1)
_parameters = _stack_words(MOST_PARAMETERS)
_addresses = _stack_words(MOST_PARAMETERS)
_config = _stack_words(_CONFIG_WORDS + _ATTRIBUTE_WORDS)


@intrinsic
def _current_device(typing_context, code, place):
    """Call ``cuCtxGetDevice``, which writes half a word to `place`."""
    kind = ir.FunctionType(_HALF, [_WORD])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, place = arguments
        return builder.zext(builder.call(builder.inttoptr(code, kind.as_pointer()), [place]), _WORD)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _launch(typing_context, code, function, grid, block, shared_bytes, stream, addresses):
    """Call ``cuLaunchKernel``."""
    kind = ir.FunctionType(_HALF, [_WORD, *[_HALF] * 7, *[_WORD] * 3])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, function, grid, block, shared_bytes, stream, addresses = arguments
        one = ir.Constant(_HALF, 1)
        grid, block, shared_bytes = (builder.trunc(value, _HALF) for value in (grid, block, shared_bytes))
        sizes = [grid, one, one, block, one, one, shared_bytes]
        entry = builder.inttoptr(code, kind.as_pointer())
        status = builder.call(entry, [function, *sizes, stream, addresses, ir.Constant(_WORD, 0)])
        return builder.zext(status, _WORD)

    return types.int64(*[types.int64] * 7), generate


@intrinsic
def _launch_early(typing_context, code, config, function, addresses):
    """Call ``cuLaunchKernelEx``."""
    kind = ir.FunctionType(_HALF, [_WORD] * 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, *values = arguments
        entry = builder.inttoptr(code, kind.as_pointer())
        return builder.zext(builder.call(entry, [*values, ir.Constant(_WORD, 0)]), _WORD)

    return types.int64(*[types.int64] * 4), generate


def _launch_all(table, stream, a, b, c, d):
    bases, parameters, addresses, config = _bases(), _parameters(), _addresses(), _config()
    _store(bases, a)
    _store(bases + 8, b)
    _store(bases + 16, c)
    _store(bases + 24, d)
    _store(bases + 32, 0)
    at = table + 8 * _HEAD_WORDS
    for i in range(N_BASES):
        if (_load(bases + 8 * i) ^ _load(at + 8)) & _load(at) != 0:
            return OTHER_BASES
        at += 16
    for _ in range(_load(table + 48)):
        distance = _load(bases + 8 * _load(at + 8)) - _load(bases + 8 * _load(at))
        if _load(at + 16) < distance < _load(at + 24):
            return OTHER_BASES
        at += 32
    workspace = bases + 8 * _load(table + 40)
    _store(workspace, (_load(workspace) + (WORKSPACE_ALIGNMENT - 1)) & -WORKSPACE_ALIGNMENT)
    code, early_code, device, n_steps = (
        _load(table + 8),
        _load(table + 16),
        _load(table + 24),
        _load(table + 32),
    )
    _store(config, 0)
    if _current_device(_load(table), config) != 0 or _load(config) != device:
        return OTHER_DEVICE
    for _ in range(n_steps):
        function, grid, block, shared_bytes = _load(at), _load(at + 8), _load(at + 16), _load(at + 24)
        is_early, n_pointers, n_parameters = _load(at + 32), _load(at + 40), _load(at + 48)
        at += 8 * len(STEP_FIELDS)
        for i in range(n_parameters):
            value = _load(at)
            at += 8
            if i < n_pointers:
                value = _load(bases + 8 * value) + _load(at)
                at += 8
            _store(parameters + 8 * i, value)
            _store(addresses + 8 * i, parameters + 8 * i)
        if is_early:
            attribute = config + 8 * _CONFIG_WORDS
            _store(config, grid | _ONE_ABOVE)
            _store(config + 8, (block << 32) | 1)
            _store(config + 16, 1 | _ONE_ABOVE)
            _store(config + 24, shared_bytes)
            _store(config + 32, stream)
            _store(config + 40, attribute)
            _store(config + 48, 1)
            _store(attribute, _PROGRAMMATIC_STREAM_SERIALIZATION)
            _store(attribute + 8, 1)
            for i in range(2, _ATTRIBUTE_WORDS):
                _store(attribute + 8 * i, 0)
            status = _launch_early(early_code, config, function, addresses)
        else:
            status = _launch(code, function, grid, block, shared_bytes, stream, addresses)
        if status != 0:
            return status
    return 0


@contextmanager
def _cache_directory(folder: Path | None) -> Iterator[None]:
    # Numba picks the directory while it decorates; the user's own setting must survive us.
    config: Any = numba.config
    previous = config.CACHE_DIR
    config.CACHE_DIR = previous or ("" if folder is None else str(folder))
    try:
        yield
    finally:
        config.CACHE_DIR = previous


@functools.cache
def _compiled() -> tuple[Callable[..., int], Any]:
    folder = cache_folder()
    decorate: Any = numba.njit(nogil=True, boundscheck=False, error_model="numpy", cache=folder is not None)
    with _cache_directory(folder):
        dispatcher: Any = decorate(_launch_all)
    # The code lives as long as its dispatcher.
    return dispatcher.compile((types.int64,) * (2 + N_BASES)), dispatcher


def launch_all() -> Callable[..., int]:
    """Return the compiled ``launch_all(table, stream, *bases)``, with `N_BASES` of them.

    It returns 0, a status of the driver, or with nothing done `OTHER_DEVICE` or `OTHER_BASES`. It gives the
    GIL away: where the queue of a stream is full, the driver waits.
    """
    return _compiled()[0]
