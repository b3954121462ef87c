"""The one cache of calls: it finds the call that was bound for arguments of the same kinds, and replays it.

Two calls are the same if they have the same parameters, and if all their arrays have the same libraries and
signatures. An entry is found by less, namely by what can be read before any library has vouched for an array:
the parameters, the signature of the first input, and the shape of the second.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from logging import DEBUG
from typing import Any

from dmlops.array_libraries import SIGNATURES, Operand
from dmlops.call import BoundCall
from dmlops.replay import make_replay, prepare

_is_logged = logging.getLogger("dmlops").isEnabledFor

# The calls of one entry differ in libraries, in the layout of outputs, or in the type of indices.
_CALLS_PER_ENTRY = 2

# Reading sizes and strides raises these if there are none, or if they cannot be hashed. Other exceptions
# pass: those of a signal handler must reach the caller.
_NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError)


class CallCache:
    """Bound calls by everything that they depend on; when the cache is full, it drops the oldest entry.

    Parameters
    ----------
    max_entries : int
        How many entries there may be, each of one call or two.
    by_inputs : bool
        Whether entries differ in the inputs. Otherwise the parameters alone tell them apart, and `replay`
        takes all arrays as its `others`.
    """

    def __init__(self, max_entries: int, *, by_inputs: bool = True) -> None:
        # The newest call of an entry comes first. Entries are replaced, never changed: threads share them.
        self._entries: OrderedDict[Hashable, tuple[BoundCall, ...]] = OrderedDict()
        self._max_entries, self._by_inputs = max_entries, by_inputs

    def replay(
        self, parameters: Hashable, inputs: tuple[Any, ...], others: tuple[Any, ...] = ()
    ) -> Sequence[Any] | None:
        """Repeat an earlier call on arrays that no library has vouched for.

        Parameters
        ----------
        parameters : hashable
            The arguments that are no arrays, and whatever else a plan depends on.
        inputs, others : tuple of array
            As the caller gave them: what is read, and outputs and workspace.

        Returns
        -------
        sequence of array, or None
            The outputs; None with nothing done where `run` must be asked.
        """
        if _is_logged(DEBUG):  # the ordinary path logs its algorithm
            return None
        key = parameters
        try:
            if inputs:
                first = inputs[0]
                signature_of = SIGNATURES.get(type(first))
                if signature_of is None:
                    return None
                key = key, signature_of(first)
                if len(inputs) > 1:
                    key = key, inputs[1].shape
            entry = self._entries.get(key)
        except _NO_ARRAY_ERRORS:
            return None
        if entry is None:
            return None
        replay = entry[0].replay
        return replay(inputs + others) if replay else None

    def run(
        self,
        parameters: Hashable,
        inputs: Sequence[Operand],
        out: Sequence[Operand],
        bind: Callable[[], BoundCall],
        stream: Any = None,
        workspace: Operand | None = None,
    ) -> Sequence[Any]:
        """Run a call on arrays that their libraries vouch for, and return its outputs.

        `bind` makes the call if the cache has none. See `replay` and `BoundCall` for the others.
        """
        operands = (*inputs, *out) if workspace is None else (*inputs, *out, workspace)
        key = parameters
        if inputs and self._by_inputs:
            key = key, inputs[0].signature
            if len(inputs) > 1:
                key = key, inputs[1].array.shape
        kinds = tuple([(operand.library, operand.signature) for operand in operands])
        call = self._find(key, kinds)
        if call is None:
            call = bind()
            call.kinds = kinds
            prepare(call, call.library)
            self._keep(key, call)
        elif stream is None and not _is_logged(DEBUG):
            if call.replay is None:
                call.replay = make_replay(call, inputs, out, workspace) or False
            results = call.replay(tuple([operand.array for operand in operands])) if call.replay else None
            if results is not None:
                return results  # type: ignore[no-any-return]
        return call(inputs, out, stream, workspace)

    def _find(self, key: Hashable, kinds: Hashable) -> BoundCall | None:
        """Return the call of an entry that was bound for such operands, and make it the entry's newest."""
        entry = self._entries.get(key, ())
        for call in entry:
            if call.kinds == kinds:
                if call is not entry[0]:
                    self._entries[key] = (call, *[other for other in entry if other is not call])
                return call
        return None

    def _keep(self, key: Hashable, call: BoundCall) -> None:
        """Make a call the newest of its entry."""
        while len(self._entries) >= self._max_entries and key not in self._entries:
            try:
                self._entries.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        self._entries[key] = (call, *self._entries.get(key, ())[: _CALLS_PER_ENTRY - 1])

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))


CALLS = CallCache(max_entries=2048)
"""All that is kept of past calls of functions. A call on 8-dimensional arrays with several threads takes
about 12 KB, including its replay."""
