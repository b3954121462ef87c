"""Lists of non-zero elements that are trimmed to their count, which is known only when the call has run."""

import ctypes
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dmlops.calls.call import BoundCall, Executor
from dmlops.calls.kinds import NO_ARRAY_ERRORS, Kind
from dmlops.devices import cuda_driver
from dmlops.devices.memory import CPU, take_scratch
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import refuse
from kernels_cpu.nonzero_coordinates import ONE_PASS
from kernels_cpu.nonzero_coordinates.problem_words import (
    CAPACITY,
    COLUMN_STEP,
    COUNT,
    EXPAND,
    ROW_STEP,
    STEP,
    WHOLE,
)

if TYPE_CHECKING:
    from kernels_cpu.plan import ProblemPlan

_COUNT: Mapping[int, int] = MappingProxyType({STEP: COUNT})
# If all possible coordinates need so little room, one pass and a copy cost less than two passes.
_ONE_PASS_BYTES = 1 << 20


class BoundTrimmedList(BoundCall):
    """A list of non-zero elements as a bound call."""

    waits = True
    plan: "ProblemPlan"

    @property
    def _most_bytes(self) -> int:
        """The size of the coordinates, with a row for each element of the input."""
        coordinates = self.results[0]
        return coordinates.element_count * coordinates.data_type.bytes

    @property
    def _is_cut(self) -> bool:
        """Whether the call has room for all possible coordinates, and returns a copy of the actual ones."""
        return self.device is CPU and self.is_small and self._most_bytes > 0

    def load(self) -> None:
        """Load all kernels that a run may need, even if nothing is counted."""
        if self._is_cut or self._is_copied:
            self.plan.prepared()
        else:
            self.plan.prepared(_COUNT)
            self.plan.prepared(self._expand(1))

    @property
    def _is_copied(self) -> bool:
        """Whether one pass writes to scratch memory first, of which the actual coordinates are copied."""
        is_in_one_pass = self.device is CPU and self.plan.algorithm == ONE_PASS
        return is_in_one_pass and self._most_bytes <= _ONE_PASS_BYTES

    def _expand(self, n_rows: int) -> Mapping[int, int]:
        """Return the step that writes so many rows, packed."""
        return {STEP: EXPAND, ROW_STEP: self.results[0].sizes[1], COLUMN_STEP: 1, CAPACITY: n_rows}

    def n_made_later(self) -> int:
        """Return 1 if coordinates are allocated after they have been counted."""
        return 0 if self._is_cut else 1

    def run(
        self, executor: Executor, addresses: Sequence[int], made: list[object], workspace: int = 0
    ) -> list[object]:
        """List the coordinates in new arrays; see `BoundCall.run`."""
        if self._is_cut:
            found = self.launch(executor, addresses, workspace)
            made[0] = self.library.trimmed(made[0], found)
        else:
            made.insert(0, self._count_then_expand(executor, *addresses))
        return made

    def _count_then_expand(self, executor: Executor, x: int, count: int) -> object:
        """Count, and return a new array with that many rows of coordinates."""
        coordinates = self.results[0]
        n_columns = coordinates.sizes[1]
        empty, address = self.library.empty, self.library.address
        if self._is_copied:
            with executor.scratch(self._most_bytes) as scratch:
                rows = self.plan.launch(x, scratch, count, 0)
                listed = empty((rows, n_columns), coordinates.data_type, self.device)
                n_bytes = rows * n_columns * coordinates.data_type.bytes
                ctypes.memmove(address(listed), scratch, n_bytes)
            return listed
        with executor.scratch(self.workspace_size) as scratch:
            rows = executor.count(
                self.plan, _COUNT, x, count, scratch, numpy_dtype(self.results[1].data_type)
            )
            listed = empty((rows, n_columns), coordinates.data_type, self.device)
            if rows and n_columns:
                self.plan.step(self._expand(rows), *executor.leading, x, address(listed), 0, scratch)
        return listed

    def refuse_capture(self, reason: str) -> None:
        """Raise the error that names the parameter with which nothing waits."""
        allowed = "size must be a number of rows, so that nothing waits"
        refuse("nonzero_coordinates.size", None, reason, allowed)


class TrimmedList(Kind):
    """A listing of non-zero elements with as many rows as there are."""

    native: Any  # of a device or of the host

    def __init__(self, call: BoundCall, arrays: Sequence[object], *, has_out: bool) -> None:
        super().__init__(call, arrays, has_out=has_out)
        self._count_type = numpy_dtype(call.results[1].data_type)

    def into_new(
        self, inputs: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Sequence[object] | None:
        """Make a call with new outputs; return them, or None with nothing done."""
        make_rows, make_count = self.make
        limits += self.new_limits
        try:
            shape, count = inputs[0].shape, make_count(())
        except NO_ARRAY_ERRORS:
            return None
        n_elements, n_columns = math.prod(shape), len(shape)
        if self.call.device != CPU:
            return self._on_device(inputs[0], count, limits, sizes[1:])
        if n_elements * n_columns * self.call.results[0].data_type.bytes > _ONE_PASS_BYTES:
            return self._in_two_passes(inputs[0], count, limits, sizes[1:])
        try:
            rows = make_rows((n_elements, n_columns))
        except NO_ARRAY_ERRORS:
            return None
        found = self.native((*inputs, rows, count, *limits, WHOLE, *sizes[1:]))
        return None if found is None else [self.library.trimmed(rows, found), count]

    def _on_device(
        self, x: Any, count: Any, limits: tuple[int, ...], others: tuple[int, ...]
    ) -> Sequence[object] | None:
        make_rows, n_columns, native = self.make[0], len(x.shape), self.native
        stream = native.waiting_stream()
        if stream is None:
            return None
        no_rows = make_rows((0, n_columns))
        scratch = native.launched((x, no_rows, count, *limits, COUNT, *others), stream)
        if scratch is None:
            return None
        n_rows = cuda_driver.read_back(self.library.address(count), self._count_type, stream)
        rows = make_rows((n_rows, n_columns))
        is_listed = not n_rows or not n_columns
        if not is_listed and not native.launched_in(
            scratch, (x, rows, count, *limits, EXPAND, *others), stream
        ):
            return None
        return [rows, count]

    def _in_two_passes(
        self, x: Any, count: Any, limits: tuple[int, ...], others: tuple[int, ...]
    ) -> Sequence[object] | None:
        make_rows, n_columns = self.make[0], len(x.shape)
        no_rows = make_rows((0, n_columns))
        planned = self.native.planned((x, no_rows, count, *limits, COUNT, *others))
        if planned is None:
            return None
        addresses, launches = planned
        with take_scratch(launches.workspace_size) as scratch:
            n_rows = launches.run(*addresses, scratch)
            rows = make_rows((n_rows, n_columns))
            planned = self.native.planned((x, rows, count, *limits, EXPAND, *others))
            if planned is None:
                return None
            addresses, launches = planned
            launches.run(*addresses, scratch)
        return [rows, count]
