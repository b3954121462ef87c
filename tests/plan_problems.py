"""Random problems of every operator, from empty ones to the largest that are legal, for plans on the host."""

from tests.inside import DiagonalProblem, GatherProblem, KeyMasks, NonzeroProblem, SampleProblem, TopKProblem

LIMIT = 2**63 - 1
MASKS = [(0, 0, -1), (1, 0, -1), (1, 1, 31), (0, -1, 0)]
"""Sign, bits of the magnitude, and infinity: the first two in units of the highest bit; -1 is all ones."""


def size(rng, room=LIMIT):
    """Return a size of any magnitude that is at most `room`; often a small one or one near a power of two."""
    kind = rng.random()
    if kind < 0.4:
        found = rng.randrange(1, 10)
    elif kind < 0.8:
        found = int(2 ** rng.uniform(0, 24))
    elif kind < 0.9:
        found = 2 ** rng.randrange(0, 41) + rng.randrange(-2, 3)
    else:
        found = int(2 ** rng.uniform(0, 62.9))
    return max(min(int(found), room), 1)


def sizes(rng, n, room=LIMIT):
    """Return `n` sizes with a product of at most `room`; 0 may be among them."""
    found = []
    for _ in range(n):
        found.append(size(rng, room))
        room //= found[-1]
    rng.shuffle(found)
    if n and rng.random() < 0.03:
        found[rng.randrange(n)] = 0
    return [int(each) for each in found]


def strides(rng, shape):
    """Return strides for `shape`: packed ones in this or another order, with gaps, broadcast or negative."""
    order = list(range(len(shape)))[::-1]
    if rng.random() < 0.4:
        rng.shuffle(order)
    found = [0] * len(shape)
    step = 1 if rng.random() < 0.8 else rng.randrange(1, 5)
    for axis in order:
        found[axis] = step
        step *= max(shape[axis], 1)
        if rng.random() < 0.1:
            step += rng.randrange(0, 100)
        if step > LIMIT >> 4:
            step = 0
    change = rng.random()
    if found and change < 0.2:
        found[rng.randrange(len(found))] *= -1
    elif found and change < 0.3:
        found[rng.randrange(len(found))] = 0
    return found


def dims(rng, n, n_tensors, room=LIMIT):
    """Return dimensions: a size, and a stride of each tensor."""
    shape = sizes(rng, n, room)
    if 0 in shape:
        return ((0,) * (n_tensors + 1),)
    walks = [strides(rng, shape) for _ in range(n_tensors)]
    return tuple(each for each in zip(shape, *walks, strict=True) if each[0] != 1)


def flag(rng):
    return rng.random() < 0.5


def choice(rng, *options):
    return rng.choice(options)


def bits(rng, n_bits):
    return choice(rng, 0, 1, 2**n_bits - 1, rng.randrange(2**n_bits))


