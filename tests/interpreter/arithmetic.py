"""The instructions that compute, each as a function of the operands of many threads.

`computation` returns that function and the bits of each operand. Operands and results are unsigned;
predicates are booleans.
"""

import math
from fractions import Fraction

import numpy as np

from tests.interpreter.memory import SIGNED, UNSIGNED, fault_if
from tests.interpreter.program import Type

# Operations by which atomic instructions and reductions update a value.
UPDATES = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}


def viewed(kind, array):
    """Return unsigned numbers as what their bits mean in a type."""
    types = {"s": SIGNED, "f": FLOAT}.get(kind.kind)
    return array.view(types[kind.bits]) if types else array


def unsigned(array):
    """Return the bits of numbers."""
    return array if array.dtype == bool else array.view(f"u{array.dtype.itemsize}")


def halves(words):
    """Return both halves of words, one after the other."""
    return np.ascontiguousarray(words).view(np.uint16)


def computation(instruction):
    """Return (bits of each source operand, function), or None if the instruction does not compute."""
    kind = instruction.type
    make = _PREDICATE.get(instruction.name) if kind.kind == "p" else _MAKERS.get(instruction.name)
    return make(instruction, kind) if make else None


def _elementwise(function, n_operands):
    def make(instruction, kind):
        def compute(*operands):
            with np.errstate(over="ignore"):
                if kind.kind == "x":
                    return function(*map(halves, operands)).view(np.uint32)
                return unsigned(function(*(viewed(kind, operand) for operand in operands)))

        return (kind.bits,) * n_operands, compute

    return make


def _rounded(exact, kind, mode):
    """Return an exact number as a float of a type, rounded up, down or towards zero."""
    with np.errstate(over="ignore"):
        nearest = FLOAT[kind.bits](float(exact))
    if not np.isfinite(nearest):
        return nearest
    if mode == "rz":
        mode = "rp" if exact < 0 else "rm"
    if mode == "rm" and Fraction(float(nearest)) > exact:
        return np.nextafter(nearest, nearest.dtype.type(-np.inf))
    if mode == "rp" and Fraction(float(nearest)) < exact:
        return np.nextafter(nearest, nearest.dtype.type(np.inf))
    return nearest


def _add_or_fuse(instruction, kind):
    """Make additions, and products with an addend, that may round towards zero, down or up."""
    n_operands = 3 if instruction.name == "fma" else 2
    modes = {"rz", "rm", "rp"} & set(instruction.modifiers)
    if not modes:
        if n_operands == 3:
            return None
        return _elementwise(np.add, 2)(instruction, kind)

    def one(*operands):
        *factors, addend = operands
        if not all(map(math.isfinite, operands)):
            with np.errstate(all="ignore"):
                return np.prod(np.array(factors)) + addend
        exact = [Fraction(x) for x in operands]
        return _rounded(math.prod(exact[:-1], start=Fraction(1)) + exact[-1], kind, min(modes))

    def compute(*operands):
        rows = zip(*(viewed(kind, operand).tolist() for operand in operands), strict=True)
        return unsigned(np.array([one(*row) for row in rows], FLOAT[kind.bits]))

    return (kind.bits,) * n_operands, compute


def _of_bits(function, n_operands):
    """Make instructions of which a type tells the width only."""
    return lambda instruction, kind: ((kind.bits,) * n_operands, function)


def _multiply(instruction, kind):
    mode = next((word for word in instruction.modifiers if word in ("lo", "hi", "wide")), "lo")
    wide = Type(kind.kind, kind.bits * 2)
    has_addend = instruction.name == "mad"

    def product(a, b):
        if mode == "lo":
            return unsigned(viewed(kind, a) * viewed(kind, b))
        if mode == "hi" and kind.bits == 64:
            pairs = zip(viewed(kind, a).tolist(), viewed(kind, b).tolist(), strict=True)
            return np.array([(x * y >> 64) % 2**64 for x, y in pairs], np.uint64)
        types = SIGNED if kind.kind == "s" else UNSIGNED
        both = viewed(kind, a).astype(types[wide.bits]) * viewed(kind, b).astype(types[wide.bits])
        if mode == "wide":
            return both.view(UNSIGNED[wide.bits])
        return (both >> kind.bits).astype(UNSIGNED[kind.bits])

    def compute(a, b, addend=None):
        with np.errstate(over="ignore"):
            found = product(a, b)
            return found if addend is None else found + addend

    return (kind.bits, kind.bits, *((wide if mode == "wide" else kind).bits,) * has_addend), compute


def _divide(instruction, kind):
    def compute(a, b):
        x, y = viewed(kind, a), viewed(kind, b)
        if kind.kind == "f":
            return unsigned(x / y)
        fault_if((y == 0).any(), "division by zero")
        quotient = x // y
        # NumPy rounds down, a GPU towards zero.
        if kind.kind == "s":
            quotient += ((x < 0) != (y < 0)) & (quotient * y != x)
        return unsigned(quotient)

    return (kind.bits,) * 2, compute


def _shift(instruction, kind):
    def compute(a, count):
        within = np.minimum(count, kind.bits - 1).astype(a.dtype)
        if instruction.name == "shr" and kind.kind == "s":
            return (viewed(kind, a) >> within.view(SIGNED[kind.bits])).view(a.dtype)
        shifted = a << within if instruction.name == "shl" else a >> within
        return np.where(count < kind.bits, shifted, a.dtype.type(0))

    return (kind.bits, 32), compute


def _funnel_shift(instruction, kind):
    def compute(low, high, count):
        count = count.astype(np.uint64)
        count = count & np.uint64(31) if "wrap" in instruction.modifiers else np.minimum(count, 32)
        both = high.astype(np.uint64) << np.uint64(32) | low
        shifted = both << count >> np.uint64(32) if "l" in instruction.modifiers else both >> count
        return shifted.astype(np.uint32)

    return (32,) * 3, compute


