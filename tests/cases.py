"""Tables of calls by operator. CPU tests compare them with the oracles, GPU tests with the CPU."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.data import DTYPES, FLOATS, INDEX_DTYPES, LAYOUTS, float_from_bits, random, sample, special_values


@dataclass(frozen=True)
class Case:
    """One call of a function: its arrays are made when they are needed."""

    operator: str
    name: str
    operands: Callable[[], tuple[np.ndarray, ...]]
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        return self.name


def patterns(n):
    """Return rows that selection by thresholds and by buckets finds hard."""
    rng = random(n)
    one_hot = np.zeros(n)
    one_hot[n * 2 // 3] = 1
    return {
        "equal": np.full(n, 7.5),
        "one_hot": one_hot,
        "ascending": np.arange(n, dtype=float),
        "descending": np.arange(n, 0, -1, dtype=float),
        "two_values": rng.integers(0, 2, n).astype(float),
        "nan": np.full(n, np.nan),
        "infinite": np.where(rng.random(n) < 0.9, -np.inf, np.inf),
        "zeros": np.where(rng.random(n) < 0.5, -0.0, 0.0),
        "heavy_tail": rng.standard_cauchy(n) ** 3,
    }


def _top_k():
    def case(name, operands, k, **options):
        return Case("top_k", name, operands, (k,), options)

    for dtype in DTYPES:
        for k, largest in ((5, True), (37, False), (36, True)):
            yield case(
                f"{dtype}-k{k}-{largest}", lambda d=dtype: (sample(d, (3, 37), "top_k"),), k, largest=largest
            )
        yield case(f"{dtype}-specials", lambda d=dtype: (special_values(d),), len(special_values(dtype)))
        yield case(f"{dtype}-long", lambda d=dtype: (sample(d, (2, 3000), "long"),), 100, largest=False)
        yield case(f"{dtype}-axis0", lambda d=dtype: (sample(d, (200, 70), "axis0"),), 9, axis=0)
    for n in (1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 255, 256, 257, 511, 1024, 1025, 4097, 16384, 20000):
        ks = sorted({k for k in (0, 1, 2, 8, 50, 257, 2048, n - 1, n) if k <= n})
        for k in ks:
            rows = 1 if n > 5000 else 3
            name = f"n{n}-k{k}"
            yield case(
                name,
                lambda n=n, rows=rows: (np.float32(random(n).standard_normal((rows, n))),),
                k,
                largest=k % 2 == 0,
            )
    for n in (40, 3000, 50000):
        for pattern in patterns(1):
            for dtype, k in (("float32", 17), ("float16", 40)):
                yield case(
                    f"{pattern}-{n}-{dtype}",
                    lambda p=pattern, n=n, d=dtype: (_cast(patterns(n)[p], d)[np.newaxis],),
                    k,
                )
    for n, k, dtype in ((1_500_000, 100, "float32"), (1_200_000, 3000, "int64"), (700_000, 20, "uint8")):
        yield case(f"one_row-{n}-{dtype}", lambda n=n, d=dtype: (sample(d, n, "one_row"),), k)
    yield case("many_rows", lambda: (sample("float32", (20_000, 40), "many_rows"),), 3)
    yield case("sort_all", lambda: (sample("uint32", 150_000, "sort_all"),), 150_000, largest=False)
    yield case("axis0-tall", lambda: (sample("float32", (9000, 33), "tall"),), 40, axis=0)
    for layout, arrange in LAYOUTS.items():
        for axis in (0, 1, -1):
            yield case(
                f"{layout}-axis{axis}",
                lambda a=arrange: (a(sample("float32", (6, 7, 9), "layout")),),
                4,
                axis=axis,
            )
    yield case(
        "window", lambda: (np.lib.stride_tricks.sliding_window_view(sample("int32", 50, "window"), 9),), 5
    )
    for dtype in INDEX_DTYPES:
        yield case(f"index_{dtype}", lambda: (sample("uint32", (5, 300), "index"),), 20, index_dtype=dtype)
    for shape, k, axis in (
        ((0,), 0, 0),
        ((0, 5), 2, 1),
        ((5, 0), 0, -1),
        ((3, 4), 0, 0),
        ((0, 4), 0, 0),
        ((2, 0, 3), 3, 2),
    ):
        yield case(f"empty-{shape}-{k}", lambda s=shape: (np.zeros(s, "float32"),), k, axis=axis)


def _cast(row, dtype):
    with np.errstate(over="ignore"):
        return row.astype(dtype)


def _nonzero():
    def case(name, operands, **options):
        return Case("nonzero_coordinates", name, operands, (), options)

    def sparse(dtype, shape, density, name):
        values = sample(dtype, shape, name)
        return np.where(random((name, density)).random(shape) < density, values, np.zeros((), dtype))

    for dtype in DTYPES:
        yield case(f"{dtype}", lambda d=dtype: (sparse(d, (7, 131), 0.4, "nonzero"),))
        yield case(f"{dtype}-specials", lambda d=dtype: (special_values(d),))
    for dtype in FLOATS:
        yield case(f"{dtype}-negative_zero", lambda d=dtype: (np.full(100, -0.0, d),))
        yield case(f"{dtype}-sign_bits", lambda d=dtype: (_sign_bits(d),))
    for n in (1, 2, 31, 32, 33, 63, 64, 65, 255, 1000, 1024, 4095, 4097, 70_001):
        yield case(f"n{n}", lambda n=n: (sparse("float32", n, 0.5, n),))
    for density in (0, 0.0001, 0.01, 0.1, 0.5, 1):
        for shape in ((1_000_003,), (1021, 1033), (100, 101, 103)):
            yield case(
                f"density{density}-{len(shape)}d",
                lambda p=density, s=shape: (sparse("float32", s, p, "density"),),
            )
    yield case("last_only", lambda: (_one_hot(300_000, 299_999),))
    yield case("first_only", lambda: (_one_hot(300_000, 0),))
    yield case("rank0-zero", lambda: (np.zeros((), "float32"),))
    yield case("ones-dims", lambda: (sparse("int32", (1, 1, 40, 1), 0.5, "ones"),))
    yield case(
        "window", lambda: (np.lib.stride_tricks.sliding_window_view(sparse("int32", 60, 0.5, "window"), 9),)
    )
    for dtype in INDEX_DTYPES:
        yield case(f"index_{dtype}", lambda: (sparse("int32", (50, 40), 0.2, "index"),), index_dtype=dtype)
    for size in (0, 1, 10, 499, 500, 501, 900):
        yield case(
            f"size{size}", lambda: (np.float32(np.arange(1000).reshape(20, 50) % 2),), size=size, fill_value=7
        )
    yield case(
        "size-large", lambda: (sparse("float32", (700, 800), 0.3, "size"),), size=300_000, fill_value=0
    )
    yield case("size-cut", lambda: (sparse("float32", (700, 800), 0.3, "size"),), size=1000, fill_value=3)
    for fill in (-1, 2**63 - 1):
        yield case(f"fill_value{fill}", lambda: (np.eye(3, dtype="float32"),), size=5, fill_value=fill)
    for shape in ((9, 5), (40, 30, 7), (3, 4, 5, 6, 7), (70, 64, 33), (2,) * 10):
        for size in (0, 7, 3000, 160_000):
            yield case(
                f"fill_values-{shape}-{size}",
                lambda s=shape: (sparse("float32", s, 0.1, "fills"),),
                size=size,
                fill_value=(-1, 2**40, 5, 6, -(2**63), 8, 9, 10, 11, 12)[: len(shape)],
            )
    yield case("rank0-size", lambda: (np.ones((), "float32"),), size=3, fill_value=1)
    for shape in ((0,), (3, 0), (0, 4, 5), (2, 0, 3)):
        yield case(f"empty-{shape}", lambda s=shape: (np.zeros(s, "float32"),))
    yield case("empty-size", lambda: (np.zeros((0, 2), "float32"),), size=3, fill_value=9)


def _sign_bits(dtype):
    """Return floats whose zero-ness hangs on one bit: subnormals, zeros and NaNs of both signs."""
    top = 1 << (8 * np.dtype(dtype).itemsize - 1)
    return float_from_bits([0, top, 1, top | 1, top - 1, 2 * top - 1] * 20, dtype)


def _one_hot(n, place):
    x = np.zeros(n, np.uint32)
    x[place] = 1 << 31
    return x


def _without_coordinates(dtype, shape, leading, batch):
    """Return operands of which each tuple of indices takes all that there is in its batch."""
    return sample(dtype, shape, "no coordinates"), np.zeros((*shape[:batch], *leading, 0), "int32")


def _indices(dtype, shape, bounds, name, spread=1.0):
    """Return random tuples: negative too where the type is signed, beyond the bounds where `spread` > 1."""
    dtype = np.dtype(dtype)
    rng = random(name)
    columns = []
    for bound in bounds:
        reach = int(bound * spread)
        lowest = -reach if dtype.kind == "i" else 0
        columns.append(rng.integers(lowest, max(reach, 1), shape))
    return np.stack(columns, -1).astype(dtype)


def _gather():
    def case(name, operands, **options):
        return Case("gather_nd", name, operands, (), options)

    def operands(dtype, shape, index_dtype, leading, tuple_size, batch=0, spread=1.0):
        bounds = shape[batch : batch + tuple_size]
        indices = _indices(index_dtype, shape[:batch] + leading, bounds, leading, spread)
        return sample(dtype, shape, "gather"), indices

    for place, dtype in enumerate(DTYPES):
        index_dtype = INDEX_DTYPES[place % 4]
        for tuple_size in (1, 2, 3):
            yield case(
                f"{dtype}-index_{index_dtype}-{tuple_size}",
                lambda d=dtype, i=index_dtype, t=tuple_size: operands(d, (5, 6, 7), i, (9, 3), t),
            )
    for index_dtype in INDEX_DTYPES:
        for mode in ("raise", "clip", "fill"):
            spread = 1.0 if mode == "raise" else 2.0
            yield case(
                f"{mode}-index_{index_dtype}",
                lambda i=index_dtype, s=spread: operands("int32", (5, 4, 3), i, (60,), 2, spread=s),
                mode=mode,
            )
            yield case(
                f"{mode}-index_{index_dtype}-scalars",
                lambda i=index_dtype, s=spread: operands("uint32", (5, 4, 3), i, (5000,), 3, spread=s),
                mode=mode,
            )
        for mode in ("clip", "fill"):
            for wraps in (True, False):
                yield case(
                    f"{mode}-index_{index_dtype}-extremes-{wraps}",
                    lambda i=index_dtype: _extremes(i),
                    mode=mode,
                    wrap_negative=wraps,
                )
                for slice_size in (1, 3, 40):
                    yield case(
                        f"{mode}-index_{index_dtype}-slice{slice_size}-{wraps}",
                        lambda i=index_dtype, n=slice_size: operands(
                            "uint8", (40, n), i, (99,), 1, spread=1.5
                        ),
                        mode=mode,
                        wrap_negative=wraps,
                    )
    yield from _fills(case, operands)
    for slice_size in (1, 2, 3, 4, 5, 8, 16, 31, 128, 1000):
        for dtype in ("uint8", "float32", "float64"):
            yield case(
                f"slice{slice_size}-{dtype}",
                lambda n=slice_size, d=dtype: operands(d, (50, n), "uint32", (40,), 1),
            )
    yield case("one_tuple", lambda: operands("float32", (4, 5), "int64", (), 2))
    yield case("batch-only", lambda: operands("float32", (4, 5), "uint32", (), 1, 1), batch_dims=1)
    for layout, arrange in LAYOUTS.items():

        def arranged(a=arrange, which=(0, 1), **options):
            arrays = operands("float32", (6, 7, 9), "int32", (8,), 1, 1, **options)
            return tuple(a(x) if place in which else x for place, x in enumerate(arrays))

        yield case(f"{layout}-both", arranged, batch_dims=1)
        yield case(f"{layout}-x", lambda f=arranged: f(which=(0,)), batch_dims=1)
        yield case(
            f"{layout}-indices", lambda f=arranged: f(which=(1,), spread=3.0), batch_dims=1, mode="fill"
        )
        yield case(
            f"{layout}-scalars",
            lambda a=arrange: tuple(map(a, operands("uint32", (6, 7, 9), "uint64", (8, 5), 3))),
        )
    for dtype in ("uint8", "float16", "float32", "float64"):
        for step in (1, 2, 3, -2):
            for first in (0, 1):
                yield case(
                    f"every{step}-from{first}-{dtype}",
                    lambda d=dtype, s=step, f=first: _every(s, f, operands(d, (20, 211), "int32", (90,), 1)),
                )
    for dtype, shape, leading, batch in (
        ("uint8", (7, 5), (3,), 0),
        ("float32", (6,), (), 0),
        ("float64", (3, 4, 5), (2, 3), 1),
        ("int16", (2, 3, 4), (), 2),
        ("float32", (300, 40), (50,), 0),
        ("float32", (0, 4), (2,), 0),
        ("int32", (5, 6), (0,), 0),
    ):
        for mode in ("raise", "clip", "fill"):
            yield case(
                f"no_coordinates-{mode}-{shape}-{leading}-{dtype}",
                lambda d=dtype, s=shape, n=leading, b=batch: _without_coordinates(d, s, n, b),
                batch_dims=batch,
                mode=mode,
            )
    for layout in ("fortran", "reversed", "every_other", "broadcast_last"):
        yield case(
            f"no_coordinates-{layout}",
            lambda a=LAYOUTS[layout]: (
                a(_without_coordinates("int32", (6, 70, 5), (3,), 1)[0]),
                np.zeros((6, 3, 0), "int64"),
            ),
            batch_dims=1,
        )
    yield case("large-rows", lambda: operands("float32", (3000, 64), "int64", (2500,), 1))
    yield case("large-scalars", lambda: operands("uint32", (300, 300), "uint32", (20_000,), 2))
    yield case(
        "large-batched", lambda: operands("float32", (40, 50, 24), "int32", (30, 2), 1, 1), batch_dims=1
    )
    for x_shape, index_shape, batch in (
        ((4, 5), (0, 2), 0),
        ((4, 0), (3, 1), 0),
        ((0, 4), (0, 1), 0),
        ((0, 4, 3), (0, 5, 1), 1),
        ((2, 0, 3), (2, 0, 1), 1),
    ):
        for mode in ("raise", "clip", "fill"):
            yield case(
                f"empty-{x_shape}-{index_shape}-{mode}",
                lambda x=x_shape, i=index_shape: (np.ones(x, "float32"), np.zeros(i, "int64")),
                batch_dims=batch,
                mode=mode,
            )
    yield case(
        "fill-from-nothing", lambda: (np.ones((0, 3), "float32"), np.zeros((4, 1), "int64")), mode="fill"
    )


def _fills(case, operands):
    """Yield gathers that fill, for each way in which kernels move slices."""
    for dtype in DTYPES:
        value = special_values(dtype)[-1]
        for shape, tuple_size in (((50,), 1), ((9, 8, 2), 2), ((50, 16), 1), ((50, 77), 1), ((5, 6, 67), 2)):
            yield case(
                f"fill_value-{dtype}-{shape}",
                lambda d=dtype, s=shape, t=tuple_size: operands(d, s, "int64", (33,), t, spread=1.5),
                mode="fill",
                fill_value=value,
                wrap_negative=False,
            )
        for first, last in ((0, 210), (1, 211), (3, 200)):
            yield case(
                f"fill_value-{dtype}-{first}:{last}",
                lambda d=dtype, f=first, n=last: _part(
                    f, n, operands(d, (20, 211), "int32", (90,), 1, spread=2.0)
                ),
                mode="fill",
                fill_value=value,
            )
        for step in (2, -3):
            yield case(
                f"fill_value-{dtype}-every{step}",
                lambda d=dtype, s=step: _every(s, 1, operands(d, (20, 211), "uint32", (90,), 1, spread=2.0)),
                mode="fill",
                fill_value=value,
            )
    for width in (2000, 9):  # more than the caches hold, which is written past them
        yield case(
            f"fill_value-large-{width}",
            lambda n=width: operands("float32", (900, n), "int64", (9000,), 1, spread=1.3),
            mode="fill",
            fill_value=-0.0,
        )


def _part(first, last, operands):
    """Return the first operand with some of the elements of its last axis, which are side by side."""
    x, *others = operands
    return x[..., first:last], *others


def _every(step, first, operands):
    """Return the first operand with some of the elements of its last axis."""
    x, *others = operands
    return x[..., first::step] if step > 0 else x[..., first - 2 :: step], *others


def _extremes(index_dtype):
    """Return index tuples at the ends of their type."""
    info = np.iinfo(index_dtype)
    middle = info.max // 2
    values = [info.min, info.min + 1, 0, 3, 4, 5, 2**31 - 1, middle, middle + 1, info.max - 1, info.max]
    if info.min < 0:
        values += [-1, -4, -5, -(2**31)]
    tuples = np.array([(a, b) for a in values for b in values], index_dtype)
    return sample("int32", (4, 4, 3), "extremes"), tuples


BANDS = (
    *((0, 1), (0, 3), (2, 3), (-1, 2), (-2, -1), (1, 1), (0, 0), (100, 101), (-100, 100)),
    *((-100, -99), (1, 0), (3, 0), (0, -3), (100, -100), (-(2**31), 1), (0, 2**31 - 1)),
    *((-(2**31), 2**31 - 1), (2**31 - 1, -(2**31)), (-(2**70), 2), (2, 2**70), (2**64, -(2**64)), (-5, 12)),
    *((2, None), (-1, None), (2**70, None), (1, math.inf), (-math.inf, 2), (-math.inf, math.inf)),
    *((math.inf, -math.inf), (math.inf, 2), (math.inf, None), (-math.inf, None), (math.inf, math.inf)),
    *((2**70, math.inf), (math.inf, 2**70), (-math.inf, -(2**70)), (-(2**70), -math.inf)),
)


def _diagonal():
    def case(name, operands=tuple, **options):
        return Case("diagonal_matrix", name, operands, (), options)

    for dtype in DTYPES:
        value = special_values(dtype)[5 if dtype in FLOATS else -1]
        yield case(
            f"{dtype}-input",
            lambda d=dtype: (sample(d, (2, 9, 13), "diagonal"),),
            value=value,
            begin=-2,
            end=4,
        )
        yield case(f"{dtype}-built", shape=(3, 5, 4), dtype=dtype, value=1, begin=-1, end=1)
    for place, (begin, end) in enumerate(BANDS):
        dtype = ("float32", "int32", "uint32")[place % 3]
        for shape in ((1, 1), (4, 5), (7, 3), (2, 65, 67)):
            yield case(
                f"band-{begin}-{end}-{shape}",
                lambda d=dtype, s=shape: (sample(d, s, "band"),),
                begin=begin,
                end=end,
                value=0,
            )
        yield case(f"band-{begin}-{end}-built", shape=(6, 9), dtype=dtype, begin=begin, end=end, value=7)
    for shape in ((1, 1000), (1000, 1), (1000, 1001), (3, 517, 259), (300, 17, 16)):
        for begin, end in ((-(2**31), 1), (1, 0), (-8, 9)):
            yield case(
                f"large-{shape}-{begin}-{end}",
                lambda s=shape: (sample("float32", s, "large"),),
                begin=begin,
                end=end,
                value=0,
            )
    for dtype in ("uint8", "float16", "float32", "float64"):
        # Whole tiles, and tiles at the ends of rows and columns; rows with aligned and unaligned beginnings.
        for shape, begin, end in (((256, 256), 1, 2**31), ((2, 3, 130, 141), 9, -8)):
            band = {"value": 1, "begin": begin, "end": end}
            yield case(
                f"turned-{dtype}-{shape}",
                lambda d=dtype, s=shape: (sample(d, s, "turned").swapaxes(-1, -2),),
                **band,
            )
            for step, first in ((2, 0), (2, 1), (3, 0), (-2, -1)):
                yield case(
                    f"every{step}-from{first}-{dtype}-{shape}",
                    lambda d=dtype, s=shape, n=step, f=first: (sample(d, s, "every")[..., f::n],),
                    **band,
                )
    for shape in ((0, 0), (0, 4), (4, 0), (0, 3, 3), (2, 0, 3)):
        yield case(f"empty-{shape}", lambda s=shape: (np.zeros(s, "float32"),))
        yield case(f"empty-{shape}-built", shape=shape, dtype=np.dtype("int32"))


def _sample():
    def case(name, shape, dtype="float32", spread=3.0, seeds=None, arrange=None, **options):
        def operands():
            x = _cast(random(name).standard_normal(shape) * spread, dtype)
            given = random((name, "seeds")).integers(-(2**63), 2**63, shape[:-1]) if seeds is None else seeds
            return (x if arrange is None else arrange(x)), given

        return Case("sample", name, operands, (), options)

    def rows(*values, dtype="float32"):
        return np.array(values, dtype)

    ways = {
        "plain": {},
        "k": {"k": 5},
        "p": {"top_p": 0.9},
        "k-p": {"k": 40, "top_p": 0.7},
        "min_p": {"min_p": 0.05},
        "all": {"k": 100, "top_p": 0.95, "min_p": 0.01, "temperature": 0.8, "steps": 7},
        "greedy": {"temperature": 0},
    }
    for dtype in FLOATS:
        for way, options in ways.items():
            yield case(f"{dtype}-{way}", (5, 300), dtype, **options)
        specials = special_values(dtype)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            finite = specials[np.isfinite(specials)]
        for name, values in (("specials", specials), ("finite", finite)):
            for way in ("plain", "k", "p"):
                yield Case(
                    "sample",
                    f"{dtype}-{name}-{way}",
                    lambda v=values: (np.stack([v, v[::-1]]), np.arange(2)),
                    (),
                    ways[way],
                )
    for n in (1, 2, 3, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2500):
        for way, options in ways.items():
            yield case(f"n{n}-{way}", (3, n), **options)
    for temperature in (1e-300, 1e-30, 1e-3, 0.1, 3.0, 1e5, 1e300, math.inf):
        for spread in (1e-3, 1.0, 3e4):
            for way in ("plain", "p"):
                options = {**ways[way], "temperature": temperature}
                yield case(f"temperature-{temperature}-{spread}-{way}", (2, 200), spread=spread, **options)
    for pattern in patterns(1):
        for dtype in ("float32", "float16"):
            for way in ("plain", "k", "p", "all"):
                yield Case(
                    "sample",
                    f"{pattern}-{dtype}-{way}",
                    lambda p=pattern, d=dtype: (_cast(patterns(900)[p], d)[np.newaxis], np.array([3])),
                    (),
                    ways[way],
                )
    for layout, arrange in LAYOUTS.items():
        for way in ("plain", "k", "p"):
            yield case(f"{layout}-{way}", (3, 4, 90), arrange=arrange, **ways[way])
    yield case("shares", (12, 40), top_p=np.linspace(-0.1, 1.1, 12), min_p=np.linspace(0, 1.1, 12) ** 4)
    yield case("tiny_shares", (3, 40), top_p=rows(1e-300, 5e-324, 1e-17, dtype="float64"))
    yield case("each", (4, 60), k=rows(0, 1, 7, 99, dtype="int32"), temperature=rows(0.0, 0.5, 1.0, 9.0))
    yield case(
        "halves", (2, 3, 60), temperature=rows(0.5, 1.5, 2.5, dtype="float16"), steps=np.array([[4], [5]])
    )
    for dtype in INDEX_DTYPES:
        seeds = np.array([0, 1, 2**31 - 1, 2**31]).astype(dtype)
        yield case(f"index_{dtype}", (4, 60), seeds=seeds, k=np.array([1, 2, 3, 4], dtype), index_dtype=dtype)


TOP_K = tuple(_top_k())
NONZERO = tuple(_nonzero())
GATHER = tuple(_gather())
DIAGONAL = tuple(_diagonal())
SAMPLE = tuple(_sample())
ALL = (*TOP_K, *NONZERO, *GATHER, *DIAGONAL, *SAMPLE)
