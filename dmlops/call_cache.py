"""The one cache of calls: what was bound for arguments of some kinds is found again, and replayed.

A call is known by its parameters and by the signatures of its arrays. Entries are found by what can be had at
once, of arrays that nobody has vouched for: the signature of the first input, and the sizes of the second.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from dmlops.array_libraries import SIGNATURES, Operand
from dmlops.call import BoundCall
from dmlops.replay import make_replay, prepare

_log = logging.getLogger("dmlops")

# Calls of one entry differ in libraries, in layouts of outputs, or in the type of indices.
_CALLS_PER_ENTRY = 2

# Asking for sizes and strides raises these where there are none, or none that can be hashed. Not any
# exception: what a signal handler raises must reach the caller.
_NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError)

# What one call is known by among those of an entry: library and signature of each array.
_Kinds = tuple[Hashable, ...]
_Entry = tuple[tuple[_Kinds, BoundCall], ...]


class CallCache:
    """Bound calls by all that they depend on; the oldest entry leaves when it is full.

    Parameters
    ----------
    max_entries : int
        How many entries there may be, each of one call or two.
    """

    def __init__(self, max_entries: int) -> None:
        # The newest call of an entry comes first. Entries are replaced, never changed: threads share them.
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._max_entries = max_entries

    def replay(
        self, parameters: Hashable, inputs: tuple[Any, ...], others: tuple[Any, ...] = ()
    ) -> Sequence[Any] | None:
        """Return the outputs of a call like one before, or None with nothing done.

        Parameters
        ----------
        parameters : hashable
            The arguments that are no arrays, and whatever else a plan depends on.
        inputs, others : tuple of array
            As the caller gave them: what is read, and outputs and workspace.
        """
        if _log.isEnabledFor(logging.DEBUG):  # the ordinary path says what it does
            return None
        key = parameters
        try:
            if inputs:
                signature_of = SIGNATURES.get(type(inputs[0]))
                if signature_of is None:
                    return None
                key = key, signature_of(inputs[0])
                if len(inputs) > 1:
                    key = key, inputs[1].shape
            entry = self._entries.get(key)
        except _NO_ARRAY_ERRORS:
            return None
        if entry is None:
            return None
        replay = entry[0][1].replay
        return replay(inputs + others) if replay else None

    def find(
        self, parameters: Hashable, inputs: Sequence[Operand], others: Sequence[Operand]
    ) -> BoundCall | None:
        """Return the call that was bound for such operands; None where there is none."""
        key, kinds = _key(parameters, inputs, others)
        entry = self._entries.get(key, ())
        for number, known in enumerate(entry):
            if known[0] == kinds:
                if number:
                    self._entries[key] = (known, *entry[:number], *entry[number + 1 :])
                return known[1]
        return None

    def keep(
        self, parameters: Hashable, inputs: Sequence[Operand], others: Sequence[Operand], call: BoundCall
    ) -> BoundCall:
        """Keep a call for the next time that such operands come, and return it."""
        prepare(call, call.library)
        key, kinds = _key(parameters, inputs, others)
        while len(self._entries) >= self._max_entries and key not in self._entries:
            try:
                self._entries.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        self._entries[key] = ((kinds, call), *self._entries.get(key, ())[: _CALLS_PER_ENTRY - 1])
        return call

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))


def replay_found(
    call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None = None
) -> Sequence[Any] | None:
    """Let a call that was found be replayed from now on, and do so; None with nothing done if it cannot."""
    if call.replay is None:
        call.replay = make_replay(call, inputs, out, workspace) or False
    if not call.replay:
        return None
    operands = (*inputs, *out) if workspace is None else (*inputs, *out, workspace)
    return call.replay(tuple([operand.array for operand in operands]))  # type: ignore[no-any-return]


def _key(
    parameters: Hashable, inputs: Sequence[Operand], others: Sequence[Operand]
) -> tuple[Hashable, _Kinds]:
    key = parameters
    if inputs:
        key = key, inputs[0].signature
        if len(inputs) > 1:
            key = key, inputs[1].array.shape
    kinds = tuple([(operand.library, operand.signature) for operand in (*inputs, *others)])
    return key, kinds


CALLS = CallCache(max_entries=2048)
"""All that is kept of past calls of functions. Of eight dimensions and for several threads, a call takes some
12 KB with its replay."""
