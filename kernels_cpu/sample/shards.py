"""The kernel of `sample` for the stages of a draw from shards, which `problem_words` lists."""

from typing import Any

from kernels_cpu.exact.sampling import FULL
from kernels_cpu.intrinsics.pointers import integers_at, put_index, stack_integers, tail
from kernels_cpu.jit import int64, njit
from kernels_cpu.problems import SHARD_SUMS, SHARD_TARGETS
from kernels_cpu.sample.kernels import (
    ARITHMETIC,
    Row,
    given_in,
    integer_of,
    real_of,
    row_at,
    unpack,
    weigh,
)
from kernels_cpu.sample.plan import CHUNK, DIMS_AT
from kernels_cpu.sample.problem_words import (
    LARGEST,
    MIN_P,
    OUTPUT_STRIDE,
    SEED,
    SHARD,
    START,
    STEP,
    TARGET,
    TEMPERATURE,
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
    """Compute a stage for rows `first_row` to `last_row`; `addresses` are those of the parameters."""
    table = unpack(constants)
    keys = integers_at(workspace + task * table.task_bytes)
    weights, offsets = tail(keys, CHUNK), stack_integers(8)
    given = given_in(constants, addresses, offsets)
    for number in range(first_row, last_row):
        row = row_at(number, table, tail(constants, DIMS_AT), offsets)
        digits, exponent = _temperature_of(*real_of(given, TEMPERATURE))
        if table.stage == SHARD_TARGETS:
            word = int64(0), int64(0)  # the first element with a weight, where that is the first in order
            if digits >= 0:
                word = _random_word(integer_of(given, SEED), integer_of(given, STEP))
            found = _target_in(x, row, integer_of(given, SHARD), word)
        else:
            least = _share(*_share_of(*real_of(given, MIN_P), 0), FULL)
            if digits < 0:  # only elements like the largest have a weight
                exponent, least = int64(_INFINITE), int64(FULL + 1)
            largest = _key_of(real_of(given, LARGEST)[0], row.infinity, row.lowest)
            factor = _factor_of(digits, exponent)
            scale = _scale_of(largest, factor, exponent, table.element_bits, table.mantissa, least)
            is_weighed = largest > -row.infinity
            if table.stage == SHARD_SUMS:
                found = _sum_of(x, row, scale, keys, weights) if is_weighed else int64(0)
            else:
                found, target = int64(-1), integer_of(given, TARGET)
                if is_weighed and target >= 0:
                    found = _token_at(x, row, scale, target, keys, weights)
                if found >= 0:
                    found += integer_of(given, START)
        put_index(output, table.index_size, offsets[OUTPUT_STRIDE - X_STRIDE], found)
