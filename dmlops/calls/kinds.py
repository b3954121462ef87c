"""Kinds of calls: what is kept of past calls, so that another size costs what a repeated call costs.

The *kind* of a call is what decides which code runs: the function, libraries, element types, numbers of
dimensions, devices, and the arguments that are no sizes. The first call of a kind is described, checked and
bound (`binding`). Every later one takes the native way: the outputs are allocated, and one native call reads
all arrays, fits the problem, plans it and runs it (`kernels_cpu.native_call`). Where native code cannot serve
a call, it does nothing, and the call takes the ordinary way, which serves it or says what is wrong.
"""

import ctypes
import logging
import math
import sys
from array import array as words_array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from logging import DEBUG
from typing import Any, NamedTuple

from dmlops.array_libraries.detect import KIND_SIGNATURES
from dmlops.calls.call import BoundCall, Manner
from dmlops.devices import cpu
from dmlops.devices.memory import CPU, take_scratch
from dmlops.types.errors import DmlError
from kernels_cpu import native_call, plan_words
from kernels_cpu.native_call import NEEDS_PYTHON, KindTable
from kernels_cpu.nonzero_coordinates.problem_words import COUNT, EXPAND, WHOLE
from kernels_cpu.plan import Launches

# The constructor of a named tuple calls this as well, and takes three times as long.
new_tuple: Any = tuple.__new__

_log = logging.getLogger("dmlops")
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)

# Reading types and shapes raises these if there are none, or if they cannot be hashed; so does the allocation
# of outputs of impossible shapes. Other exceptions pass: those of a signal handler must reach the caller.
_NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError, IndexError, MemoryError)
# New arrays have all the memory that their sizes need.
_NO_LIMIT = 1 << 62
# If all possible coordinates need so little room, one pass and a copy cost less than two passes.
_ONE_PASS_BYTES = 1 << 20

Shapes = Sequence[tuple[int, ...]]


