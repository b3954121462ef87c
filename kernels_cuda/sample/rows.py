"""The kernel: one block, or one cluster of blocks, draws the token of a row."""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cpu.exact.sampling import FULL
from kernels_cpu.sample.problem_words import (
    COUNT,
    DIMENSION,
    MIN_P,
    SEED,
    STEP,
    TEMPERATURE,
    TOP_P,
    X_STRIDE,
)
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function, integers
from kernels_cuda.sample.arithmetic import ARITHMETIC, N_SCALE, fill_powers, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.listed import listed_functions
from kernels_cuda.sample.parameters import (
    BINS,
    COPIES,
    FEW,
    N_POWERS,
    NARROW_DEPTH,
    THREADS,
    VECTOR,
    WARPS,
    Given,
    Parameters,
)
from kernels_cuda.sample.selected import selected_functions
from kernels_cuda.sample.shared import team_functions

_N_MAIL = 8
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
    """Return the bits of a parameter that is a float, how many there are, and how many are its fraction."""
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
    """The parameters of a row."""

    is_counted: Any
    """Whether k leaves out an element."""
    count: Any
    word_low: Any
    word_high: Any
    temperature: Any
    """Its digits and its exponent (`sampling`), as those of the shares."""
    temperature_exponent: Any
    top_p: Any
    top_p_exponent: Any
    least: Any
    factor: Any


N_REQUEST = len(Request._fields)


@device_function
def _request_of(addresses, n, kinds, values):
    """Return the parameters of a row, by the addresses of those that are arrays."""
    seed = _integer(addresses[2 + SEED], kinds.seed, values.seed)
    step = _integer(addresses[2 + STEP], kinds.step, values.step)
    count = _integer(addresses[2 + COUNT], kinds.k, values.k)
    low, high = ARITHMETIC.random_word(seed, step)
    bits, width, mantissa = _real(addresses[2 + TEMPERATURE], kinds.temperature, values.temperature)
    temperature, temperature_exponent = ARITHMETIC.temperature_of(bits, width, mantissa)
    bits, width, mantissa = _real(addresses[2 + TOP_P], kinds.top_p, values.top_p)
    top_p, top_p_exponent = ARITHMETIC.share_of(bits, width, mantissa, -1)
    bits, width, mantissa = _real(addresses[2 + MIN_P], kinds.min_p, values.min_p)
    min_p, min_p_exponent = ARITHMETIC.share_of(bits, width, mantissa, 0)
    least = ARITHMETIC.share(min_p, min_p_exponent, FULL)
    factor = ARITHMETIC.factor_of(temperature, temperature_exponent)
    is_counted = i64(0 < count < n)
    return Request(
        is_counted,
        count,
        low,
        high,
        temperature,
        temperature_exponent,
        top_p,
        top_p_exponent,
        least,
        factor,
    )


@device_function
def _request_in(asked):
    """Return the parameters of a row that a warp has written to shared memory."""
    return Request(
        asked[0],
        asked[1],
        asked[2],
        asked[3],
        asked[4],
        asked[5],
        asked[6],
        asked[7],
        asked[8],
        asked[9],
    )


