"""Where the arrays of a row are, and its parameters as kernels need them."""

from typing import Any, NamedTuple

from kernels_cpu.exact.sampling import FULL
from kernels_cpu.sample.problem_words import (
    COUNT,
    DIMENSION,
    MIN_P,
    SEED,
    STEP,
    TEMPERATURE,
    TOP_P,
)
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC
from kernels_cuda.sample.parameters import NARROW_DEPTH, THREADS, Dimension, Given

_INFINITE = 1 << 20
"""The exponent of an infinite temperature, or more."""
N_ADDRESSES = 8
"""The addresses of a row: in x, the output and the parameters, in the order of a dimension's strides."""
_read_u16 = ptx.READ[2]


@called_function
def _integer(address, kind, value):
    """Return a parameter that is an integer."""
    found = i64(value)
    if kind >= 16:
        found = i64(ptx.read_u64(address))
    elif kind > 0:
        word = ptx.read_u32(address)
        found = i64(word)
        if kind & 1 != 0 and word >> 31 != 0:
            found -= 1 << 32
    return found


@called_function
def _real(address, kind, value):
    """Return the bits of a parameter that is a float, their number, and that of its fraction."""
    bits = i64(value)
    width = 64
    mantissa = 52
    if kind == 52:
        bits = i64(ptx.read_u64(address))
    elif kind == 23:
        bits = i64(ptx.read_u32(address))
        width = 32
        mantissa = 23
    elif kind > 0:
        bits = i64(_read_u16(address))
        width = 16
        mantissa = i64(kind)
    return bits, width, mantissa


class Request(NamedTuple):
    """The parameters of a row.

    Where the first element in order is taken, only elements like it have a weight, and the random word is 0.
    """

    is_counted: Any
    """Whether k leaves out any element."""
    count: Any
    word_low: Any
    word_high: Any
    temperature_exponent: Any
    """The exponent of the last binary digit (`sampling`), as in `top_p_exponent`."""
    top_p: Any
    top_p_exponent: Any
    least: Any
    """Smaller weights are dropped."""
    factor: Any


N_REQUEST = 9
"""Integers in shared memory for a `Request`: three of the temperature, two of the random word, four of the
filters."""


@device_function
def count_of(addresses, p):
    """Return k of a row; `listed` draws the tokens of those from 1 to `Parameters.n_listed`."""
    return _integer(addresses[2 + COUNT], p.formats.k, p.values.k)


@device_function
def _word_of(addresses, p):
    """Return both halves of the random word."""
    seed = _integer(addresses[2 + SEED], p.formats.seed, p.values.seed)
    step = _integer(addresses[2 + STEP], p.formats.step, p.values.step)
    return ARITHMETIC.random_word(seed, step)


@device_function
def _temperature_of(addresses, p):
    """Return the factor and the exponent, and whether the first element in order is taken."""
    bits, width, mantissa = _real(addresses[2 + TEMPERATURE], p.formats.temperature, p.values.temperature)
    digits, exponent = ARITHMETIC.temperature_of(bits, width, mantissa)
    return ARITHMETIC.factor_of(digits, exponent), exponent, i64(digits < 0)


@device_function
def _joined(word, temperature, filters, p):
    """Return the `Request` of a row by its parts."""
    low, high = word
    factor, exponent, is_greedy = temperature
    count, top_p, top_p_exponent, least = filters
    is_counted = i64(0 < count < p.n and is_greedy == 0)
    if is_greedy != 0:
        low, high, exponent, least = i64(0), i64(0), i64(_INFINITE), i64(FULL + 1)
        top_p = i64(-1)
    return Request(is_counted, count, low, high, exponent, top_p, top_p_exponent, least, factor)


TEMPERATURE_PART, WORD_PART, TOP_P_PART, MIN_P_PART = range(4)
"""The parts of a request, each found by another lane or warp at the same time. That of top_p includes k."""


@device_function
def _put_filter(is_min_p, addresses, p, asked, first):
    """Write the least weight by min_p, or else k and top_p.

    One function does both, because `listed` has lanes of one warp do the one and the other: they run the
    common code together.
    """
    if is_min_p:
        address, kind, value, nan = addresses[2 + MIN_P], p.formats.min_p, p.values.min_p, i64(0)
    else:
        address, kind, value, nan = addresses[2 + TOP_P], p.formats.top_p, p.values.top_p, i64(-1)
    bits, width, mantissa = _real(address, kind, value)
    digits, exponent = ARITHMETIC.share_of(bits, width, mantissa, nan)
    if is_min_p:
        asked[first + 8] = ARITHMETIC.share(digits, exponent, FULL)
    else:
        asked[first + 5], asked[first + 6], asked[first + 7] = count_of(addresses, p), digits, exponent


