"""Kinds of calls: what is kept of past calls, so that another size costs what a repeated call costs.

The *kind* of a call is what decides which code runs: the function, libraries, element types, numbers of
dimensions, devices, and the arguments that are no sizes. The first call of a kind is described, checked and
bound (`binding`). For every later one, the outputs are allocated, and one native call reads all arrays, fits
the problem, plans it and runs it (`kernels_cpu.native_call`). Where native code cannot serve a call, it does
nothing; the call is then made in Python, which serves it or says what is wrong.
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from logging import DEBUG
from typing import Any, TypeVar

from dmlops.array_libraries.base import Operand
from dmlops.array_libraries.detect import KIND_SIGNATURES
from dmlops.calls.call import BoundCall
from dmlops.calls.native import DeviceNative, Native
from dmlops.devices import cpu, cuda_driver
from dmlops.devices.memory import CPU
from dmlops.types.errors import DmlError

Kept = TypeVar("Kept")
# Makes a named tuple; its constructor calls this, and takes three times as long.
new_tuple: Any = tuple.__new__

_log = logging.getLogger("dmlops")
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)

# Reading types and shapes raises these if there are none, or if they cannot be hashed; so does the allocation
# of outputs of impossible shapes. Other exceptions pass: those of a signal handler must reach the caller.
NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError, IndexError, MemoryError)
# New arrays have all the memory that their sizes need.
_NO_LIMIT = 1 << 62


class Kind:
    """A kind of calls that native code serves; may be called from any thread.

    Parameters
    ----------
    call : BoundCall
        The first call of the kind.
    arrays : sequence of array
        Its inputs and outputs.
    has_out : bool
        Whether the caller gives the outputs.
    """

    def __init__(self, call: BoundCall, arrays: Sequence[Any], *, has_out: bool) -> None:
        self.call, self.library = call, call.library
        self._shapes = call.kind_form.shapes
        self.make = tuple([call.library.maker(desc.data_type, call.device) for desc in call.results])
        self._limits_of = call.library.limits
        self.new_limits = () if self._limits_of is None else (_NO_LIMIT,) * len(call.results)
        self._was_written = call.library.was_written
        n_given = len(arrays) - len(call.inputs) if has_out else 0
        self.operands = native_operands(call, arrays)
        make_native = Native if call.device == CPU else DeviceNative
        self.native = make_native(call, self.operands, n_given)

    def __call__(
        self, inputs: tuple[object, ...], out: tuple[object, ...], sizes: tuple[Any, ...]
    ) -> Sequence[object] | None:
        """Make a call; return the outputs, or None with nothing done."""
        given = inputs + out
        limits: tuple[int, ...] = ()
        if self._limits_of is not None:
            found = self._limits_of(given, out)
            if found is None:
                return None
            limits = found
        if not out:
            return self.into_new(inputs, limits, sizes)
        if self._was_written is None:
            return out if self.run(given, limits, sizes) else None
        # An interrupt may come between the write and the line that tells of it, as in `BoundCall`.
        try:
            is_done = self.run(given, limits, sizes)
            if is_done:
                self._was_written(out)
        except DmlError:
            raise
        except BaseException:
            self._was_written(out)
            raise
        return out if is_done else None

    def into_new(
        self, inputs: tuple[object, ...], limits: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Sequence[object] | None:
        """Make a call with new outputs; return them, or None with nothing done."""
        made = []
        try:
            for make, shape in zip(self.make, self._shapes(inputs, sizes)):  # noqa: B905 - slow with strict
                made.append(make(shape))
        except NO_ARRAY_ERRORS:  # a call in Python says what is wrong with the sizes
            return None
        return made if self.run((*inputs, *made), limits + self.new_limits, sizes) else None

    def make_anew(
        self, inputs: tuple[object, ...], out: tuple[object, ...], sizes: tuple[Any, ...]
    ) -> Sequence[object] | None:
        """Make a call; return its new outputs, or None with nothing done."""
        results = self(inputs, out, sizes)
        return () if out and results is not None else results

    def run(self, arrays: tuple[object, ...], limits: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
        """Run a call; return whether it is done."""
        return self.native(arrays + limits + sizes) is not None


class Kinds:
    """Kinds by all that they depend on; when there is no more room, the oldest leaves.

    Parameters
    ----------
    max_kinds : int
        How many there may be.
    """

    def __init__(self, max_kinds: int) -> None:
        self._kinds: OrderedDict[Hashable, Kind] = OrderedDict()
        self._max_kinds = max_kinds

    def call(
        self,
        parameters: Hashable,
        inputs: tuple[object, ...],
        sizes: tuple[object, ...],
        out: tuple[object, ...] = (),
        stream: object = None,
    ) -> Sequence[object] | None:
        """Make a call of a known kind, on arrays that no library has vouched for.

        Parameters
        ----------
        parameters : hashable
            The arguments that are neither arrays nor sizes, and whatever else a kind depends on.
        inputs, out : tuple of array
            As the caller gave them.
        sizes : tuple
            The arguments that are sizes, as the kind takes them.
        stream : int or stream object, optional
            The stream that the caller chose.

        Returns
        -------
        sequence of array, or None
            The outputs; None with nothing done where the call must be made in Python.
        """
        # A call in Python logs its algorithm. The level of the root logger alone is not meant for dmlops.
        if 0 < _log.level <= DEBUG:
            return None
        try:
            kind = self._kinds.get(_key(parameters, inputs, out))
        except (KeyError, *NO_ARRAY_ERRORS):
            return None
        if kind is None or stream is None:
            return None if kind is None else kind(inputs, out, sizes)
        device, where = kind.call.device, f"{kind.call.name}.stream"
        if device == CPU:  # which has no streams
            return None
        handle = cuda_driver.stream_handle(stream, where)
        cuda_driver.check_stream_device(handle, device.number, where)
        with kind.library.on_stream(handle, device, stream):
            return kind(inputs, out, sizes)

    def of_words(self, parameters: Hashable, operands: Sequence[Operand]) -> Kind | None:
        """Return the kind of a call whose arrays are described in words, if it is known.

        Parameters
        ----------
        parameters : hashable
            As `call` takes them.
        operands : sequence of Operand
            All arrays, for which their library has vouched.
        """
        if not operands or 0 < _log.level <= DEBUG or not _are_words(operands):
            return None
        return self._kinds.get(_key_of_words(parameters, operands))

    def keep(
        self,
        parameters: Hashable,
        operands: Sequence[Operand],
        out: Sequence[object],
        made: Sequence[object],
        call: BoundCall,
    ) -> None:
        """Keep the kind of a call, if it is new and native code can serve it; load all that it needs."""
        inputs = [operand.array for operand in operands[: len(operands) - len(out)]]
        arrays = (*inputs, *(out or made))
        if not _is_native(call, arrays, operands):
            return
        is_of_words = call.library.native_type is None
        key = _key_of_words(parameters, operands) if is_of_words else _key(parameters, inputs, out)
        if key not in self._kinds:
            keep(self._kinds, key, call.kind_form.make(call, arrays, has_out=bool(out)), self._max_kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def keep(kept: OrderedDict[Hashable, Kept], key: Hashable, value: Kept, most: int) -> None:
    """Keep a value by a key, in place of the oldest if there are enough."""
    while len(kept) >= most:
        try:
            kept.popitem(last=False)
        except KeyError:  # another thread was faster
            break
    kept[key] = value


def _key(parameters: Hashable, inputs: Sequence[object], out: Sequence[object]) -> Hashable:
    if len(inputs) == 1 and not out:  # most calls
        x = inputs[0]
        return parameters, KIND_SIGNATURES[type(x)](x)
    return (parameters, *[KIND_SIGNATURES[type(array)](array) for array in (*inputs, *out)])


def _are_words(operands: Sequence[Operand]) -> bool:
    """Return whether arrays are of one library, and native calls cannot read them."""
    library = operands[0].library
    return library.native_type is None and all(operand.library is library for operand in operands)


def _key_of_words(parameters: Hashable, operands: Sequence[Operand]) -> Hashable:
    return (parameters, *[operand.library.kind_signature(operand.array) for operand in operands])


def native_operands(call: BoundCall, arrays: Sequence[object]) -> list[Any]:
    """Return how native calls recognise the arrays of a call, inputs first; None for one that they cannot."""
    describe, n_inputs = call.library.native_operand, len(call.inputs)
    return [describe(array, is_written=place >= n_inputs) for place, array in enumerate(arrays)]


def _is_native(call: BoundCall, arrays: Sequence[object], operands: Sequence[Operand]) -> bool:
    """Return whether native code can make calls of a kind."""
    if call.form is None or call.problem is None or not _has_gil() or not cpu.compiles_plans():
        return False
    native_types = call.library.native_type, call.library.other_native_type
    if call.library.native_type is None:
        is_of_kind = bool(operands) and _are_words(operands)
    else:
        is_of_kind = all(type(array) in native_types for array in arrays)
    if not is_of_kind:
        return False
    return None not in native_operands(call, arrays)


KINDS = Kinds(max_kinds=2048)
"""All that is kept of past calls of functions that native code serves."""
