"""Random problems of plain integers for plans, of all sizes and layouts."""

import itertools
import math
import random

from tests.inside import DiagonalProblem, GatherProblem, KeyMasks, NonzeroProblem, SampleProblem, TopKProblem

FULL = (1 << 63) - 1
# Addresses are of 63 bits, too, and memory may begin this much after the first.
ALIGNMENT = 16


def size(rng, most):
    """Return a size up to `most`; small ones, powers of two and their neighbours are likely."""
    if rng.random() < 0.3:
        return rng.randint(1, min(most, 9))
    near = (1 << rng.randrange(max(most, 1).bit_length())) + rng.choice((-1, 0, 0, 1, rng.randrange(1 << 20)))
    return max(1, min(near, most))


def shape(rng, n_dims, most_elements, *, empty=0.03):
    """Return sizes of a tensor; some have no elements."""
    sizes = []
    for _ in range(n_dims):
        sizes.append(size(rng, most_elements))
        most_elements = max(most_elements // sizes[-1], 1)
    rng.shuffle(sizes)
    if sizes and rng.random() < empty:
        sizes[rng.randrange(n_dims)] = 0
    return sizes


def strides(rng, sizes, most, kind=None):
    """Return strides in elements of a tensor that extends over at most `most` elements."""
    kind = kind or rng.choice(("packed", "packed", "padded", "permuted", "step", "broadcast", "negative"))
    order = list(range(len(sizes)))[::-1]
    if kind == "permuted":
        rng.shuffle(order)
    found, step = [0] * len(sizes), 1
    if kind == "step":
        step = rng.choice((2, 3, 4, 17))
    for i in order:
        found[i] = step if step <= most else 0
        step *= max(sizes[i], 1)
        if kind == "padded":
            step += rng.choice((0, 0, 1, 3, 4, 16))
    if kind == "broadcast" and sizes:
        found[rng.randrange(len(sizes))] = 0
    if kind == "negative":
        found = [-stride if rng.random() < 0.5 else stride for stride in found]
    return [stride if abs(stride) <= most else 0 for stride in found]


def merged(sizes, *tensors):
    """Return dimensions as problems have them: without dimensions of one element."""
    return tuple(dim for dim in zip(sizes, *tensors, strict=True) if dim[0] != 1)


def most_elements(rng, element_size):
    """Return how many elements a tensor may have: mostly few, at times as many as there can be."""
    n_bytes = (1 << rng.choice((8, 12, 16, 20, 24, 30, 33, 36, 40, 50, 63))) - 1
    return min(n_bytes, FULL - ALIGNMENT) // element_size


def diagonal_problem(rng):
    """Return a random problem of DIAGONAL_MATRIX1."""
    element_size = rng.choice((1, 2, 4, 8))
    most = most_elements(rng, element_size)
    n_dims = rng.choice((0, 0, 1, 1, 2, 3, 4, 5, 6))
    sizes = shape(rng, n_dims + 2, most)
    height, width = sizes[-2:]
    # The largest tensors have as many bytes as there can be.
    x = strides(rng, sizes, FULL // element_size)
    output = strides(
        rng, sizes, FULL // element_size, rng.choice(("packed", "packed", "padded", "permuted", "step"))
    )
    if rng.random() < 0.2 and height <= FULL // element_size // 2:  # columns are contiguous
        x[-2:] = 1, height + rng.choice((0, 0, 3))
    begin, end = sorted(
        rng.choice((0, 1, -1, 5, rng.randint(-height, width), -height, width)) for _ in range(2)
    )
    begin, end = (min(max(bound, -height), width) for bound in (begin, end))
    return DiagonalProblem(
        element_size=element_size,
        has_input=rng.random() < 0.75,
        value=rng.choice((0, 1, rng.getrandbits(8 * element_size), (1 << (8 * element_size)) - 1)),
        batch=merged(sizes[:-2], x[:-2], output[:-2]),
        height=height,
        width=width,
        x_strides=tuple(x[-2:]),
        output_strides=tuple(output[-2:]),
        begin=begin,
        end=end,
        inverted=rng.random() < 0.3,
    )


def gather_problem(rng):
    """Return a random problem of GATHER_ND1."""
    element_size, index_size = rng.choice((1, 2, 4, 8)), rng.choice((4, 8))
    most = most_elements(rng, max(element_size, index_size))
    n_batch = rng.choice((0, 0, 1, 2))
    n_tuple, n_slice = rng.choice((0, 1, 1, 2, 3)), rng.choice((0, 1, 1, 2, 3))
    n_bounds = rng.choice((0, 1, 1, 2, 3, 4, 5, 9))
    has_runs = n_slice > 0 and rng.random() < 0.6  # or slices with gaps
    sizes = shape(rng, n_batch + n_tuple + n_slice, max(most // 30_001, 9) if has_runs else most)
    batch, tuples, slices = sizes[:n_batch], sizes[n_batch:][:n_tuple], sizes[n_batch + n_tuple :]
    bounds = shape(rng, n_bounds, most_elements(rng, element_size), empty=0)
    largest = FULL // 8
    x = strides(rng, [*batch, *bounds, *slices], largest)
    indices = strides(rng, [*batch, *tuples, n_bounds], largest)
    output = strides(rng, sizes, largest, rng.choice(("packed", "packed", "packed", "padded", "permuted")))
    if has_runs:
        sizes[-1] = slices[-1] = rng.choice((3, 16, 33, 64, 100, 1000, 30_001))
        output = strides(rng, sizes, largest, "packed")
        x[-1] = rng.choice((1, 1, 1, 2, 7))
    x_batch, x_bounds, x_slices = x[:n_batch], x[n_batch:][:n_bounds], x[n_batch + n_bounds :]
    output_batch, output_tuples = output[:n_batch], output[n_batch:][:n_tuple]
    return GatherProblem(
        element_size=element_size,
        index_size=index_size,
        index_signed=rng.random() < 0.7,
        batch=merged(batch, x_batch, indices[:n_batch], output_batch),
        tuples=merged(tuples, indices[n_batch:-1], output_tuples),
        coordinate_stride=indices[-1],
        bounds=tuple(zip(bounds, x_bounds, strict=True)),
        slices=merged(slices, x_slices, output[n_batch + n_tuple :]),
        mode=rng.choice(("clip", "fill")),
        fill=rng.getrandbits(8 * element_size),
        wraps=rng.random() < 0.7,
        x_offset=0,
    )


def nonzero_problem(rng):
    """Return a random problem of NONZERO_COORDINATES."""
    element_size, coordinate_size = rng.choice((1, 2, 4, 8)), rng.choice((4, 8))
    n_dims = rng.choice((0, 1, 1, 2, 2, 3, 4, 5, 7, 9, 17))
    sizes = shape(rng, n_dims, most_elements(rng, element_size))
    x = strides(rng, sizes, FULL // element_size)
    is_padded = math.prod(sizes) < FULL // element_size // 32
    if rng.random() < 0.2 and n_dims in (2, 3) and is_padded:  # columns are contiguous
        sizes[-1] = -(-sizes[-1] // 32) * 32
        x[-2:] = 1, sizes[-2]
    capacity = rng.choice((0, 1, 1000, size(rng, 1 << 40)))
    n_columns = len(sizes)
    by_row, by_column = (n_columns + rng.choice((0, 0, 0, 1)), 1), (1, max(capacity, 1))
    dims = merged(sizes, x)
    if len(dims) > 1 and all(stride == n * after for (_, stride), (n, after) in itertools.pairwise(dims)):
        dims = ((math.prod(n for n, _ in dims), dims[-1][1]),)
    return NonzeroProblem(
        element_size=element_size,
        magnitude=rng.choice(((1 << (8 * element_size)) - 1, (1 << (8 * element_size - 1)) - 1)),
        sizes=tuple(sizes),
        dims=dims,
        x_offset=0,
        capacity=capacity,
        coordinate_strides=rng.choice((by_row, by_row, by_column)),
        coordinate_size=coordinate_size,
        count_size=rng.choice((4, 8)),
        fill=rng.choice(((), (), (0,), tuple(rng.getrandbits(8 * coordinate_size) for _ in sizes))),
    )


def key_masks(rng, element_size):
    """Return the masks of a data type of so many bytes."""
    bits = 8 * element_size
    sign, ones = 1 << (bits - 1), (1 << bits) - 1
    infinities = {2: (0x7C00, 0x7F80), 4: (0x7F800000,), 8: (0x7FF << 52,)}
    if element_size > 1 and rng.random() < 0.5:
        return KeyMasks(sign, sign - 1, rng.choice(infinities[element_size]))
    if element_size == 1 and rng.random() < 0.3:
        return KeyMasks(0, 0xFF, 0)
    return KeyMasks(rng.choice((0, sign)), 0, ones)


def top_k_problem(rng):
    """Return a random problem of TOP_K1."""
    element_size, index_size = rng.choice((1, 2, 4, 8)), rng.choice((4, 8))
    most = most_elements(rng, 8)
    n_dims = rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 7))
    sizes = shape(rng, n_dims + 1, most)
    at = rng.randrange(n_dims + 1)
    axis_size, rows = sizes[at], [*sizes[:at], *sizes[at + 1 :]]
    k = rng.choice(
        (1, 8, 20, 128, 300, 1000, 3000, 5000, axis_size, axis_size // 2, size(rng, max(axis_size, 1)))
    )
    length_size, start_size, number_size = (rng.choice((0, 0, 4, 8)) for _ in range(3))
    has_rows = length_size + start_size + number_size > 0
    if not has_rows:
        k = min(k, axis_size)
    selected = [*sizes[:at], k, *sizes[at + 1 :]]
    x = strides(rng, sizes, FULL // 8)
    values, indices = (
        strides(rng, selected, FULL // 8, rng.choice(("packed", "padded", "permuted"))) for _ in range(2)
    )
    numbers = strides(rng, sizes, FULL // 8)
    outer = [[*each[:at], *each[at + 1 :]] for each in (x, values, indices, numbers)]
    windows = [strides(rng, rows, FULL // 8) if size else [0] * n_dims for size in (length_size, start_size)]
    dims = merged(rows, *outer[:3], *windows, outer[3] if number_size else [0] * n_dims)
    masks, largest = key_masks(rng, element_size), rng.random() < 0.5
    is_float = masks.sign != 0 and masks.flip != 0
    longest = size(rng, axis_size) if axis_size and length_size + start_size and rng.random() < 0.3 else None
    return TopKProblem(
        element_size=element_size,
        index_size=number_size or index_size,
        masks=masks,
        largest=largest,
        k=k,
        axis_size=longest if longest and not start_size else axis_size,
        rows=tuple(dim[:4] for dim in dims),
        axis_strides=(x[at], values[at], indices[at]),
        is_sorted=rng.random() < 0.6,
        length_size=length_size,
        length_signed=rng.random() < 0.5,
        length_strides=tuple(dim[4] for dim in dims) if length_size else (),
        padding=rng.getrandbits(8 * element_size) if has_rows else 0,
        start_size=start_size,
        start_signed=rng.random() < 0.5,
        start_strides=tuple(dim[5] for dim in dims) if start_size else (),
        max_length=longest,
        nan_last=is_float and largest and rng.random() < 0.3,
        number_size=number_size,
        number_signed=rng.random() < 0.5,
        number_strides=tuple(dim[6] for dim in dims) if number_size else (),
        number_step=numbers[at] if number_size else 0,
    )


def sample_problem(rng):
    """Return tokens of any rows."""
    element_size = rng.choice((2, 4, 8))
    # With many dimensions, the table of them takes several launches.
    sizes = rng.choice((shape(rng, rng.randrange(7), 1 << 36), [2] * 30))
    formats = tuple([rng.choice((0, 0, *kinds)) for kinds in 2 * ((8, 17), (9, 16), (7, 10, 23, 52))])
    return SampleProblem(
        element_size=element_size,
        mantissa={2: rng.choice((7, 10)), 4: 23, 8: 52}[element_size],
        index_size=rng.choice((4, 8)),
        axis_size=rng.choice((0, 1, size(rng, 1 << 26))),
        x_step=rng.choice((1, 1, 2, -1, 0)),
        formats=formats,
        values=tuple([0 if kind else rng.getrandbits(64) for kind in formats]),
        rows=merged(sizes, *[strides(rng, sizes, 1 << 50) for _ in range(8)]),
        stage=rng.choice((0, 0, 0, 0, 1, 2, 3)),
    )


PROBLEMS = {
    "sample": sample_problem,
    "diagonal_matrix": diagonal_problem,
    "gather_nd": gather_problem,
    "nonzero_coordinates": nonzero_problem,
    "top_k": top_k_problem,
}


def random_problem(operator, seed):
    """Return a random problem of an operator."""
    return PROBLEMS[operator](random.Random(seed))