@device_function
def put_part(part, addresses, p, is_filtered, asked, first):
    """Write one part of a row's request to the shared array `asked`, from index `first` on.

    After a barrier, `request_in` reads all parts. k, top_p and min_p are read only if rows are filtered.
    """
    if part == TEMPERATURE_PART:
        asked[first], asked[first + 1], asked[first + 2] = _temperature_of(addresses, p)
    elif part == WORD_PART:
        asked[first + 3], asked[first + 4] = _word_of(addresses, p)
    elif is_filtered:
        _put_filter(part == MIN_P_PART, addresses, p, asked, first)


@device_function
def put_request(addresses, p, is_filtered, thread, asked, first):
    """Write the request of a row to the shared array `asked`, from index `first` on, as `put_part` does.

    All threads of a block may call: each of its last four warps writes one part, and the others nothing.
    """
    part = u32(THREADS - 1 - thread) >> 5
    if part <= MIN_P_PART:
        put_part(part, addresses, p, is_filtered, asked, first)


@device_function
def request_in(asked, first, p, is_filtered):
    """Return the parameters of a row from a shared array."""
    temperature = asked[first], asked[first + 1], asked[first + 2]
    word = asked[first + 3], asked[first + 4]
    filters = i64(0), i64(-1), i64(0), i64(1)
    if is_filtered:
        filters = asked[first + 5], asked[first + 6], asked[first + 7], asked[first + 8]
    return _joined(word, temperature, filters, p)


@device_function
def _add_dimension(rest, is_last, dimension, addresses):
    """Add the strides of a dimension to the addresses of a row; return the row's number in slower ones."""
    upper = i64(0)
    if not is_last:
        upper = rest // dimension.size
    coordinate = rest - upper * dimension.size
    # By name: a loop over a tuple of parameters, which has no addresses, would search for each number.
    addresses[0] += coordinate * dimension.x
    addresses[1] += coordinate * dimension.output
    addresses[2 + SEED] += coordinate * dimension.of.seed
    addresses[2 + STEP] += coordinate * dimension.of.step
    addresses[2 + TEMPERATURE] += coordinate * dimension.of.temperature
    addresses[2 + COUNT] += coordinate * dimension.of.k
    addresses[2 + TOP_P] += coordinate * dimension.of.top_p
    addresses[2 + MIN_P] += coordinate * dimension.of.min_p
    return upper


@device_function
def _far_dimension(at):
    """Return a dimension from the table in the workspace."""
    of = Given(
        i64(ptx.read_u64(at + 24)),
        i64(ptx.read_u64(at + 32)),
        i64(ptx.read_u64(at + 40)),
        i64(ptx.read_u64(at + 48)),
        i64(ptx.read_u64(at + 56)),
        i64(ptx.read_u64(at + 64)),
    )
    return Dimension(i64(ptx.read_u64(at)), i64(ptx.read_u64(at + 8)), i64(ptx.read_u64(at + 16)), of)


@device_function
def _begin_addresses(x, given, output, addresses):
    addresses[0], addresses[1], addresses[2], addresses[3] = x, output, given.seed, given.step
    addresses[4], addresses[5] = given.temperature, given.k
    addresses[6], addresses[7] = given.top_p, given.min_p


@device_function
def find_near_row(row, x, given, output, p, addresses):
    """Write the addresses of a row to a local array, where there are at most `NARROW_DEPTH` dimensions."""
    _begin_addresses(x, given, output, addresses)
    if p.n_dims > 0:
        row = _add_dimension(row, p.n_dims == 1, p.dims.first, addresses)
    if p.n_dims > 1:
        row = _add_dimension(row, p.n_dims == 2, p.dims.second, addresses)
    if p.n_dims > 2:
        _add_dimension(row, True, p.dims.third, addresses)


@device_function
def find_row(row, x, given, output, p, far, addresses):
    """Write the addresses of a row to a local array."""
    if p.n_dims > NARROW_DEPTH:
        _begin_addresses(x, given, output, addresses)
        for d in range(p.n_dims):
            dimension = _far_dimension(far + d * (8 * DIMENSION))
            row = _add_dimension(row, d + 1 == p.n_dims, dimension, addresses)
    else:
        find_near_row(row, x, given, output, p, addresses)


@device_function
def put_token(address, token, p):
    """Write a token, an unsigned integer of 64 bits: all bits are set for -1."""
    if p.index_size == 8:
        ptx.store_u64(address, token)
    else:
        ptx.store_u32(address, u32(token))
