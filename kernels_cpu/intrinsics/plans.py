"""What compiled plans have in the place of functions that only Python can run as they are written.

Some others have their intrinsics here because all plans need them: these take a tenth of the time to compile.
"""

from collections.abc import Iterator
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu import plan_words
from kernels_cpu.intrinsics.building import I64, element_at


class _Out:
    """The words that a plan writes."""

    def __init__(self, builder: Any, words: Any) -> None:
        self._builder, self._words = builder, words

    def load(self, at: Any) -> Any:
        return self._builder.load(element_at(self._builder, self._words, at))

    def store(self, at: Any, value: Any) -> None:
        self._builder.store(value, element_at(self._builder, self._words, at))

    def put(self, values: list[Any], counter: int, count: int) -> None:
        """Store values behind the last word, and add `count` to a counter of the current launch."""
        end, end_at = self.load(I64(plan_words.END)), I64(plan_words.END)
        for number, value in enumerate(values):
            self.store(self._builder.add(end, I64(number)), value)
        self.store(end_at, self._builder.add(end, I64(len(values))))
        counted_at = self._builder.add(self.load(I64(plan_words.CURRENT)), I64(counter))
        self.store(counted_at, self._builder.add(self.load(counted_at), I64(count)))


def _leaves(context: Any, builder: Any, kind: Any, value: Any) -> Iterator[Any]:
    """Yield the integers in nested tuples."""
    if isinstance(kind, types.BaseTuple):
        for part in zip(kind, cgutils.unpack_tuple(builder, value), strict=True):
            yield from _leaves(context, builder, *part)
    else:
        yield context.cast(builder, value, kind, types.int64)


@intrinsic
def put_values(typing_context, out, values):  # type: ignore[no-untyped-def]
    """Put an integer, or the integers of a tuple, those of tuples in it included, in their order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, given = arguments
        leaves = list(_leaves(context, builder, values, given))
        _Out(builder, words).put(leaves, plan_words.N_VALUES, len(leaves))
        return context.get_dummy_value()

    return types.void(out, values), generate


@intrinsic
def put_pointer(typing_context, out, slot, offset):  # type: ignore[no-untyped-def]
    """Put the next pointer of the last launch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, *pointer = arguments
        _Out(builder, words).put(pointer, plan_words.N_POINTERS, 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64), generate


COMPILED: dict[Any, Any] = {
    plan_words.put_values: put_values,
    plan_words.put_value: put_values,
    plan_words.put_pointer: put_pointer,
}
"""The intrinsics by the plain functions that they stand for."""
