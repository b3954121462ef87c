"""Instructions that Numba has no spelling for, as functions callable from kernels.

Addresses are int64; a value narrower than 32 bits travels in a uint32. The families:

- ``load_*``, ``store_*``: ordinary accesses to global memory.
- ``read_*``: through the read-only path; the memory must not change while the kernel runs, nor be written by
  the launch before it, if that may still run (`grid_dependency_wait`).
- ``stream_*``: the same without a place in the L1 cache, for what is read once; ``store_stream_*`` likewise.
- ``*_relaxed_*``: of GPU scope, for words that blocks share.
- ``load_shared_*``, ``store_shared_*``: to shared memory, at a uint32 address from `shared_address`.
- ``*_cluster_*``: to the shared memory of any block of the cluster, at an address from `cluster_address`;
  ``send_*`` and ``message_*``: messages to it. All of these are for compute capability 9.0 and later.
- ``atomic_*`` return the old value, ``reduce_*`` return nothing.
- ``warp_*`` and ``shuffle_*``, ``ballot``: of all 32 lanes, which must all arrive.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from kernels_cuda.ptx_instruction import BARRIER, CONVERGENT, ORDERED, PURE, capability_test, instruction
from kernels_cuda.runtime.compiler import target_capability

# Types, by the names that all kernels use.
u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i32 = types.int32
i64 = types.int64
_void = types.void
_u32x2 = types.UniTuple(u32, 2)
_u32x4 = types.UniTuple(u32, 4)
_u64x2 = types.UniTuple(u64, 2)

is_compute_90 = capability_test((9, 0))


def _from_compute_90(text: str) -> Callable[[], str]:
    return lambda: text if target_capability() >= (9, 0) else ""


# Waits until the launch before is done and all that it wrote can be seen, then lets the next one begin, if it
# may (`launch.Launches`). All threads of a kernel that follows another call it before they touch memory.
grid_dependency_wait = instruction(
    _void, [], _from_compute_90("griddepcontrol.wait; griddepcontrol.launch_dependents;")
)
# Both by themselves: blocks of the next launch that begin early take room from blocks of this one, or crowd
# on the multiprocessors that have room first.
grid_dependency_wait_only = instruction(_void, [], _from_compute_90("griddepcontrol.wait;"))
let_next_launch_begin = instruction(_void, [], _from_compute_90("griddepcontrol.launch_dependents;"))

# The register type that an element travels in, by its bytes.
REGISTER = {1: u32, 2: u32, 4: u32, 8: u64}


def _loads(kind: str, address: Any, effect: str = ORDERED) -> dict[int, Any]:
    """Return the loads of a kind, by the bytes of an element."""
    return {
        size: instruction(register, [address], f"ld.{kind}.u{8 * size} $0, [$1];", effect)
        for size, register in REGISTER.items()
    }


def _stores(kind: str, address: Any) -> dict[int, Any]:
    """Return the stores of a kind, by the bytes of an element."""
    return {
        size: instruction(_void, [address, register], f"st.{kind}.u{8 * size} [$0], $1;")
        for size, register in REGISTER.items()
    }


LOAD, STORE, STORE_STREAM = _loads("global", i64), _stores("global", i64), _stores("global.cs", i64)
READ = _loads("global.nc", i64, PURE)
LOAD_RELAXED, STORE_RELAXED = _loads("relaxed.gpu.global", i64), _stores("relaxed.gpu.global", i64)
LOAD_SHARED, STORE_SHARED = _loads("shared", u32), _stores("shared", u32)
STORE_CLUSTER = _stores("shared::cluster", u32)
load_u32, load_u64, read_u32, read_u64 = LOAD[4], LOAD[8], READ[4], READ[8]
store_u8, store_u32, store_u64 = STORE[1], STORE[4], STORE[8]
load_shared_u16, load_shared_u32, load_shared_u64 = LOAD_SHARED[2], LOAD_SHARED[4], LOAD_SHARED[8]
store_shared_u16, store_shared_u32, store_shared_u64 = STORE_SHARED[2], STORE_SHARED[4], STORE_SHARED[8]

# (address, condition): zeros where the condition is 0, and no access. Without the zeros first, the results
# would depend on what the registers held, and loads would wait for it.
_READ_IF_U32X4 = (
    "{{ .reg .pred holds; .reg .b32 a, b, c, d; setp.ne.u32 holds, $5, 0; "
    "mov.b32 a, 0; mov.b32 b, 0; mov.b32 c, 0; mov.b32 d, 0; @holds {}.v4.u32 {{a, b, c, d}}, [$4]; "
    "mov.b32 $0, a; mov.b32 $1, b; mov.b32 $2, c; mov.b32 $3, d; }}"
)
load_if_u32x4 = instruction(_u32x4, [i64, u32], _READ_IF_U32X4.format("ld.global"))
load_u32x2 = instruction(_u32x2, [i64], "ld.global.v2.u32 {$0, $1}, [$2];")
load_u64x2 = instruction(_u64x2, [i64], "ld.global.v2.u64 {$0, $1}, [$2];")
load_u32x4 = instruction(_u32x4, [i64], "ld.global.v4.u32 {$0, $1, $2, $3}, [$4];")

read_u64x2 = instruction(_u64x2, [i64], "ld.global.nc.v2.u64 {$0, $1}, [$2];", PURE)
read_u32x4 = instruction(_u32x4, [i64], "ld.global.nc.v4.u32 {$0, $1, $2, $3}, [$4];", PURE)


def _read_if(size: int, register: Any) -> Any:
    # (address, condition): 0 where the condition is 0, and no access; several stay together.
    kind = f"b{max(8 * size, 32)}"
    text = (
        f"{{ .reg .pred holds; .reg .{kind} element; setp.ne.u32 holds, $2, 0; mov.{kind} element, 0; "
        f"@holds ld.global.nc.u{8 * size} element, [$1]; mov.{kind} $0, element; }}"
    )
    return instruction(register, [i64, u32], text)


READ_IF = {size: _read_if(size, register) for size, register in REGISTER.items()}
read_if_u8, read_if_u32 = READ_IF[1], READ_IF[4]
read_if_u32x4 = instruction(_u32x4, [i64, u32], _READ_IF_U32X4.format("ld.global.nc"))


def _read_or(size: int, register: Any) -> Any:
    # (address, condition, otherwise): what is read, or `otherwise` where the condition is 0, and no access.
    kind = f"b{max(8 * size, 32)}"
    text = (
        f"{{ .reg .pred holds; .reg .{kind} element; setp.ne.u32 holds, $2, 0; mov.{kind} element, $3; "
        f"@holds ld.global.nc.u{8 * size} element, [$1]; mov.{kind} $0, element; }}"
    )
    return instruction(register, [i64, u32, register], text)


READ_OR = {size: _read_or(size, register) for size, register in REGISTER.items()}
# (address, condition, words 0 and 2, words 1 and 3)
read_u32x4_or = instruction(
    _u32x4,
    [i64, u32, u32, u32],
    "{ .reg .pred holds; .reg .b32 a, b, c, d; setp.ne.u32 holds, $5, 0; "
    "mov.b32 a, $6; mov.b32 b, $7; mov.b32 c, $6; mov.b32 d, $7; "
    "@holds ld.global.nc.v4.u32 {a, b, c, d}, [$4]; "
    "mov.b32 $0, a; mov.b32 $1, b; mov.b32 $2, c; mov.b32 $3, d; }",
)

_NO_ALLOCATE = "ld.global.nc.L1::no_allocate"
stream_u32x4 = instruction(_u32x4, [i64], f"{_NO_ALLOCATE}.v4.u32 {{$0, $1, $2, $3}}, [$4];", PURE)

store_u32x4 = instruction(_void, [i64, u32, u32, u32, u32], "st.global.v4.u32 [$0], {$1, $2, $3, $4};")
store_u32x2 = instruction(_void, [i64, u32, u32], "st.global.v2.u32 [$0], {$1, $2};")
store_u64x2 = instruction(_void, [i64, u64, u64], "st.global.v2.u64 [$0], {$1, $2};")

store_stream_u32x2 = instruction(_void, [i64, u32, u32], "st.global.cs.v2.u32 [$0], {$1, $2};")
store_stream_u32x4 = instruction(
    _void, [i64, u32, u32, u32, u32], "st.global.cs.v4.u32 [$0], {$1, $2, $3, $4};"
)
store_stream_u64x2 = instruction(_void, [i64, u64, u64], "st.global.cs.v2.u64 [$0], {$1, $2};")

atomic_add_u32 = instruction(u32, [i64, u32], "atom.relaxed.gpu.global.add.u32 $0, [$1], $2;")
reduce_or_u32 = instruction(_void, [i64, u32], "red.relaxed.gpu.global.or.b32 [$0], $1;")
reduce_add_u32 = instruction(_void, [i64, u32], "red.relaxed.gpu.global.add.u32 [$0], $1;")
reduce_add_u64 = instruction(_void, [i64, u64], "red.relaxed.gpu.global.add.u64 [$0], $1;")
reduce_min_u64 = instruction(_void, [i64, u64], "red.relaxed.gpu.global.min.u64 [$0], $1;")

_ALL_LANES = "0xffffffff"


def _shuffle(mode: str, kind: Any) -> Any:
    shuffle = f"shfl.sync.{mode}.b32"
    text = f"{shuffle} $0, $1, $2, 31, {_ALL_LANES};"
    if kind is u64:
        # 64 bits travel as two halves.
        text = (
            "{ .reg .b32 low, high; mov.b64 {low, high}, $1; "
            f"{shuffle} low, low, $2, 31, {_ALL_LANES}; {shuffle} high, high, $2, 31, {_ALL_LANES}; "
            "mov.b64 $0, {low, high}; }"
        )
    return instruction(kind, [kind, u32], text, CONVERGENT)


# (value, distance), and (value, lane).
shuffle_xor_u32, shuffle_xor_u64 = _shuffle("bfly", u32), _shuffle("bfly", u64)
SHUFFLE_XOR = {u32: shuffle_xor_u32, u64: shuffle_xor_u64}
shuffle_from_u32, shuffle_from_u64 = _shuffle("idx", u32), _shuffle("idx", u64)

# One bit per lane, set where its argument is not 0; the argument may be a bool.
ballot = instruction(
    u32,
    [u32],
    f"{{ .reg .pred holds; setp.ne.u32 holds, $1, 0; vote.sync.ballot.b32 $0, holds, {_ALL_LANES}; }}",
    CONVERGENT,
)


def _warp_reduction(operation: str, kind: str) -> Any:
    def text() -> str:
        if target_capability() >= (8, 0):
            return f"redux.sync.{operation}.{kind} $0, $1, {_ALL_LANES};"
        step = "shfl.sync.bfly.b32 other, total, {}, 31, " + _ALL_LANES
        steps = [
            f"{step.format(lanes)}; {operation}.{kind} total, total, other; " for lanes in (16, 8, 4, 2, 1)
        ]
        return f"{{ .reg .b32 total, other; mov.b32 total, $1; {''.join(steps)}mov.b32 $0, total; }}"

    return instruction(u32, [u32], text, CONVERGENT)


warp_add = _warp_reduction("add", "u32")
warp_min = _warp_reduction("min", "u32")
warp_max = _warp_reduction("max", "u32")

# The number plus one. The compiler does not know, and does not unroll the loop that counts so: where few
# passes are made, more code takes longer to load than it saves.
next_pass = instruction(u32, [u32], "add.u32 $0, $1, 1;", PURE)

lanes_below = instruction(u32, [], "mov.u32 $0, %lanemask_lt;", PURE)
# An opaque copy, which keeps the compiler from hoisting the code that uses it.
same_u32 = instruction(u32, [u32], "mov.u32 $0, $1;")

popcount_u32 = instruction(u32, [u32], "popc.b32 $0, $1;", PURE)
popcount_u64 = instruction(u32, [u64], "popc.b64 $0, $1;", PURE)
highest_bit = instruction(u32, [u32], "bfind.u32 $0, $1;", PURE)
leading_zeros_u32 = instruction(u32, [u32], "clz.b32 $0, $1;", PURE)
leading_zeros_u64 = instruction(u32, [u64], "clz.b64 $0, $1;", PURE)
trailing_zeros_u32 = instruction(
    u32, [u32], "{ .reg .b32 reversed; brev.b32 reversed, $1; clz.b32 $0, reversed; }", PURE
)
trailing_zeros_u64 = instruction(
    u32, [u64], "{ .reg .b64 reversed; brev.b64 reversed, $1; clz.b64 $0, reversed; }", PURE
)
# (sum, a, b): a times b, both as signed words, is added to the sum.
add_product = instruction(i64, [i64, u32, u32], "mad.wide.s32 $0, $2, $3, $1;", PURE)
multiply_wide_u32 = instruction(u64, [u32, u32], "mul.wide.u32 $0, $1, $2;", PURE)
multiply_high_u32 = instruction(u32, [u32, u32], "mul.hi.u32 $0, $1, $2;", PURE)
# (a, b, c): a times b, plus c.
multiply_add_u32 = instruction(u32, [u32, u32, u32], "mad.lo.u32 $0, $1, $2, $3;", PURE)
multiply_wide_add_u32 = instruction(u64, [u32, u32, u64], "mad.wide.u32 $0, $1, $2, $3;", PURE)
multiply_high_u64 = instruction(u64, [u64, u64], "mul.hi.u64 $0, $1, $2;", PURE)

# Floats travel as their bits. `max` takes the number where the other one is NaN.
max_f32 = instruction(
    u32,
    [u32, u32],
    "{ .reg .f32 a, b; mov.b32 a, $1; mov.b32 b, $2; max.f32 a, a, b; mov.b32 $0, a; }",
    PURE,
)
f32_of_f16 = instruction(
    u32,
    [u32],
    "{ .reg .b16 half; .reg .f32 a; cvt.u16.u32 half, $1; cvt.f32.f16 a, half; mov.b32 $0, a; }",
    PURE,
)
f16_of_f32 = instruction(
    u32,
    [u32],
    "{ .reg .b16 half; .reg .f32 a; mov.b32 a, $1; cvt.rn.f16.f32 half, a; cvt.u32.u16 $0, half; }",
    PURE,
)
f64_of_f32 = instruction(
    u64,
    [u32],
    "{ .reg .f32 a; .reg .f64 b; mov.b32 a, $1; cvt.f64.f32 b, a; mov.b64 $0, b; }",
    PURE,
)
f64_of_integer = instruction(u64, [u64], "{ .reg .f64 a; cvt.rn.f64.u64 a, $1; mov.b64 $0, a; }", PURE)
# (r, a, b, c): the bits of (u * a + b) * u + c, where u is 1 + r / 2^32 with 24 bits; floats, rounded down.
quadratic_f32 = instruction(
    u32,
    [u32, u32, u32, u32],
    "{ .reg .b32 bits; .reg .f32 u, v, w; shf.r.wrap.b32 bits, $1, 127, 9; mov.b32 u, bits; "
    "mov.b32 v, $2; mov.b32 w, $3; fma.rm.f32 v, u, v, w; mov.b32 w, $4; fma.rm.f32 v, u, v, w; "
    "mov.b32 $0, v; }",
    PURE,
)
# The largest float that is not above.
f32_below = instruction(
    u32,
    [u64],
    "{ .reg .f32 a; .reg .f64 b; mov.b64 b, $1; cvt.rm.f32.f64 a, b; mov.b32 $0, a; }",
    PURE,
)


def _of_doubles(name: str) -> Any:
    text = f"{{ .reg .f64 a, b; mov.b64 a, $1; mov.b64 b, $2; {name}.f64 a, a, b; mov.b64 $0, a; }}"
    return instruction(u64, [u64, u64], text, PURE)


add_down_f64, subtract_f64 = _of_doubles("add.rz"), _of_doubles("sub.rn")
divide_f64 = _of_doubles("div.rn")
# A float that is not negative, without its fraction.
integer_of_f64 = instruction(u64, [u64], "{ .reg .f64 a; mov.b64 a, $1; cvt.rzi.u64.f64 $0, a; }", PURE)


def _exponent(kind: Any, bits: int, converted: str) -> Any:
    # (element, low, origin, factor, top), of `sample.arithmetic.Weighing`.
    text = (
        f"{{ .reg .f{bits} x, low; .reg .f64 a, b, c; mov.b{bits} x, $1; mov.b{bits} low, $2; "
        f"max.f{bits} x, x, low; {converted} mov.b64 b, $3; add.rz.f64 a, a, b; mov.b64 b, $4; "
        "mov.b64 c, $5; fma.rp.f64 a, a, b, c; mov.b64 $0, a; }"
    )
    return instruction(u64, [kind, kind, u64, u64, u64], text, PURE)


exponent_f32 = _exponent(u32, 32, "cvt.f64.f32 a, x;")
exponent_f64 = _exponent(u64, 64, "mov.b64 a, x;")
# (sum, words of a, b): the sum of integers of 2^52 and more, plus a * b without its fraction.
add_whole_product_f64 = instruction(
    u64,
    [u64, u32, u32, u64],
    "{ .reg .f64 sum, a, b; mov.b64 sum, $1; mov.b64 a, {$2, $3}; mov.b64 b, $4; "
    "fma.rz.f64 sum, a, b, sum; mov.b64 $0, sum; }",
    PURE,
)

# (words a and b, selector): digit i of the selector names what byte i of the result is; b's are 4 to 7.
permute = instruction(u32, [u32, u32, u32], "prmt.b32 $0, $1, $2, $3;", PURE)

# (address, value, condition): nothing where the condition is 0, and no branch.
_STORE_SHARED_IF = "{{ .reg .pred holds; setp.ne.u32 holds, $2, 0; @holds st.shared.{} [$0], $1; }}"
store_shared_if_u32 = instruction(_void, [u32, u32, u32], _STORE_SHARED_IF.format("u32"))
store_shared_if_u64 = instruction(_void, [u32, u64, u32], _STORE_SHARED_IF.format("u64"))
_STORE_TWO_IF = "{{ .reg .pred holds; setp.ne.u32 holds, $3, 0; @holds st.shared.v2.{} [$0], {{$1, $2}}; }}"
store_shared_if_u32x2 = instruction(_void, [u32, u32, u32, u32], _STORE_TWO_IF.format("u32"))
store_shared_if_u64x2 = instruction(_void, [u32, u64, u64, u32], _STORE_TWO_IF.format("u64"))
load_shared_u32x2 = instruction(_u32x2, [u32], "ld.shared.v2.u32 {$0, $1}, [$2];")
load_shared_u32x4 = instruction(_u32x4, [u32], "ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];")
load_shared_u64x2 = instruction(_u64x2, [u32], "ld.shared.v2.u64 {$0, $1}, [$2];")
store_shared_u32x4 = instruction(_void, [u32, u32, u32, u32, u32], "st.shared.v4.u32 [$0], {$1, $2, $3, $4};")
store_shared_u32x2 = instruction(_void, [u32, u32, u32], "st.shared.v2.u32 [$0], {$1, $2};")
store_shared_u64x2 = instruction(_void, [u32, u64, u64], "st.shared.v2.u64 [$0], {$1, $2};")
# Of two words, by the bytes of both.
LOAD_PAIR, STORE_PAIR = {8: load_u32x2, 16: load_u64x2}, {8: store_u32x2, 16: store_u64x2}
LOAD_SHARED_PAIR = {8: load_shared_u32x2, 16: load_shared_u64x2}
STORE_SHARED_PAIR = {8: store_shared_u32x2, 16: store_shared_u64x2}
STORE_SHARED_PAIR_IF = {8: store_shared_if_u32x2, 16: store_shared_if_u64x2}
atomic_add_shared_u32 = instruction(u32, [u32, u32], "atom.shared.add.u32 $0, [$1], $2;")
reduce_max_shared_u32 = instruction(_void, [u32, u32], "red.shared.max.u32 [$0], $1;")
reduce_or_shared_u32 = instruction(_void, [u32, u32], "red.shared.or.b32 [$0], $1;")
reduce_add_shared_u32 = instruction(_void, [u32, u32], "red.shared.add.u32 [$0], $1;")
# (address, value, condition): without the condition nothing is added, and the result means nothing.
add_shared_if = instruction(
    u32,
    [u32, u32, u32],
    "{ .reg .pred holds; setp.ne.u32 holds, $3, 0; @holds atom.shared.add.u32 $0, [$1], $2; }",
)
# The hardware counts lanes with the same address in one step.
count_shared = instruction(_void, [u32], "red.shared.add.u32 [$0], 1;")
# (address, condition): the hardware counts lanes with the same address in one step.
count_shared_if = instruction(
    _void, [u32, u32], "{ .reg .pred holds; setp.ne.u32 holds, $1, 0; @holds red.shared.add.u32 [$0], 1; }"
)

# (address in shared memory, address): copies a vector while the thread goes on, until it waits for all.
copy_async_u32x4 = instruction(_void, [u32, i64], "cp.async.ca.shared.global [$0], [$1], 16;")
copy_async_wait = instruction(_void, [], "cp.async.wait_all;")
# (address in shared memory, address, bytes): copies 16 bytes or none, and zeros for the others.
copy_async_first_bytes = instruction(_void, [u32, i64, u32], "cp.async.cg.shared.global [$0], [$1], 16, $2;")
# The copies since the last one of these are a group.
copy_async_end_group = instruction(_void, [], "cp.async.commit_group;")
# Waits for all groups of the thread but the last one.
copy_async_wait_but_last = instruction(_void, [], "cp.async.wait_group 1;")

# The number of this block in its cluster.
cluster_rank = instruction(u32, [], "mov.u32 $0, %cluster_ctarank;", PURE)
# (address in this block's shared memory, rank): where that block has the same.
cluster_address = instruction(u32, [u32, u32], "mapa.shared::cluster.u32 $0, $1, $2;", PURE)
load_cluster_u32 = instruction(u32, [u32], "ld.shared::cluster.u32 $0, [$1];")
load_cluster_u64 = instruction(u64, [u32], "ld.shared::cluster.u64 $0, [$1];")
store_cluster_u32x4 = instruction(
    _void, [u32, u32, u32, u32, u32], "st.shared::cluster.v4.u32 [$0], {$1, $2, $3, $4};"
)
# Messages between blocks of a cluster (`cluster_messages`) are counted by barriers: 8 bytes of shared memory.
# (address, arrivals): makes one. Before other blocks use it, all must have met.
message_barrier_init = instruction(
    _void, [u32, u32], "mbarrier.init.shared::cta.b64 [$0], $1; fence.mbarrier_init.release.cluster;"
)
# (address, bytes): arrives at a barrier of any block of the cluster, which so many bytes more are sent to. It
# does not make sure that others can see what the thread wrote before: that takes half a microsecond.
message_barrier_announce = instruction(
    _void, [u32, u32], "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [$0], $1;"
)
# (address, parity): whether all have arrived, and all that was announced, for the first time (0), the second
# (1), and so on. The hardware waits a while before it says no.
message_barrier_try_wait = instruction(
    u32,
    [u32, u32],
    "{ .reg .pred done; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], $2; "
    "selp.u32 $0, 1, 0, done; }",
)
# (address, values, barrier): both addresses are of the same block of the cluster.
_SEND = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
send_u32 = instruction(_void, [u32, u32, u32], f"{_SEND}.b32 [$0], $1, [$2];")
send_u64 = instruction(_void, [u32, u64, u32], f"{_SEND}.b64 [$0], $1, [$2];")
send_u32x4 = instruction(
    _void, [u32, u32, u32, u32, u32, u32], f"{_SEND}.v4.b32 [$0], {{$1, $2, $3, $4}}, [$5];"
)
# All threads of the cluster arrive. What a thread did before, or knew of by a barrier of its block, comes
# before what those do that have waited. It takes a warp a while to make sure of that, for loads too: so one
# warp does for its block, after a barrier. A relaxed arrival orders nothing.
cluster_arrive_relaxed = instruction(_void, [], "barrier.cluster.arrive.relaxed.aligned;", BARRIER)
cluster_arrive = instruction(_void, [], "barrier.cluster.arrive.release.aligned;", BARRIER)
cluster_wait = instruction(_void, [], "barrier.cluster.wait.acquire.aligned;", BARRIER)


@intrinsic
def shared_from(typing_context: Any, array: Any, first: Any) -> Any:
    """Return the array from an element on; a slice would look where its ends are, and this does not."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        given = context.make_array(sig.args[0])(context, builder, arguments[0])
        moved = context.make_array(sig.args[0])(context, builder, arguments[0])
        index = context.cast(builder, arguments[1], sig.args[1], i64)
        moved.data = builder.gep(given.data, [index])
        return moved._getvalue()

    return array(array, first), generate