class KindForm(NamedTuple):
    """What an operator says of a kind of its calls.

    Attributes
    ----------
    sizes : tuple of int
        Those of the first call, in the order in which the operator's `fit` takes them.
    fixed : tuple of int
        What `fit` needs besides.
    shapes : callable
        Returns the shapes of the outputs for the inputs and the sizes of a call.
    gathered : int
        The input of which only what is selected is read; -1 if there is none.
    residues : tuple of int
        For each array, the word of the problem for its address modulo 16; -1 if it has none.
    """

    sizes: tuple[int, ...]
    fixed: tuple[int, ...]
    shapes: Callable[[Sequence[Any], tuple[int, ...]], Shapes]
    gathered: int = -1
    residues: tuple[int, ...] = ()


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
        self._call, self._library, self._form = call, call.library, call.form
        self._shapes = call.form.shapes
        self._make = tuple([call.library.maker(desc.data_type, call.device) for desc in call.results])
        self._limits_of = call.library.limits
        self._new_limits = () if self._limits_of is None else (_NO_LIMIT,) * len(call.results)
        self._was_written = call.library.was_written
        n_given = len(call.results) if has_out else 0
        self._native = Native(call, arrays, n_given)

    def __call__(
        self, inputs: tuple[Any, ...], out: tuple[Any, ...], sizes: tuple[int, ...]
    ) -> Sequence[Any] | None:
        """Make a call; return the outputs, or None with nothing done."""
        given = inputs + out
        limits: tuple[int, ...] | None = ()
        if self._limits_of is not None:
            limits = self._limits_of(given, out)
            if limits is None:
                return None
        if not out:
            return self._into_new(inputs, limits, sizes)
        if self._was_written is None:
            return out if self._run(given, limits, sizes) else None
        # As in `BoundCall`.
        try:
            is_done = self._run(given, limits, sizes)
            if is_done:
                self._was_written(out)
        except DmlError:
            raise
        except BaseException:
            self._was_written(out)
            raise
        return out if is_done else None

    def _into_new(
        self, inputs: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Sequence[Any] | None:
        made = []
        try:
            for make, shape in zip(self._make, self._shapes(inputs, sizes)):  # noqa: B905 - slow with strict
                made.append(make(shape))
        except _NO_ARRAY_ERRORS:  # the ordinary way says what is wrong with the sizes
            return None
        return made if self._run((*inputs, *made), limits + self._new_limits, sizes) else None

    def _run(self, arrays: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
        """Run a call; return whether it is done."""
        return self._native(arrays + limits + sizes) is not None


class CheckedGather(Kind):
    """A gather that raises for indices out of range, before it writes to memory of the caller."""

    def __init__(self, call: BoundCall, arrays: Sequence[Any], *, has_out: bool) -> None:
        super().__init__(call, arrays, has_out=has_out)
        self._check = Native(call, arrays, len(call.results) if has_out else 0, is_check=True)
        self._has_out = has_out

    def _run(self, arrays: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
        # A check returns the position of the first tuple out of range, or -1; a gather is 0 if there is none.
        # Nobody has seen a new output yet. The ordinary way raises the error.
        arguments = arrays + limits + sizes
        if self._has_out and self._check(arguments) != -1:
            return False
        outside = self._native(arguments)
        return outside is not None and (self._has_out or outside == 0)


class TrimmedList(Kind):
    """A listing of non-zero elements with as many rows as there are."""

    def _into_new(
        self, inputs: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Sequence[Any] | None:
        shape = inputs[0].shape
        n_elements, n_columns = math.prod(shape), len(shape)
        make_rows, make_count = self._make
        limits += self._new_limits
        count = make_count(())
        if n_elements * n_columns * self._call.results[0].data_type.bytes > _ONE_PASS_BYTES:
            return self._in_two_passes(inputs[0], count, limits, sizes[1:])
        try:
            rows = make_rows((n_elements, n_columns))
        except _NO_ARRAY_ERRORS:
            return None
        found = self._native((*inputs, rows, count, *limits, WHOLE, *sizes[1:]))
        return None if found is None else [self._library.trimmed(rows, found), count]

    def _in_two_passes(
        self, x: Any, count: Any, limits: tuple[int, ...], others: tuple[int, ...]
    ) -> Sequence[Any] | None:
        make_rows, n_columns = self._make[0], len(x.shape)
        no_rows = make_rows((0, n_columns))
        planned = self._native.planned((x, no_rows, count, *limits, COUNT, *others))
        if planned is None:
            return None
        addresses, launches = planned
        with take_scratch(launches.workspace_size) as scratch:
            n_rows = launches.run(*addresses, scratch)
            rows = make_rows((n_rows, n_columns))
            planned = self._native.planned((x, rows, count, *limits, EXPAND, *others))
            if planned is None:
                return None
            addresses, launches = planned
            launches.run(*addresses, scratch)
        return [rows, count]


class Native:
    """The native calls of a kind.

    Parameters
    ----------
    call : BoundCall
        The first call of the kind.
    arrays : sequence of array
        Its inputs and outputs.
    n_given : int
        How many of them, at the end, are outputs that the caller gives.
    is_check : bool
        Whether the indices of a gather are checked, and nothing is gathered.
    """

    def __init__(self, call: BoundCall, arrays: Sequence[Any], n_given: int, *, is_check: bool = False) -> None:
        form, library = call.form, call.library
        self._n_arrays, self._kernel_of = len(arrays), call.kernels.kernel_of
        operands = library.native_operands(arrays, len(call.inputs), form.residues)
        fit, plan = cpu.load(call.kernels.FIT), cpu.load(call.kernels.PLAN)
        self._table = table = KindTable(
            operands,
            library.native_type,
            fit.address,
            plan.address,
            cpu.host_words(),
            form.fixed,
            call.words_of_kind(is_check=is_check),
        )
        table.set(native_call.N_SIZES, len(form.sizes))
        table.set(native_call.HAS_LIMITS, int(library.limits is not None))
        table.set(native_call.GATHERED, form.gathered)
        table.set(native_call.SCRATCH, cpu.scratch_cell())
        table.set(native_call.IS_LIMITED, int(call.is_limited))
        table.set(native_call.N_GIVEN, n_given)
        self._run, self._plan = table.caller(cpu.load), table.planner(cpu.load)

    def __call__(self, arguments: tuple[Any, ...]) -> int | None:
        """Make a call; return what its kernel finds, or None with nothing done."""
        try:
            status = self._run(arguments)
        except ctypes.ArgumentError:  # out of memory or of stack, which the ordinary way says by its name
            return None
        if status > native_call.MISMATCH:
            return status
        if status != NEEDS_PYTHON:
            return None
        planned = self.planned(arguments)
        if planned is None:
            return None
        addresses, launches = planned
        with take_scratch(launches.workspace_size) as scratch:
            return launches.run(*addresses, scratch)

    def planned(self, arguments: tuple[Any, ...]) -> tuple[Sequence[int], Launches] | None:
        """Return the addresses of a call's arrays, and its launches with their kernels loaded; or None."""
        try:
            found = self._plan(arguments)
        except ctypes.ArgumentError:  # as above
            return None
        if not found:
            return None
        words = words_array("q", found)
        addresses, plan = words[: self._n_arrays], words[self._n_arrays :]
        for key in plan_words.kernels_of(plan):
            self._table.add_kernel(key, cpu.load(self._kernel_of(key)).address)
        return addresses, Launches(plan, self._kernel_of, cpu.load)


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
        inputs: tuple[Any, ...],
        sizes: tuple[int, ...],
        out: tuple[Any, ...] = (),
    ) -> Sequence[Any] | None:
        """Make a call of a known kind, on arrays that no library has vouched for.

        Parameters
        ----------
        parameters : hashable
            The arguments that are neither arrays nor sizes, and whatever else a kind depends on.
        inputs, out : tuple of array
            As the caller gave them.
        sizes : tuple of int
            The arguments that are sizes.

        Returns
        -------
        sequence of array, or None
            The outputs; None with nothing done where the call must take the ordinary way.
        """
        # The ordinary way logs its algorithm. The level of the root logger alone is not meant for dmlops.
        if 0 < _log.level <= DEBUG:
            return None
        try:
            kind = self._kinds.get(_key(parameters, inputs, out))
        except _NO_ARRAY_ERRORS:
            return None
        except KeyError:
            return None
        return None if kind is None else kind(inputs, out, sizes)

    def keep(
        self, parameters: Hashable, inputs: Sequence[Any], out: Sequence[Any], made: Sequence[Any], call: BoundCall
    ) -> bool:
        """Keep the kind of a call, if native code can serve it; load all that it needs."""
        arrays = (*inputs, *(out or made))
        if not _is_native(call, arrays):
            return False
        key = _key(parameters, inputs, out)
        if key not in self._kinds:
            make = _MANNERS[call.manner] if not (call.manner is Manner.COUNT_THEN_EXPAND and out) else Kind
            kind = make(call, arrays, has_out=bool(out))
            while len(self._kinds) >= self._max_kinds:
                try:
                    self._kinds.popitem(last=False)
                except KeyError:  # another thread was faster
                    break
            self._kinds[key] = kind
        return True

    def __len__(self) -> int:
        return len(self._kinds)


_MANNERS: dict[Manner, type[Kind]] = {
    Manner.LAUNCH: Kind,
    Manner.CHECK_THEN_GATHER: CheckedGather,
    Manner.COUNT_THEN_EXPAND: TrimmedList,
}


def _key(parameters: Hashable, inputs: Sequence[Any], out: Sequence[Any]) -> Hashable:
    if len(inputs) == 1 and not out:  # most calls
        x = inputs[0]
        return parameters, KIND_SIGNATURES[type(x)](x)
    return (parameters, *[KIND_SIGNATURES[type(array)](array) for array in (*inputs, *out)])


def _is_native(call: BoundCall, arrays: Sequence[Any]) -> bool:
    """Return whether native code can make calls of a kind."""
    if call.form is None or call.device is not CPU or not _has_gil():
        return False
    if any(type(array) not in KIND_SIGNATURES for array in arrays):
        return False
    return call.library.native_operands(arrays, len(call.inputs), call.form.residues) is not None


KINDS = Kinds(max_kinds=2048)
"""All that is kept of past calls of functions on arrays that native code can read."""
