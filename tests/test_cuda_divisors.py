"""Division by precomputed divisors in CUDA kernels, emulated with integers of the same width."""

import random

import pytest

from tests import inside
from tests.inside import plan_words

pytestmark = pytest.mark.quick

pytest.importorskip("cuda.core")
layout = inside.layout


def divided(position, size, wide):
    """Divide as kernels do: the high word of the doubled position times the multiplier, shifted right."""
    bits = 64 if wide else 32
    _, multiplier, shift = layout.divisor(size, wide)
    # A launch passes signed words.
    assert -(1 << 63) <= multiplier < 1 << 63
    assert 0 <= shift < bits
    doubled = (position << 1) % (1 << bits)
    return doubled * (multiplier % (1 << bits)) >> bits >> shift


@pytest.mark.parametrize("wide", [False, True])
def test_every_position_is_divided_rightly(wide):
    limit = 1 << (63 if wide else 31)
    powers = [1 << shift for shift in range(limit.bit_length())]
    rng = random.Random(5)
    near = [power + change for power in powers for change in (-1, 1) if 0 < power + change <= limit]
    some = [rng.randrange(1, 1 << rng.randrange(1, limit.bit_length())) for _ in range(300)]
    for size in (*powers, *near, *some, 3, 5, 7, 10, 641, 6_700_417):
        last = limit - 1
        multiples = [quotient * size for quotient in (0, 1, 2, last // size // 2, last // size)]
        for position in {change + multiple for multiple in multiples for change in (-1, 0, 1)} | {last}:
            if 0 <= position <= last:
                assert divided(position, size, wide) == position // size, (position, size)


def test_tables_are_the_same_whether_parameters_or_written_to_the_workspace():
    sizes, n_columns, words = (5, 6), 3, [0] * plan_words.MAX_WORDS
    plan_words.begin_plan(words, 0)
    narrow = layout.narrow_table(words, n_columns)
    wide = layout.wide_table(words, 2, n_columns * len(sizes))
    for table, depth in ((narrow, layout.NARROW_DEPTH), (wide, len(sizes))):
        for d, size in enumerate(sizes):
            layout.fill_dimension(words, table, depth, d, size, False)
        for column in range(n_columns):
            found = [words[layout.place(table, column * depth + d)] for d in range(len(sizes))]
            part = ("multiplier", "shift", "size")[column]
            assert found == [getattr(layout.divisor(size, False), part) for size in sizes]
    assert words[plan_words.WORKSPACE] == 8 * n_columns * len(sizes)


@pytest.mark.parametrize(
    ("n_elements", "n_dims", "wide"),
    [(1 << 31, 4, False), ((1 << 31) + 1, 1, True), (5, 5, True), (5, 0, False)],
)
def test_what_needs_a_wide_kernel(n_elements, n_dims, wide):
    assert layout.is_wide(n_elements, n_dims, layout.NARROW_LIMIT) is wide
