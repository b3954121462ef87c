"""What compiled plans have in the place of functions that only Python can run as they are written."""

from collections.abc import Iterator
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu import plan_words
from kernels_cpu.intrinsics.building import I64, element_at


def _leaves(context: Any, builder: Any, kind: Any, value: Any) -> Iterator[Any]:
    """Yield the integers in nested tuples."""
    if isinstance(kind, types.BaseTuple):
        for part in zip(kind, cgutils.unpack_tuple(builder, value), strict=True):
            yield from _leaves(context, builder, *part)
    else:
        yield context.cast(builder, value, kind, types.int64)


@intrinsic
def put_values(typing_context, out, values):  # type: ignore[no-untyped-def]
    """Put the integers of a tuple, those of tuples in it included, in their order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, given = arguments

        def word(at: Any) -> Any:
            return element_at(builder, words, at)

        end = builder.load(word(I64(plan_words.END)))
        leaves = list(_leaves(context, builder, values, given))
        for number, leaf in enumerate(leaves):
            builder.store(leaf, word(builder.add(end, I64(number))))
        count = I64(len(leaves))
        current = builder.load(word(I64(plan_words.CURRENT)))
        n_values = word(builder.add(current, I64(plan_words.N_VALUES)))
        builder.store(builder.add(builder.load(n_values), count), n_values)
        builder.store(builder.add(end, count), word(I64(plan_words.END)))
        return context.get_dummy_value()

    return types.void(out, values), generate


COMPILED: dict[Any, Any] = {plan_words.put_values: put_values}
"""The intrinsics by the plain functions that they stand for."""