def _field_mask(length, bits):
    """Return as many ones as a field of bits is long."""
    number = UNSIGNED[bits]
    ones = (number(1) << np.minimum(length, bits - 1).astype(number)) - number(1)
    return np.where(length < bits, ones, number(2**bits - 1))


def _insert_field(instruction, kind):
    def compute(inserted, base, begin, length):
        number = base.dtype.type
        within = np.minimum(begin, kind.bits - 1).astype(number)
        mask = np.where(begin < kind.bits, _field_mask(length, kind.bits) << within, number(0))
        return (base & ~mask) | (inserted << within & mask)

    return (kind.bits, kind.bits, 32, 32), compute


def _permute_bytes(instruction, kind):
    def compute(low, high, selector):
        both = high.astype(np.uint64) << np.uint64(32) | low
        found = np.zeros_like(both)
        for place in range(4):
            number = selector.astype(np.uint64) >> np.uint64(4 * place)
            byte = both >> (number & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte >> np.uint64(7) == 1, np.uint64(255), np.uint64(0))
            found |= np.where(number & np.uint64(8) != 0, sign, byte) << np.uint64(8 * place)
        return found.astype(np.uint32)

    return (32,) * 3, compute


def _logic_of_three(instruction, kind):
    table = int(instruction.operands[4], 0)

    def compute(a, b, c):
        found = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return found

    return (kind.bits,) * 3, compute


def bit_length(a):
    """Return the position of the highest set bit of each number, plus 1."""
    length = np.zeros(a.shape, np.uint32)
    for place in range(a.dtype.itemsize * 8):
        length[a >> a.dtype.type(place) & a.dtype.type(1) == 1] = place + 1
    return length


def _leading_zeros(instruction, kind):
    return (kind.bits,), lambda a: kind.bits - bit_length(a)


def _find_highest(instruction, kind):
    # No bit is set: all ones.
    return (kind.bits,), lambda a: bit_length(a) - np.uint32(1)


def _reverse_bits(a):
    number, bits = a.dtype.type, a.dtype.itemsize * 8
    found = np.zeros_like(a)
    for place in range(bits):
        found |= (a >> number(place) & number(1)) << number(bits - 1 - place)
    return found


_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_COMBINATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compare(instruction, kind):
    comparison = instruction.modifiers[0]
    combination = _COMBINATIONS.get(instruction.modifiers[1])

    def compute(a, b, other=None):
        found = _COMPARISONS[comparison](viewed(kind, a), viewed(kind, b))
        return found if combination is None else combination(found, other)

    return (kind.bits, kind.bits, *(1,) * (combination is not None)), compute


def _compare_halves(instruction, kind):
    numbers = {
        "h": lambda words: halves(words).view(np.float16),
        "e": lambda words: (halves(words).astype(np.uint32) << np.uint32(16)).view(np.float32),
    }[kind.kind]

    def compute(a, b):
        found = _COMPARISONS[instruction.modifiers[0]](numbers(a), numbers(b))
        return np.where(found, np.uint16(0xFFFF), np.uint16(0)).view(np.uint32)

    return (kind.bits, kind.bits), compute


def _select(instruction, kind):
    return (kind.bits, kind.bits, 1), lambda a, b, condition: np.where(condition, a, b)


def _convert(instruction, source):
    target = instruction.types[0]
    types = {"s": SIGNED, "f": FLOAT}.get(target.kind, UNSIGNED)

    def compute(a):
        given = viewed(source, a)
        with np.errstate(over="ignore", invalid="ignore"):
            found = given.astype(types[target.bits])
            if "rm" in instruction.modifiers:
                found = np.where(found > given, np.nextafter(found, -np.inf, dtype=found.dtype), found)
        return unsigned(found)

    return (source.bits,), compute


def _prefer_number(function):
    """Make the function that returns the number of a number and a NaN, even a signalling one."""

    def compute(a, b):
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, function(a, b)))

    return compute


def _copy(instruction, kind):
    return (kind.bits,), lambda a: a


_MAKERS = {
    **{
        name: _elementwise(function, 2)
        for name, function in {
            "sub": np.subtract,
            "min": _prefer_number(np.fmin),
            "max": _prefer_number(np.fmax),
        }.items()
    },
    **dict.fromkeys(("add", "fma"), _add_or_fuse),
    "and": _of_bits(np.bitwise_and, 2),
    "or": _of_bits(np.bitwise_or, 2),
    "xor": _of_bits(np.bitwise_xor, 2),
    "not": _of_bits(np.invert, 1),
    "neg": _elementwise(np.negative, 1),
    "abs": _elementwise(np.abs, 1),
    "ex2": _elementwise(np.exp2, 1),
    "popc": _of_bits(lambda a: np.bitwise_count(a).astype(np.uint32), 1),
    "brev": _of_bits(_reverse_bits, 1),
    "clz": _leading_zeros,
    "bfind": _find_highest,
    "bfi": _insert_field,
    "prmt": _permute_bytes,
    "lop3": _logic_of_three,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel_shift,
    **dict.fromkeys(("mul", "mad"), _multiply),
    "div": _divide,
    "setp": _compare,
    "set": _compare_halves,
    "selp": _select,
    "cvt": _convert,
    "mov": _copy,
    "cvta": _copy,
}
_PREDICATE = {
    "and": _of_bits(np.logical_and, 2),
    "or": _of_bits(np.logical_or, 2),
    "xor": _of_bits(np.logical_xor, 2),
    "not": _of_bits(np.logical_not, 1),
    "mov": _copy,
}