def random_top_k(rng):
    element_size = choice(rng, 1, 2, 4, 8)
    n_bits = 8 * element_size
    sign, flip, infinity = choice(rng, *MASKS)
    top = 1 << (n_bits - 1)
    ones = 2**n_bits - 1
    masks = KeyMasks(sign * top, flip % 2**n_bits if flip < 0 else flip * (top - 1), infinity % 2**n_bits)
    rows = dims(rng, rng.randrange(0, 5), 3)
    n_rows = 1
    for row in rows:
        n_rows *= row[0]
    axis_size = size(rng, LIMIT // max(n_rows, 1))
    fraction = choice(rng, 1, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 100, 10**4)
    k = min(choice(rng, 0, 1, size(rng), axis_size // fraction, axis_size // fraction + 1), axis_size)
    length_size, start_size, number_size = (choice(rng, 0, 0, 4, 8) for _ in range(3))
    has_rows = length_size + start_size + number_size > 0
    most = choice(rng, axis_size, axis_size // 3, size(rng)) if has_rows else axis_size

    def row_strides(is_given):
        return tuple(rng.randrange(-9, 9) for _ in rows) if is_given else ()

    return TopKProblem(
        element_size=element_size,
        index_size=choice(rng, 4, 8),
        masks=masks,
        largest=flag(rng),
        k=k,
        axis_size=axis_size,
        rows=rows,
        axis_strides=tuple(choice(rng, 1, 1, 1, 2, 7, 4096, -1) for _ in range(3)),
        is_sorted=flag(rng),
        length_size=length_size,
        length_signed=flag(rng),
        length_strides=row_strides(length_size),
        padding=choice(rng, 0, ones, top, top - 1) if has_rows else 0,
        start_size=start_size,
        start_signed=flag(rng),
        start_strides=row_strides(start_size),
        max_length=min(most, axis_size),
        nan_last=flag(rng) and masks.flip > 0 and masks.sign > 0,
        number_size=number_size,
        number_signed=flag(rng),
        number_strides=row_strides(number_size),
        number_step=choice(rng, 0, 1, 1, 7, -1) if number_size else 0,
    )


def random_gather_nd(rng):
    batch = dims(rng, rng.randrange(0, 3), 3, 2**20)
    tuples = dims(rng, rng.randrange(0, 3), 2, 2**40)
    slices = dims(rng, rng.randrange(0, 3), 2, choice(rng, 2, 64, 2**20, 2**62))
    if flag(rng):
        slices = ((size(rng, 4096), 1, 1),)
    bounds = dims(rng, rng.randrange(0, 6), 1, choice(rng, 2**16, LIMIT))
    if flag(rng) and tuples:
        tuples = (*tuples[:-1], (tuples[-1][0], len(bounds), slices[-1][0] if slices else 1))
    element_size = choice(rng, 1, 2, 4, 8)
    return GatherProblem(
        element_size=element_size,
        index_size=choice(rng, 4, 8),
        index_signed=flag(rng),
        batch=batch,
        tuples=tuples,
        coordinate_stride=choice(rng, 1, 1, 2, -1, 77),
        bounds=bounds,
        slices=slices,
        mode=choice(rng, "clip", "fill"),
        fill=bits(rng, 8 * element_size),
        wraps=flag(rng),
        x_offset=choice(rng, 0, 0, 5, 2**40),
    )


def random_nonzero_coordinates(rng):
    coordinate_size = choice(rng, 4, 8)
    shape = sizes(rng, rng.randrange(0, 7))
    n_columns = choice(rng, len(shape), max(len(shape) - 1, 0))
    packed = (n_columns, 1)
    return NonzeroProblem(
        element_size=(element_size := choice(rng, 1, 2, 4, 8)),
        magnitude=bits(rng, 8 * element_size),
        sizes=tuple(shape[len(shape) - n_columns :]),
        dims=choice(rng, dims(rng, len(shape), 1), dims(rng, len(shape), 1), ((size(rng), 1),)),
        x_offset=choice(rng, 0, 3, 2**40),
        capacity=choice(rng, 0, 5, size(rng)),
        coordinate_strides=choice(rng, packed, packed, (1, 100), (2 * n_columns, 2)),
        coordinate_size=coordinate_size,
        count_size=choice(rng, coordinate_size, coordinate_size, 4, 8),
        fill=choice(rng, (), (0,), tuple(bits(rng, 8 * coordinate_size) for _ in range(n_columns))),
    )


def random_diagonal_matrix(rng):
    element_size = choice(rng, 1, 2, 4, 8)
    batch = dims(rng, rng.randrange(0, 4), 2)
    n_batch = 1
    for dimension in batch:
        n_batch *= dimension[0]
    height, width = sizes(rng, 2, LIMIT // max(n_batch, 1))
    x_strides, output_strides = (tuple(strides(rng, (height, width))) for _ in range(2))
    if rng.random() < 0.2 and n_batch * height * width and (n_channels := rng.randrange(2, 9)):
        room = LIMIT // n_channels
        height, width = min(height, 2**20), min(width, 2**20)
        batch = (*(each for each in batch if each[0] != n_channels), (n_channels, 1, 1))
        batch = batch[-1:] if n_batch * height * width > room else batch
        x_strides = output_strides = (width * n_channels, n_channels)
    first, last = (rng.randrange(-height, width + 1) for _ in range(2))
    return DiagonalProblem(
        element_size=element_size,
        has_input=flag(rng),
        value=bits(rng, 8 * element_size),
        batch=batch,
        height=height,
        width=width,
        x_strides=x_strides,
        output_strides=output_strides,
        begin=min(first, last),
        end=max(first, last),
        inverted=flag(rng),
    )


def random_sample(rng):
    element_size = choice(rng, 2, 4, 8)
    formats = tuple([choice(rng, 0, 0, *kinds) for kinds in 2 * ((8, 17), (9, 16), (7, 10, 23, 52))])
    return SampleProblem(
        element_size=element_size,
        mantissa={2: choice(rng, 7, 10), 4: 23, 8: 52}[element_size],
        index_size=choice(rng, 4, 8),
        axis_size=choice(rng, 0, 1, size(rng, 2**26)),
        x_step=choice(rng, 1, 1, 2, -1, 0),
        formats=formats,
        values=tuple([0 if kind else bits(rng, 64) for kind in formats]),
        rows=dims(rng, rng.randrange(0, 7), 8, 2**36),
    )


MAKERS = {
    "sample": random_sample,
    "top_k": random_top_k,
    "gather_nd": random_gather_nd,
    "nonzero_coordinates": random_nonzero_coordinates,
    "diagonal_matrix": random_diagonal_matrix,
}


def random_host(rng):
    """Return a number of threads, and the bytes from which on outputs are written past the caches."""
    return choice(rng, 1, 1, 2, 3, 16, rng.randrange(1, 65)), choice(rng, 1 << 20, 1 << 24)
