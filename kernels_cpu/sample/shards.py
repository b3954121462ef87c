"""The kernel of `sample` for shards of rows, whose steps `problem_words` lists."""

from typing import Any

from kernels_cpu.exact.sampling import FULL
from kernels_cpu.intrinsics.pointers import integers_at, put_index, stack_integers, tail
from kernels_cpu.jit import int64, njit
from kernels_cpu.sample.kernels import ARITHMETIC, Row, integer_of, locate, real_of, unpack, weigh
from kernels_cpu.sample.plan import CHUNK, DIMS_AT, FORMATS_AT, VALUES_AT
from kernels_cpu.sample.problem_words import (
    COUNT,
    MIN_P,
    OUTPUT_STRIDE,
    SEED,
    STEP,
    STRIDES,
    TEMPERATURE,
    TOP_P,
    X_STRIDE,
)

_key_of, _factor_of, _scale_of = ARITHMETIC.key_of, ARITHMETIC.factor_of, ARITHMETIC.scale_of
_temperature_of, _random_word, _part = ARITHMETIC.temperature_of, ARITHMETIC.random_word, ARITHMETIC.part
_share_of, _share = ARITHMETIC.share_of, ARITHMETIC.share
_INFINITE = 1 << 20  # the exponent of an infinite temperature, or more


@njit
def _target_in(sums: Any, row: Row, shard: int, word: tuple[int, int]) -> Any:
    """Return what the running sum of a shard has to exceed; -1 if the token is in another one."""
    total = int64(0)
    for i in range(row.size):
        total += int64(sums[row.at + i * row.step])
    target = _part(word[0], word[1], total)
    for i in range(shard):
        target -= int64(sums[row.at + i * row.step])
    return target if 0 <= target < int64(sums[row.at + shard * row.step]) else -1


@njit
def _sum_of(x: Any, row: Row, scale: Any, keys: Any, weights: Any) -> Any:
    total = int64(0)
    for first in range(0, row.size, CHUNK):
        total += weigh(x, row, first, min(CHUNK, row.size - first), scale, keys, weights)
    return total


@njit
def _token_at(x: Any, row: Row, scale: Any, target: int, keys: Any, weights: Any) -> Any:
    """Return the first element at which the running sum exceeds a target, or -1 if none does."""
    for first in range(0, row.size, CHUNK):
        n = min(CHUNK, row.size - first)
        total = weigh(x, row, first, n, scale, keys, weights)
        if total > target:
            i = int64(0)
            while weights[i] <= target:
                target -= weights[i]
                i += 1
            return first + i
        target -= total
    return -1


@njit
def sample_shards(
    constants: Any,
    first_row: int,
    last_row: int,
    task: int,
    x: Any,
    addresses: tuple[int, ...],
    output: Any,
    workspace: int,
) -> None:
    """Make a step for rows `first_row` to `last_row`; `addresses` are those of the parameters."""
    table = unpack(constants)
    kinds, values = tail(constants, FORMATS_AT), tail(constants, VALUES_AT)
    keys = integers_at(workspace + task * table.task_bytes)
    weights, offsets = tail(keys, CHUNK), stack_integers(8)
    infinity = ((1 << (table.element_bits - 1 - table.mantissa)) - 1) << table.mantissa
    lowest = int64(-1) << (table.element_bits - 1)
    for number in range(first_row, last_row):
        locate(number, table, tail(constants, DIMS_AT), offsets)
        given = tail(offsets, STRIDES - X_STRIDE)
        count = integer_of(addresses[COUNT], kinds[COUNT], values[COUNT], given[COUNT])
        bits, width, mantissa = real_of(
            addresses[TEMPERATURE], kinds[TEMPERATURE], values[TEMPERATURE], given[TEMPERATURE]
        )
        digits, exponent = _temperature_of(bits, width, mantissa)
        row = Row(offsets[0], table.x_step, table.axis_size, infinity, lowest)
        if kinds[TOP_P] == 0:
            word = int64(0), int64(0)  # the first element with a weight, where that is the first in order
            if digits >= 0:
                seed = integer_of(addresses[SEED], kinds[SEED], values[SEED], given[SEED])
                step = integer_of(addresses[STEP], kinds[STEP], values[STEP], given[STEP])
                word = _random_word(seed, step)
            found = _target_in(x, row, count, word)
        else:
            bits, width, mantissa = real_of(addresses[MIN_P], kinds[MIN_P], values[MIN_P], given[MIN_P])
            share, of_share = _share_of(bits, width, mantissa, 0)
            least = _share(share, of_share, FULL)
            if digits < 0:  # only elements like the largest have a weight
                exponent, least = int64(_INFINITE), int64(FULL + 1)
            bits, width, mantissa = real_of(addresses[TOP_P], kinds[TOP_P], 0, given[TOP_P])
            largest = _key_of(bits, infinity, lowest)
            factor = _factor_of(digits, exponent)
            scale = _scale_of(largest, factor, exponent, table.element_bits, table.mantissa, least)
            is_drawn = kinds[COUNT] != 0
            if largest <= -infinity or (is_drawn and count < 0):
                found = int64(-1) if is_drawn else int64(0)
            elif is_drawn:
                found = _token_at(x, row, scale, count, keys, weights)
                if found >= 0:
                    found += values[SEED]
            else:
                found = _sum_of(x, row, scale, keys, weights)
        put_index(output, table.index_size, offsets[OUTPUT_STRIDE - X_STRIDE], found)
