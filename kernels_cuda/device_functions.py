"""Device functions for the kernels of Numba's users, of the parts that our own kernels consist of.

They are compiled as our kernels are (`compiler.call_linked`), and inlined into the kernel that calls them.

- `warp_top_k` keeps the ordered keys of a row in registers. In each of k rounds it takes the largest key of
  the warp away, and of the lanes that hold it the smallest position.
- `block_top_k` keeps them in shared memory. Histograms find a threshold that at least k are at or above
  (`threshold`), and the few that are get their ranks by counting those before them (`rank`).
- `block_compact` counts the flags of a warp, and adds those of the warps before it (`scan`).
"""

import functools
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda, types
from numba.cuda.extending import intrinsic

from kernels_cuda import ptx
from kernels_cuda.ptx import i32, i64, u32
from kernels_cuda.runtime.compiler import call_linked, linked_function
from kernels_cuda.scan import scan_of_warps
from kernels_cuda.top_k.problem import KeyFormat, key_format
from kernels_cuda.top_k.shared.cooperate import warp_maximum
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.rank import rank_functions
from kernels_cuda.top_k.shared.shapes import (
    MOST_SHARED_BYTES,
    SPARE_CANDIDATES,
    VECTOR_BYTES,
    WARP_LANES,
    group_key_bytes,
)
from kernels_cuda.top_k.shared.threshold import N_COUNTERS, Scratch, threshold_functions

_TYPES = [np.dtype(f"{kind}{size}") for kind in "iuf" for size in (1, 2, 4, 8) if kind != "f" or size > 1]
_MOST_THREADS = 1024
_NOWHERE = 0xFFFFFFFF


def warp_top_k(dtype: Any, k: int, items: int, *, largest: bool = True) -> Any:
    """Make the device function ``top_k(keys, count)``, by which a warp selects from a row in registers.

    Parameters
    ----------
    dtype : NumPy type
        float16, float32, float64, or a signed or unsigned integer of 8 to 64 bits.
    k : int
        How many elements it selects: 1 to 32.
    items : int
        Elements that each lane holds, 1 to 32: a row has up to ``32 * items``.
    largest : bool, optional
        Whether the largest elements are selected, or the smallest.

    Returns
    -------
    device function
        ``value, index = top_k(keys, count)``. `keys` is a local array of `items` elements: number `i` of lane
        `l` is element ``32 * i + l`` of the row, whose first `count` elements exist. Lane `r` gets element
        number `r` of the result, as a `dtype`, and its index in the row, as an int32. From ``min(k, count)``
        on, lanes get index -1 and the value that no element loses to. All 32 lanes must call, with the same
        `count`, which is clamped to ``[0, 32 * items]``.

    Raises
    ------
    ValueError
        If an argument is none of these.
    TypeError
        If `dtype` is, and from Numba's compilation of a kernel, if the arguments have other types.

    Notes
    -----
    Ties are ordered by ascending index, NaN is the largest value, -0.0 ties with +0.0, and values come back
    bit for bit. It uses no shared memory and no barrier of the block.
    """
    found = _element_type("warp_top_k", dtype)
    k, items = _within("warp_top_k", "k", k, WARP_LANES), _within("warp_top_k", "items", items, WARP_LANES)
    return _warp_top_k(found, k, items, bool(largest))


