"""The numbers by which CUDA kernels make keys and ordered keys, computed here in Python."""

import random

import pytest

from tests import inside

pytest.importorskip("cuda.bindings")
key_formats = inside.key_formats

# Bits, and the bits of infinity where there are floats of that width.
FORMATS = [(8, None), (16, 0x7C00), (16, 0x7F80), (32, 0x7F800000), (64, 0x7FF << 52)]
KINDS = [
    (bits, kind, infinity)
    for bits, infinity in FORMATS
    for kind in ("unsigned", "signed", "float")
    if kind != "float" or infinity is not None
] + [(8, "bool", 0)]


def expected_key(pattern, bits, kind, infinity, largest, nan_last):
    """Return the ordered key of a bit pattern: the largest comes first.

    That of a float is its distance from minus infinity, counted in floats, and NaNs have the next one after
    that of infinity. Where the smallest come first, or NaN last, keys are complements.
    """
    sign, ones = 1 << (bits - 1), (1 << bits) - 1
    if kind == "unsigned":
        key = pattern
    elif kind == "bool":
        key = 1 if pattern else 0
    elif kind == "signed":
        key = pattern ^ sign
    else:
        magnitude, is_negative = pattern & (sign - 1), bool(pattern & sign) != nan_last
        key = infinity - magnitude if is_negative else infinity + magnitude
        if magnitude > infinity:
            key = 2 * infinity + 1
    return key ^ ones if nan_last or not largest else key


def signed(word):
    """Return the number of 64 bits with a sign that has the bits of a word."""
    return word - (word >> 63 << 64)


def samples(bits):
    if bits <= 16:
        return range(1 << bits)
    draw = random.Random(bits)
    edges = [0, 1 << (bits - 1), *(infinity for width, infinity in FORMATS if width == bits)]
    near = [edge | top for edge in edges for top in (0, 1 << (bits - 1))]
    patterns = [(edge + offset) % (1 << bits) for edge in near for offset in range(-50, 50)]
    return patterns + [draw.getrandbits(bits) for _ in range(5000)]


@pytest.mark.parametrize(
    ("largest", "nan_last"),
    [(True, False), (False, False), (True, True)],
    ids=["largest", "smallest", "largest-nan_last"],
)
@pytest.mark.parametrize(("bits", "kind", "infinity"), KINDS)
def test_unfolded_keys(bits, kind, infinity, largest, nan_last):
    nan_last = nan_last and kind == "float"
    sign, ones = 1 << (bits - 1), (1 << bits) - 1
    flip = sign - 1 if kind == "float" else 0
    format_ = (0 if kind == "unsigned" else sign, flip, infinity if kind == "float" else ones)
    format_ = (0, ones, 0) if kind == "bool" else format_
    register = max(bits, 32)
    unused, most = register - bits, (1 << register) - 1
    masks = [signed(mask) for mask in format_]
    words = key_formats.ElementWords(bits // 8, *masks, largest, nan_last)
    format_ = key_formats.key_format(words)
    direction, unordered = format_.direction & ones, format_.unordered & ones
    numbers = [number & most for number in key_formats.unfolded_format(words)]
    raw_flip, factor, offset, change = numbers
    draw = random.Random(1)
    keys = {}
    for pattern in samples(bits):
        # The part of a register that an element leaves free holds anything.
        content = pattern << unused | draw.getrandbits(register) >> bits if unused else pattern
        flipped = content ^ (raw_flip if content >> (register - 1) else 0)
        raw = (flipped ^ factor if bits == 64 else flipped * factor) + offset & most
        if kind != "float" and bits < 64:
            assert (content ^ change) >> unused == raw >> unused
        raw >>= unused
        distance = raw ^ direction
        if kind == "float" and distance > infinity:
            distance -= 1
        key = min(distance, unordered) ^ direction
        assert key == expected_key(pattern, bits, kind, infinity, largest, nan_last)
        keys.setdefault(raw, key)
    in_order = [keys[raw] for raw in sorted(keys)]
    assert in_order == sorted(in_order)
