"""Turn bit patterns into keys: signed integers, the largest of which belong to the elements that come first.

They are the keys of CUDA kernels, except that the highest bit is inverted, because comparisons of vectors are
signed; docs/how_it_works.md ("Keys, not types") derives them. Here, one formula with seven constants serves
unsigned and signed integers and every float format. For floats, ``infinity + magnitude`` (``infinity -
magnitude`` below zero) puts -inf at 0, both zeros at `infinity`, and +inf at ``2 * infinity``. Every NaN lies
beyond that, as the sum wraps around, where one minimum makes all of them equal. A bool is a magnitude whose
infinity is 0, so that the same minimum makes all set bytes equal.
"""

from typing import Any, NamedTuple

from kernels_cpu.intrinsics import simd
from kernels_cpu.intrinsics.pointers import structure
from kernels_cpu.jit import njit


class KeyFormula(NamedTuple):
    """The constants of the formula, integers of the element's width."""

    negative: Any
    """The bit that marks negative floats; 0 for integers; 1 for bools."""
    plus: Any
    """Bits are added to this."""
    minus: Any
    """The bits of negative floats are subtracted from this."""
    limit: Any
    """The key of NaN, or of True, before `direction`; the greatest integer for integers."""
    direction: Any
    """-1 (all ones) where the smallest come first, or NaN last, and keys are complements; else 0."""
    border: Any
    """Bits up to this are subtracted: -1 for floats; else the least integer, where it makes no difference."""
    swap: Any
    """The sign bit where positive floats are subtracted, and negative ones added; else 0."""


unpack_formula = structure(KeyFormula)
"""Return the constants of `key_constants` as scalars, which loops keep in registers."""


@njit
def key(bits: Any, formula: KeyFormula) -> Any:
    """Return the key of an element, or the keys of a vector of elements."""
    above = simd.add(bits, simd.fill(bits, formula.plus))
    below = simd.subtract(simd.fill(bits, formula.minus), bits)
    # The comparison costs no more than to test a sign bit that a mask has left.
    swapped = simd.differ(bits, simd.fill(bits, formula.swap))
    ordered = simd.where_at_most(swapped, simd.fill(bits, formula.border), below, above)
    ordered = simd.minimum(ordered, simd.fill(bits, formula.limit))
    return simd.differ(ordered, simd.fill(bits, formula.direction))