def block_top_k(dtype: Any, k: int, threads: int, size: int, *, largest: bool = True) -> Any:
    """Make the device function ``top_k(row, count, scratch)``, by which a block selects from a row.

    Parameters
    ----------
    dtype : NumPy type
        As for `warp_top_k`.
    k : int
        How many elements it selects: 1 to `threads`.
    threads : int
        Threads of the one-dimensional block: a power of two from 32 to 1024.
    size : int
        The most elements that a row has. The function needs about four bytes of shared memory for each, or
        eight if elements have eight.
    largest : bool, optional
        Whether the largest elements are selected, or the smallest.

    Returns
    -------
    device function
        ``value, index = top_k(row, count, scratch)``. `row` is a contiguous array, in shared or other memory,
        of which the first `count` elements are the row, and `scratch` a shared array of `shared_bytes` uint8,
        wherever it begins. Thread `r` gets element number `r` of the result, and its index, like a lane of
        `warp_top_k`. All threads must call, with the same `count`, which is clamped to ``[0, size]``. The
        attributes `threads` and `shared_bytes` say what a launch needs.

    Raises
    ------
    ValueError
        If an argument is none of these, or a block never has that much shared memory.
    TypeError
        If `dtype` is, and from Numba's compilation of a kernel, if the arguments have other types.

    Notes
    -----
    The order is that of `warp_top_k`. The function begins and ends with a barrier of the block: threads may
    write the row just before they call, and the row and `scratch` just after.
    """
    found, most = _element_type("block_top_k", dtype), MOST_SHARED_BYTES
    threads = _block_threads("block_top_k", threads)
    if threads & (threads - 1):
        _refuse("block_top_k", "threads", threads, "it must be a power of two")
    k = _within("block_top_k", "k", k, threads)
    size = _within("block_top_k", "size", size, most // group_key_bytes(found.itemsize))
    function = _block_top_k(found, k, threads, size, bool(largest))
    if function.shared_bytes > most:
        allowed = f"it needs {function.shared_bytes} bytes of shared memory, and a block has at most {most}"
        _refuse("block_top_k", "size", size, allowed)
    return function


def block_compact(threads: int) -> Any:
    """Make the device function ``compact(flag, scratch)``, which numbers the threads whose flag is set.

    Parameters
    ----------
    threads : int
        Threads of the one-dimensional block: a multiple of 32, up to 1024.

    Returns
    -------
    device function
        ``position, total = compact(flag, scratch)``, both int32: how many of the threads before this one have
        a flag that is not 0 or False, and how many of all. `scratch` is a shared array of `shared_bytes`
        uint8, wherever it begins. All threads must call. The attributes `threads` and `shared_bytes` say what
        a launch needs.

    Raises
    ------
    ValueError
        If the number of threads is none of these.

    Notes
    -----
    The function begins and ends with a barrier of the block.
    """
    return _block_compact(_block_threads("block_compact", threads))


def _refuse(function: str, field: str, got: object, allowed: str) -> None:
    msg = f"{function}.{field}: got {got!r}; {allowed}"
    raise ValueError(msg)


def _within(function: str, field: str, given: Any, most: int) -> int:
    if not hasattr(given, "__index__") or not 1 <= given <= most:
        _refuse(function, field, given, f"it must be in [1, {most}]")
    return operator.index(given)


def _block_threads(function: str, given: Any) -> int:
    threads = _within(function, "threads", given, _MOST_THREADS)
    if threads % WARP_LANES:
        _refuse(function, "threads", threads, f"it must be a multiple of {WARP_LANES}")
    return threads


def _element_type(function: str, dtype: Any) -> "np.dtype[Any]":
    found = np.dtype(dtype)
    if dtype is None or found not in _TYPES:
        msg = f"{function}.dtype: got {dtype and found}; it must be one of {', '.join(map(str, _TYPES))}"
        raise TypeError(msg)
    return found


class _Elements:
    """How elements of a type are read as bits, compared by keys, and returned."""

    def __init__(self, dtype: "np.dtype[Any]", largest: bool) -> None:
        bits = 8 * dtype.itemsize
        ones, sign, self.functions = (1 << bits) - 1, 1 << (bits - 1), element_functions(dtype.itemsize)
        self.type, self.bits_type = getattr(types, dtype.name), getattr(types, f"uint{bits}")
        if dtype.kind == "f":
            masks = sign, sign - 1, int(np.array(np.inf, dtype).view(f"u{dtype.itemsize}"))
            last = -np.inf if largest else np.inf
        else:
            masks = sign if dtype.kind == "i" else 0, 0, ones
            last = np.iinfo(dtype).min if largest else np.iinfo(dtype).max
        self.key_format: KeyFormat = key_format(dtype.itemsize, *masks, largest)
        self.last = int(np.array(last, dtype).view(f"u{dtype.itemsize}"))


@intrinsic
def _array_at(typing_context: Any, array: Any, first_byte: Any, dtype: Any) -> Any:
    """Return an array of another type, without a size, that begins so many bytes after an array."""
    found = types.Array(dtype.dtype, 1, "C")

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        moved = context.make_array(found)(context, builder)
        data = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [arguments[1]])
        moved.data = builder.bitcast(data, moved.data.type)
        return moved._getvalue()

    return found(array, i64, dtype), generate


