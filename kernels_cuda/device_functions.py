"""Device functions for kernels of users, made of the parts of our own: the public module is `dmlops.device`.

They are compiled as our kernels are (`compiler.call_linked`), and inlined. Results are sorted, ties by
ascending index; NaN is the largest value, -0.0 ties with 0.0, and values come back bit for bit. Threads
without a result get index -1, and the value that no element loses to. A warp takes the largest of its keys
away k times; a block sorts the whole row, in a time that depends neither on k nor on the elements.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, types
from numba.cuda.extending import intrinsic

from kernels_cpu.integers import signed
from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum
from kernels_cuda.ptx import i32, i64, u32
from kernels_cuda.runtime.compiler import (
    call_linked,
    import_numba_registries,
    linked_function,
    local_lengths,
)
from kernels_cuda.scan import scan_of_warps
from kernels_cuda.top_k.key_formats import ElementWords, key_format, last_element
from kernels_cuda.top_k.shared import shapes
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.pair_sort import pair_sort
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES

_TYPES = ("float16", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
_NOWHERE = 0xFFFFFFFF
import_numba_registries()  # for kernels of users: with NumPy 2.5, numba-cuda 0.30 cannot do so itself


@functools.lru_cache(None, typed=True)  # 3.0 and True are no numbers of elements
def warp_top_k(dtype: Any, k: int, items: int, *, largest: bool = True) -> Any:
    """Make ``value, index = top_k(row, count)`` for warps, each lane of which has a local array.

    Element `i` of lane `l` is number ``32 * i + l`` of the row, of which the first `count` are selected from.
    Lane `r` gets result number `r`. All 32 lanes call, with the same `count`.

    Parameters
    ----------
    dtype : NumPy or Numba type
        float16, float32, float64, or integers of 8 to 64 bits; the indices are int32.
    k, items : int
        How many are selected, and how many elements a lane has: each at most 32.
    largest : bool, optional
        Whether the largest or the smallest elements are selected.
    """
    dtype, formats, last = _element("warp_top_k.dtype", dtype, largest)
    k = _checked("warp_top_k.k", k, range(1, WARP_LANES + 1))
    items = _checked("warp_top_k.items", items, range(1, WARP_LANES + 1))
    key_type, ordered_key, *_ = element_functions(dtype.itemsize)
    warp_max = warp_maximum(key_type)
    shuffle_from = ptx.shuffle_from_u64 if key_type is ptx.u64 else ptx.shuffle_from_u32

    @linked_function
    def select(elements, count):
        keys = cuda.local.array(items, key_type)
        lane = ptx.popcount_u32(ptx.lanes_below())
        n_elements = u32(min(max(count, 0), WARP_LANES * items))
        live = u32(0)
        for item in range(items):
            keys[item] = ordered_key(key_type(elements[item]), formats)
            live |= u32(u32(item * WARP_LANES) + lane < n_elements) << u32(item)
        own = u32(_NOWHERE)
        for taken in range(k):
            best = key_type(0)
            place = u32(_NOWHERE)
            for back in range(items):
                item = items - 1 - back
                if live & u32(1 << item) != 0 and keys[item] >= best:
                    best = keys[item]
                    place = u32(item)
            offered = u32(_NOWHERE)
            if warp_max(best) == best and place != _NOWHERE:
                offered = place * WARP_LANES + lane
            position = ptx.warp_min(offered)
            if place != _NOWHERE and position == offered:
                live &= ~(u32(1) << place)
            if lane == u32(taken):
                own = position
        bits = key_type(last)
        for item in range(items):
            of_owner = shuffle_from(key_type(elements[item]), own)
            bits = of_owner if own // WARP_LANES == item else bits
        return bits, i32(own)

    return _called_by_users(dtype, select, items)


@functools.lru_cache(None, typed=True)  # 3.0 and True are no numbers of elements
def block_top_k(dtype: Any, k: int, threads: int, size: int, *, largest: bool = True) -> Any:
    """Make ``value, index = top_k(row, count)`` for blocks, the row in a shared array, or any other.

    Thread `r` gets result number `r`, of the first `count` elements. All threads call, with the same `count`;
    they may write the row just before and just after. Declare the kernel with ``launch_bounds=threads``.

    Parameters
    ----------
    dtype, largest
        As for `warp_top_k`.
    k, threads, size : int
        How many are selected, at most one for each thread; threads of the block: 256, 512 or 1024; elements
        of a row: at most 4096, and the function's `shared_bytes`, which it declares, at most 48 KiB.
    """
    dtype, formats, last = _element("block_top_k.dtype", dtype, largest)
    threads = _checked("block_top_k.threads", threads, (256, 512, 1024))
    k = _checked("block_top_k.k", k, range(1, threads + 1))
    n_warps, n_pair_bytes = threads // WARP_LANES, shapes.pair_bytes(dtype.itemsize)
    key_type, ordered_key, *_ = element_functions(dtype.itemsize)
    n_sum_bytes = n_warps * (key_type.bitwidth // 8 + 4)
    room = 48 * shapes.KIB - n_sum_bytes - shapes.pair_sort_bytes(dtype.itemsize, 0, threads)
    most = min(room // (n_pair_bytes * threads) * threads, shapes.SORTED_PAIRS)
    size = _checked("block_top_k.size", size, range(1, most + 1))
    n_bytes = shapes.pair_sort_bytes(dtype.itemsize, size, threads)
    counters = shapes.pair_counters_offset(dtype.itemsize, size, threads)
    sort_pairs, unused = pair_sort(dtype.itemsize, threads), max(0, 32 - 8 * dtype.itemsize)
    load_pair, store_pair = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR[n_pair_bytes]

    @linked_function
    def select(elements, count):
        pairs = ptx.shared_address(cuda.shared.array(n_bytes, types.uint8, VECTOR_BYTES))
        maxima = cuda.shared.array(n_warps, key_type)
        totals = cuda.shared.array(n_warps, u32)
        thread = u32(cuda.threadIdx.x)
        n_elements = u32(min(max(count, 0), size))
        cuda.syncthreads()
        place = thread
        while place < n_elements:
            key = ordered_key(key_type(elements[place]), formats) << unused
            store_pair(pairs + place * n_pair_bytes, key, key_type(place))
            place += threads
        cuda.syncthreads()
        sort_pairs(pairs, pairs + counters, n_elements, key_type(0), maxima, totals, thread)
        bits, index = key_type(last), i32(-1)
        if thread < min(n_elements, u32(k)):
            _, position = load_pair(pairs + thread * n_pair_bytes)
            bits, index = key_type(elements[position]), i32(position)
        cuda.syncthreads()
        return bits, index

    top_k = _called_by_users(dtype, select)
    top_k.shared_bytes = n_bytes + n_sum_bytes
    return top_k


@functools.lru_cache(None, typed=True)  # 3.0 and True are no numbers of elements
def block_compact(threads: int) -> Any:
    """Make ``position, total = compact(flag)`` for blocks of so many threads, a multiple of 32.

    They are how many of the threads before this one have a flag, a bool or an integer, that is not 0, and how
    many of all. All threads call. The attribute `shared_bytes` of the function says what it declares.
    """
    threads = _checked("block_compact.threads", threads, range(WARP_LANES, 1025, WARP_LANES))
    n_warps, exclusive_sum_of_warps = threads // WARP_LANES, scan_of_warps(threads)

    @linked_function
    def number(flag):
        totals = cuda.shared.array(n_warps, u32)
        cuda.syncthreads()
        flags = ptx.ballot(flag)
        before, total = exclusive_sum_of_warps(ptx.popcount_u32(flags), u32(cuda.threadIdx.x), totals)
        return i32(before + ptx.popcount_u32(flags & ptx.lanes_below())), i32(total)

    @intrinsic
    def compact(typing_context, flag):
        return types.UniTuple(i32, 2)(types.boolean), functools.partial(call_linked, number)

    compact.shared_bytes = 4 * n_warps
    return compact


def _checked(where: str, got: Any, allowed: Any) -> Any:
    """Return an argument that is one of the values that are allowed, and of their type."""
    is_number = hasattr(got, "__index__") and not isinstance(got, (bool, np.bool_))
    if got not in allowed or not (is_number or isinstance(got, str)):
        msg = f"{where}: got {got!r}; it must be in {allowed}"
        raise ValueError(msg)
    return allowed[allowed.index(got)]


def _type_name(dtype: Any) -> Any:
    """Return the name of a type of NumPy or Numba; what is none as it is."""
    if isinstance(dtype, types.Type):
        return str(dtype)
    try:
        return dtype if dtype is None else str(np.dtype(dtype))  # to NumPy, None is float64
    except TypeError:
        return dtype


def _element(where: str, dtype: Any, largest: bool) -> tuple["np.dtype[Any]", Any, int]:
    """Return a type, how elements become ordered keys, and the bits of one that no element loses to."""
    if not isinstance(largest, (bool, np.bool_)):
        msg = f"{where.replace('dtype', 'largest')}: got {largest!r}; it must be in (False, True)"
        raise ValueError(msg)
    dtype = np.dtype(_checked(where, _type_name(dtype), _TYPES))
    size, is_float = dtype.itemsize, dtype.kind == "f"
    sign = 0 if dtype.kind == "u" else 1 << (8 * size - 1)
    infinity = int(np.array(np.inf, dtype).view(f"u{size}")) if is_float else (1 << 8 * size) - 1
    flip = sign - 1 if is_float else 0
    words = ElementWords(size, signed(sign), signed(flip), signed(infinity), int(largest), 0)
    last = infinity if is_float and not largest else last_element(words) % (1 << 8 * size)
    return dtype, key_format(words), last


def _called_by_users(dtype: "np.dtype[Any]", select: Any, length: int | None = None) -> Any:
    """Make the function for rows of a type; `select` takes their bits, and returns a register of them.

    With a `length`, rows are local arrays of so many elements: it reads all of them.
    """
    element, bits = getattr(types, dtype.name), getattr(types, f"uint{8 * dtype.itemsize}")
    as_bits, register = types.Array(bits, 1, "C"), ptx.REGISTER[dtype.itemsize]

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        others = local_lengths(builder, arguments[0]) - {length}
        if length is not None and others:
            msg = f"top_k.row: got a local array of {others.pop()} elements; it must have {length}"
            raise TypeError(msg)
        given = context.make_array(sig.args[0])(context, builder, arguments[0])
        row = context.make_array(as_bits)(context, builder)
        row.data = builder.bitcast(given.data, row.data.type)
        selecting = types.Tuple((register, i32))(as_bits, i64)
        found = call_linked(select, context, builder, selecting, [row._getvalue(), arguments[1]])
        value, index = (builder.extract_value(found, place) for place in range(2))
        value = builder.bitcast(context.cast(builder, value, register, bits), context.get_value_type(element))
        return context.make_tuple(builder, sig.return_type, [value, index])

    @intrinsic
    def top_k(typing_context, row, count):
        if not isinstance(row, types.Array) or (row.ndim, row.layout, row.dtype) != (1, "C", element):
            msg = f"top_k.row: got {row}; it must be a contiguous one-dimensional array of {element}"
            raise TypeError(msg)
        return types.Tuple((element, i32))(row, i64), generate

    return top_k
