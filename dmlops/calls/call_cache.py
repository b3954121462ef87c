"""The cache of bound calls: those that native code cannot serve, and the first ones of kinds that it serves.

Two calls are the same if they have the same parameters and sizes, and if all their arrays have the same
signatures. Later calls of a kind that native code serves (`kinds`) come here only if it refuses them, or if
their arrays are described to it in words.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from dmlops.array_libraries.base import Operand
from dmlops.calls.call import BoundCall
from dmlops.calls.kinds import KINDS, Kinds, keep
from dmlops.devices.memory import CPU
from kernels_cpu.threads import get_num_threads


class CallCache:
    """Bound calls by everything that they depend on; when the cache is full, the oldest leaves.

    Parameters
    ----------
    max_calls : int
        How many calls there may be.
    kinds : Kinds
        What native code serves.
    """

    def __init__(self, max_calls: int, kinds: Kinds) -> None:
        self._calls: OrderedDict[Hashable, BoundCall] = OrderedDict()
        self._max_calls, self._kinds = max_calls, kinds

    def run(
        self,
        parameters: Hashable,
        sizes: tuple[object, ...],
        inputs: Sequence[Operand],
        out: Sequence[Operand],
        bind: Callable[[], BoundCall],
        stream: object = None,
        workspace: Operand | None = None,
    ) -> Sequence[object]:
        """Run a call on arrays that their libraries vouch for, and return its outputs.

        `bind` makes the call if the cache has none. See `Kinds.call` and `BoundCall` for the others.
        """
        written = out if workspace is None else (*out, workspace)
        operands = (*inputs, *written)
        read, written_to = (tuple([operand.array for operand in each]) for each in (inputs, written))
        kind = self._kinds.of_words(parameters, operands)
        if kind is not None:
            make = partial(kind.make_anew, read, written_to, sizes)
            results = kind.call(inputs, out, stream, workspace, make)
            if results is not None:
                return results
        is_on_host = all(operand.library.device(operand.array) is CPU for operand in operands)
        n_threads = get_num_threads() if is_on_host else 0
        key = (parameters, sizes, n_threads, *[operand.signature for operand in operands])
        call = self._calls.get(key)
        if call is None:
            call = bind()
            # Before it runs: data that it refuses may come again.
            keep(self._calls, key, call, self._max_calls)
        results = call(inputs, out, stream, workspace)
        assert results is not None
        if not call.was_offered:
            self._kinds.keep(parameters, operands, written_to, results, call)
            call.was_offered = True
        return results

    def __len__(self) -> int:
        return len(self._calls)


CALLS = CallCache(max_calls=256, kinds=KINDS)
"""All that is kept of past calls of functions that native code does not serve."""
