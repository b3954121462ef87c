"""What was prepared for arrays of one kind, found again for others of that kind."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from dmlops import arrays

T = TypeVar("T")
_Test = Callable[[tuple[Any, ...]], bool]

_KEPT = 4096


def _never(operands: tuple[Any, ...]) -> bool:
    return False


class Kept(NamedTuple, Generic[T]):
    """What is kept for arrays of one kind.

    Attributes
    ----------
    prepared : object
        What serves all of them.
    test : callable, optional
        Tells whether `tested` serves a tuple of arrays; the library's own test for `prepared` where left out.
    tested : object, optional
        What serves arrays that passed `test`.
    """

    prepared: T
    test: _Test | None = None
    tested: T | None = None


class Repeats(Generic[T]):
    """A table by the kinds of arrays; the kind that came last is found most quickly."""

    __slots__ = ("_by_signature", "_tests", "last")

    def __init__(self) -> None:
        self._by_signature: dict[Hashable, Kept[T]] = {}
        self._tests: dict[Hashable, _Test] = {}
        # A test, and what is kept for arrays that pass it.
        self.last: tuple[_Test, T | None] = (_never, None)

    def find(self, operands: tuple[Any, ...]) -> T | None:
        """Return what is kept for arrays of this kind, if they do not pass the test of `last`."""
        signatures = arrays.signatures(operands)
        found = self._by_signature.get(signatures)
        if found is None:
            return None
        test, tested = found.test, found.tested
        if test is None:
            test, tested = self._library_test(signatures, operands), found.prepared
        if test is not None:
            self.last = test, tested
        return found.prepared

    def _library_test(self, signatures: Hashable, operands: tuple[Any, ...]) -> _Test | None:
        test = self._tests.get(signatures)
        # Arrays may have one signature and differ in what the test looks at.
        if test is None or not test(operands):
            test = arrays.find_library(operands[0]).likeness_test(operands)
            if test is not None:
                self._tests[signatures] = test
        return test

    def keep(self, operands: tuple[Any, ...], kept: Kept[T]) -> None:
        """Keep something for arrays of this kind, if the kind can be told quickly and nothing is kept yet."""
        signatures = arrays.signatures(operands)
        if signatures is None or signatures in self._by_signature:
            return
        if len(self._by_signature) >= _KEPT:
            self._by_signature.clear()
            self._tests.clear()
        self._by_signature[signatures] = kept