@intrinsic
def shared_address(typing_context: Any, array: Any) -> Any:
    """Return the address of a shared array within shared memory, as a uint32."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(3)), ir.IntType(32))

    return u32(array), generate


def _unfolded_key(kind: Any, bits: int, directed: str) -> Any:
    # (element, flip, factor, offset) to an unfolded key of kernels_cuda.top_k.shared.keys. Function 0x6A:
    # (a & b) ^ c.
    text = f"{{ .reg .b{bits} mask; shr.s{bits} mask, $1, {bits - 1}; {directed} }}"
    return instruction(kind, [kind] * 4, text, PURE)


unfolded_key_u32 = _unfolded_key(u32, 32, "lop3.b32 mask, mask, $2, $1, 0x6A; mad.lo.u32 $0, mask, $3, $4;")
unfolded_key_u64 = _unfolded_key(
    u64, 64, "and.b64 mask, mask, $2; xor.b64 mask, mask, $1; xor.b64 mask, mask, $3; add.u64 $0, mask, $4;"
)


def _of_halves(name: str) -> Any:
    parts = (
        "{ .reg .b16 a, b, c, d; mov.b32 {a, b}, $1; mov.b32 {c, d}, $2; "
        f"{name}.u16 a, a, c; {name}.u16 b, b, d; mov.b32 $0, {{a, b}}; }}"
    )
    whole = f"{name}.u16x2 $0, $1, $2;"
    return instruction(u32, [u32] * 2, lambda: whole if target_capability() >= (9, 0) else parts, PURE)


# Of both halves of a word; older GPUs take one after the other.
add_u16x2, max_u16x2, min_u16x2 = _of_halves("add"), _of_halves("max"), _of_halves("min")
# (marks, mark, word, number): the marks, and this one if the word, a float, is less than the number.
mark_if_below_f32 = instruction(
    u32,
    [u32] * 4,
    "{ .reg .pred holds; .reg .b32 marks; mov.b32 marks, $1; setp.lt.f32 holds, $3, $4; "
    "@holds or.b32 marks, marks, $2; mov.b32 $0, marks; }",
    PURE,
)
# (word, numbers): all bits of each half of the result where the word's half, a float, is less than the other.
below_f16x2 = instruction(u32, [u32, u32], "set.lt.u32.f16x2 $0, $1, $2;", PURE)
below_bf16x2 = instruction(u32, [u32, u32], "set.lt.u32.bf16x2 $0, $1, $2;", PURE)
# (low, high): a word of both.
join_u32 = instruction(u64, [u32, u32], "mov.b64 $0, {$1, $2};", PURE)


def _lanes_with(bit: int, lanes: str) -> str:
    """Return what makes `lanes` those whose bit of operand 1 is as this lane's."""
    return (
        f"and.b32 {lanes}, $1, {1 << bit}; setp.ne.u32 is_set, {lanes}, 0; "
        f"vote.sync.ballot.b32 {lanes}, is_set, {_ALL_LANES}; @!is_set not.b32 {lanes}, {lanes}; "
    )


# The lanes whose values have the same lowest eight bits as this lane's.
match_byte = instruction(
    u32,
    [u32],
    "{ .reg .pred is_set; .reg .b32 same, lanes, others; mov.b32 same, -1; "
    + "".join(
        _lanes_with(bit, "lanes")
        + _lanes_with(bit + 1, "others")
        + "lop3.b32 same, same, lanes, others, 0x80; "
        for bit in range(0, 8, 2)
    )
    + "mov.b32 $0, same; }",
    CONVERGENT,
)

# The sum of this lane's value and those of the lanes below.
warp_inclusive_sum = instruction(
    u32,
    [u32],
    "{ .reg .pred exists; .reg .b32 total, below; mov.b32 total, $1; "
    + "".join(
        f"shfl.sync.up.b32 below|exists, total, {distance}, 0, {_ALL_LANES}; "
        "@exists add.u32 total, total, below; "
        for distance in (1, 2, 4, 8, 16)
    )
    + "mov.b32 $0, total; }",
    CONVERGENT,
)