def rows_kernel(element_size: int, cluster: int) -> Any:
    """Make the kernel for one element width, with so many blocks per row."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    team = team_functions(cluster)
    largest_of_part, draw_listed = listed_functions(element_size, cluster)
    draw_selected = selected_functions(element_size, cluster)
    bias = 1 << (8 * element_size - 1)
    n_listed, n_sums, n_mail, n_room = 3 * FEW, 2 * WARPS * cluster, _N_MAIL * cluster, WARPS + 4
    n_powers = N_POWERS * COPIES
    n_dimensions = NARROW_DEPTH * DIMENSION

    # Two blocks share a multiprocessor.
    @cuda.jit(max_registers=65536 // (2 * THREADS))
    def sample_rows(
        x,
        given: Given,
        output,
        p: Parameters,
        kinds: Given,
        values: Given,
        dims: integers(n_dimensions),
        far,
    ):
        powers = cuda.shared.array(n_powers, i64)
        asked = cuda.shared.array(N_REQUEST, i64)
        scale = cuda.shared.array(N_SCALE, i64)
        bins = cuda.shared.array(BINS, u64, VECTOR)
        listed = cuda.shared.array(n_listed, u64)
        sums = cuda.shared.array(n_sums, u64)
        mail = cuda.shared.array(n_mail, u64)
        room = cuda.shared.array(n_room, u64)
        addresses = cuda.local.array(8, i64)
        thread = u32(cuda.threadIdx.x)
        dimensions = cuda.shared.array(n_dimensions, i64)
        # The compiler unrolls this loop: a tuple of parameters has no addresses.
        for i in range(n_dimensions):
            if thread == i:
                dimensions[i] = dims[i]
        rank = u32(0)
        if cluster > 1:
            rank = ptx.cluster_rank()
        fill_powers(powers, thread)  # ends with a barrier
        arrays = powers, bins, listed, sums, mail, room
        ptx.grid_dependency_wait()
        row = i64(cuda.blockIdx.x) // cluster
        while row < p.n_rows:
            addresses[0], addresses[1], addresses[2], addresses[3] = x, output, given.seed, given.step
            addresses[4], addresses[5] = given.temperature, given.k
            addresses[6], addresses[7] = given.top_p, given.min_p
            rest = row
            for d in range(p.n_dims):
                if p.n_dims > NARROW_DEPTH:
                    cuda.syncthreads()
                    if thread < DIMENSION:
                        dimensions[thread] = i64(ptx.read_u64(far + (i64(d) * DIMENSION + i64(thread)) * 8))
                    cuda.syncthreads()
                first = d * DIMENSION if p.n_dims <= NARROW_DEPTH else 0
                upper = i64(0)
                if d + 1 < p.n_dims:
                    upper = rest // dimensions[first]
                coordinate = rest - upper * dimensions[first]
                # The addresses are in the order of the strides: x, the output, and the parameters.
                for i in range(8):
                    addresses[i] += coordinate * dimensions[first + X_STRIDE + i]
                rest = upper
            at = addresses[0]
            # By one warp, while the others begin to read.
            if thread >= THREADS - 32:
                request = _request_of(addresses, p.n, kinds, values)
                for i in range(N_REQUEST):
                    if thread == i + (THREADS - 32):
                        asked[i] = i64(request[i])
            token = i64(-2)
            largest = keys.register(0)
            # A small k is first tried with what a part of the row tells.
            is_guess = cluster == 1 and p.n >= p.guessed_from and (kinds.k != 0 or values.k != 0)
            is_tried = False
            while not is_tried:
                if is_guess:
                    own = largest_of_part(at, p, thread)
                    cuda.syncthreads()
                else:
                    own = keys.largest(at, p, rank, thread)
                    largest = keys.team_largest(own, thread, arrays)
                request = _request_in(asked)
                is_few = request.is_counted != 0 and request.count <= FEW
                if not is_guess and u64(largest) <= u64(bias) - u64(p.infinity):
                    token = i64(-1)
                elif request.temperature < 0:
                    if not is_guess:
                        token = keys.first_of(at, p, rank, thread, own, largest, arrays)
                elif is_few:
                    token = draw_listed(at, p, request, own, is_guess, rank, thread, arrays, scale)
                is_tried = token != -2 or not is_guess
                is_guess = False
            if token == -2:
                value = keys.value_of(keys.element_of(largest), p)
                weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
                token = draw_selected(at, p, request, weighing, largest, rank, thread, arrays)
            if rank == 0 and thread == 0:
                if p.index_size == 8:
                    ptx.store_u64(addresses[1], u64(token))
                else:
                    ptx.store_u32(addresses[1], u32(token))
            team.meet()
            row += i64(cuda.gridDim.x) // cluster

    return sample_rows
