"""The one cache of calls: it finds the call that was bound for arguments of the same kinds, and repeats it.

Two calls are the same if they have the same parameters, and if all their arrays have the same signatures. The
parameters, the signature of the first input and the shape of the second are read sooner, and with them goes
the fast path that ran last. It looks at all arrays itself, and most often it is the right one.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from logging import DEBUG
from typing import Any

from dmlops.array_libraries.base import Operand
from dmlops.array_libraries.detect import SIGNATURES
from dmlops.calls.call import BoundCall
from dmlops.calls.fast_path import FastPath, load_native_calls, make_fast_path

# The constructor of a named tuple calls this as well, and takes three times as long.
new_tuple: Any = tuple.__new__

_is_logged = logging.getLogger("dmlops").isEnabledFor

# Reading sizes and strides raises these if there are none, or if they cannot be hashed. Other exceptions
# pass: those of a signal handler must reach the caller.
_NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError)


class CallCache:
    """Bound calls by everything that they depend on; when the cache is full, the oldest leaves.

    Parameters
    ----------
    max_calls : int
        How many calls there may be.
    """

    def __init__(self, max_calls: int) -> None:
        self._calls: OrderedDict[Hashable, BoundCall] = OrderedDict()
        self._latest: OrderedDict[Hashable, FastPath] = OrderedDict()
        self._max_calls = max_calls

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
        hint = parameters
        try:
            if inputs:
                first = inputs[0]
                signature_of = SIGNATURES.get(type(first))
                if signature_of is None:
                    return None
                hint = hint, signature_of(first)
                if len(inputs) > 1:
                    hint = hint, inputs[1].shape
            latest = self._latest.get(hint)
        except _NO_ARRAY_ERRORS:
            return None
        arrays = inputs + others
        results = None if latest is None else latest(arrays)
        return self._replay_another(latest, hint, parameters, arrays) if results is None else results

    def _replay_another(
        self, latest: FastPath | None, hint: Hashable, parameters: Hashable, arrays: tuple[Any, ...]
    ) -> Sequence[Any] | None:
        """Repeat the call whose arrays have all these signatures, if it is not the one that ran last."""
        try:
            call = self._calls.get((parameters, *[SIGNATURES[type(array)](array) for array in arrays]))
            if call is None:
                return None
            # Most calls of many shapes are made once: the first does not pay for the repetition.
            if call.fast_path is None:
                call.fast_path = make_fast_path(call, arrays)
        except (KeyError, *_NO_ARRAY_ERRORS):
            return None
        if not call.fast_path or call.fast_path is latest:
            return None
        results: Sequence[Any] | None = call.fast_path(arrays)
        if results is not None:
            self._keep(self._latest, hint, call.fast_path)
        return results

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
        key = (parameters, *[operand.signature for operand in operands])
        call = self._calls.get(key)
        if call is None:
            call = bind()
            load_native_calls(call, has_out=bool(out), has_workspace=workspace is not None)
            self._keep(self._calls, key, call)
        return call(inputs, out, stream, workspace)

    def _keep(self, kept: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
        """Keep a value by a key, in place of the oldest if there are enough."""
        while len(kept) >= self._max_calls and key not in kept:
            try:
                kept.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        kept[key] = value

    def __len__(self) -> int:
        return len(self._calls)


CALLS = CallCache(max_calls=2048)
"""All that is kept of past calls of functions. A call on 8-dimensional arrays with several threads takes
about 12 KB, including its fast path."""