def _called_with(array: Any, dtype: Any, what: str) -> Any:
    """Return the type of an array argument."""
    if not isinstance(array, types.Array) or (array.ndim, array.layout, array.dtype) != (1, "C", dtype):
        msg = f"{what}: got {array}; it must be a contiguous one-dimensional array of {dtype}"
        raise TypeError(msg)
    return array


def _calling(function: Any) -> Any:
    """Return what generates a call of a linked function that has the same signature."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return call_linked(context, builder, function, sig, arguments)

    return generate


@functools.cache
def _warp_top_k(dtype: "np.dtype[Any]", k: int, items: int, largest: bool) -> Any:
    elements = _Elements(dtype, largest)
    format_, last, bits_type, value_type = (
        elements.key_format,
        elements.last,
        elements.bits_type,
        elements.type,
    )
    key_type, ordered_key = elements.functions.key_type, elements.functions.ordered_key
    warp_max = warp_maximum(key_type)
    shuffle_from = ptx.shuffle_from_u64 if key_type is ptx.u64 else ptx.shuffle_from_u32

    @linked_function
    def select(held, count):
        elements = _array_at(held, 0, bits_type)
        keys = cuda.local.array(items, key_type)
        lane = ptx.popcount_u32(ptx.lanes_below())
        n_elements = u32(min(max(count, 0), WARP_LANES * items))
        live = u32(0)
        for item in range(items):
            keys[item] = ordered_key(key_type(elements[item]), format_)
            live |= u32(u32(item * WARP_LANES) + lane < n_elements) << u32(item)
        n_selected = min(n_elements, u32(k))
        own = u32(_NOWHERE)
        taken = u32(0)
        while taken < n_selected:
            best = key_type(0)
            place = u32(_NOWHERE)
            for back in range(items):
                item = items - 1 - back
                if (live & u32(1 << item)) != 0 and keys[item] >= best:
                    best = keys[item]
                    place = u32(item)
            offered = u32(_NOWHERE)
            if warp_max(best) == best and place != _NOWHERE:
                offered = place * WARP_LANES + lane
            position = ptx.warp_min(offered)
            if position == offered:
                live &= ~(u32(1) << place)
            if taken == lane:
                own = position
            taken += 1
        bits = cuda.local.array(1, bits_type)
        bits[0] = bits_type(last)
        for item in range(items):
            given = shuffle_from(key_type(elements[item]), own & (WARP_LANES - 1))
            if own // WARP_LANES == item:
                bits[0] = bits_type(given)
        return _array_at(bits, 0, value_type)[0], i32(own)

    @intrinsic
    def top_k(typing_context, keys, count):
        _called_with(keys, value_type, "warp_top_k.keys")
        return types.Tuple((value_type, i32))(keys, i64), _calling(select)

    return top_k


@functools.cache
def _block_top_k(dtype: "np.dtype[Any]", k: int, threads: int, size: int, largest: bool) -> Any:
    elements = _Elements(dtype, largest)
    format_, last, bits_type, value_type = (
        elements.key_format,
        elements.last,
        elements.bits_type,
        elements.type,
    )
    key_type, ordered_key = elements.functions.key_type, elements.functions.ordered_key
    finding, ranking = threshold_functions(threads, key_type), rank_functions(threads, key_type)
    block_extremes, find_threshold, list_groups = finding[1:]
    place_of_few, rank_by_counting = ranking.place_of_few, ranking.rank_by_counting
    most = max(k, min(threads, 2 * k + SPARE_CANDIDATES))
    # Keys of all and of candidates, extremes; positions, histogram, sums; counters. All begin with a vector.
    key_bytes = group_key_bytes(dtype.itemsize)
    area_bytes = [key_bytes * size, key_bytes * threads, key_bytes * 64, 4 * threads, 4 * threads, 4 * 64]
    starts = [0]
    for n_bytes in area_bytes:
        starts.append(starts[-1] + -(-n_bytes // VECTOR_BYTES) * VECTOR_BYTES)
    _, of_candidates, of_extremes, of_lows, of_histogram, of_sums, of_counters = starts

    @linked_function
    def select(row, count, scratch):
        elements = _array_at(row, 0, bits_type)
        begin = i64(-ptx.shared_address(scratch) & (VECTOR_BYTES - 1))
        keys = _array_at(scratch, begin, key_type)
        candidates = _array_at(scratch, begin + of_candidates, key_type)
        lows = _array_at(scratch, begin + of_lows, u32)
        histogram = _array_at(scratch, begin + of_histogram, u32)
        counting = Scratch(
            histogram,
            _array_at(scratch, begin + of_sums, u32),
            _array_at(scratch, begin + of_extremes, key_type),
            _array_at(scratch, begin + of_counters, u32),
        )
        thread = u32(cuda.threadIdx.x)
        ids = thread, thread & 31, thread >> 5
        n_elements = u32(min(max(count, 0), size))
        n_selected = min(n_elements, u32(k))
        cuda.syncthreads()

        histogram[thread] = u32(0)
        lowest = ~key_type(0)
        highest = key_type(0)
        position = thread
        while position < n_elements:
            key = ordered_key(key_type(elements[position]), format_)
            keys[position] = key
            lowest = min(lowest, key)
            highest = max(highest, key)
            position += threads
        # The barrier inside makes all keys visible.
        extent = block_extremes(counting, lowest, highest, ids)
        n_candidates = n_elements
        if n_elements <= most:
            lows[thread] = thread
        else:
            threshold, n_above, n_candidates = find_threshold(
                keys, n_elements, extent, n_selected, u32(most), counting, ids
            )
            n_ties = n_elements
            if n_candidates > most:
                n_ties = n_selected - n_above
                n_candidates = n_selected
            list_groups(keys, n_elements, threshold, n_ties, lows, counting, ids)
        if thread < n_candidates:
            candidates[thread] = keys[lows[thread]]
            lows[thread] = ~lows[thread]
        cuda.syncthreads()
        lane_bits, candidate = place_of_few(n_candidates, thread)
        rank = rank_by_counting(candidates, lows, n_candidates, thread, lane_bits)
        if candidate < n_candidates and rank < n_selected:
            histogram[rank] = ~lows[candidate]
        cuda.syncthreads()
        bits = cuda.local.array(1, bits_type)
        bits[0] = bits_type(last)
        index = i32(-1)
        if thread < n_selected:
            index = i32(histogram[thread])
            bits[0] = elements[histogram[thread]]
        cuda.syncthreads()
        return _array_at(bits, 0, value_type)[0], index

    @intrinsic
    def top_k(typing_context, row, count, scratch):
        _called_with(row, value_type, "block_top_k.row")
        _called_with(scratch, types.uint8, "block_top_k.scratch")
        return types.Tuple((value_type, i32))(row, i64, scratch), _calling(select)

    return _with_needs(top_k, threads, of_counters + 4 * N_COUNTERS)


@functools.cache
def _block_compact(threads: int) -> Any:
    exclusive_sum_of_warps = scan_of_warps(threads)

    @linked_function
    def number(flag, scratch):
        totals = _array_at(scratch, i64(-ptx.shared_address(scratch) & (VECTOR_BYTES - 1)), u32)
        cuda.syncthreads()
        flags = ptx.ballot(flag)
        before, total = exclusive_sum_of_warps(ptx.popcount_u32(flags), u32(cuda.threadIdx.x), totals)
        cuda.syncthreads()
        return i32(before + ptx.popcount_u32(flags & ptx.lanes_below())), i32(total)

    @intrinsic
    def compact(typing_context, flag, scratch):
        _called_with(scratch, types.uint8, "block_compact.scratch")
        return types.UniTuple(i32, 2)(types.boolean, scratch), _calling(number)

    return _with_needs(compact, threads, 4 * (threads // WARP_LANES))


def _with_needs(function: Any, threads: int, n_bytes: int) -> Any:
    function.threads, function.shared_bytes = threads, n_bytes + VECTOR_BYTES
    return function
