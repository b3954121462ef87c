"""Random problems of every operator in any layout, each with the answer of plain NumPy.

A problem knows the memory of every operand before and after the call: inputs and the gaps of a layout must
not change. `DMLOPS_RANDOM_PROBLEMS` and `DMLOPS_STRESS_SEED` set the number of problems and their seed;
problem `number` of a seed is always the same.
"""

import math
import os
from dataclasses import dataclass

import numpy as np

import dmlops
from dmlops import (
    AxisDirection,
    Descriptor,
    DiagonalMatrix1,
    GatherND1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from tests import reference
from tests.data import DTYPES, FLOATS, INDEX_DTYPES, as_strided, bits, float_from_bits, random, special_values
from tests.inside import Options

SEED = int(os.environ.get("DMLOPS_STRESS_SEED", "0"))
RANKS = (1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 11)
# Some elements more or less than what a warp, a block or one launch takes.
ELEMENT_COUNTS = (200, 200, 5000, 5000, 40_000, 300_000)
DENSITIES = (0, 0.001, 0.01, 0.1, 0.5, 1)
DTYPE_OF = {TensorDataType[dtype.name.upper()]: dtype for dtype in DTYPES}
MOST_TUPLES = 400  # the oracle goes through them one by one


@dataclass(frozen=True)
class RandomCase:
    """A problem; by field, the memory of its operands as bytes, and the operands as a function takes them."""

    operator: str
    name: str
    descriptor: Descriptor
    options: Options
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    operands: dict[str, TensorDesc] | None = None

    def __str__(self):
        return f"{self.name}: {self.descriptor}, {self.options}"

    def is_told_by_descriptor(self):
        """Return whether the descriptor says everything, so that a compiled operator can do the same."""
        return self.options == Options()

    def call(self, memory):
        """Call the function on operands in this memory."""
        desc, options = self.descriptor, self.options
        arrays = {field: array_in(memory[field], tensor) for field, tensor in self.operands.items()}
        out = tuple(arrays[field] for field in arrays if field.startswith("output_"))
        keywords = {"out": out if len(out) == 2 else out[0]}
        if self.operator == "top_k":
            keywords |= {"axis": desc.axis, "largest": desc.axis_direction == AxisDirection.DECREASING}
            keywords |= {"sorted": options.is_sorted, "nan_last": options.nan_last}
            keywords |= {"lengths": arrays.get("lengths"), "starts": arrays.get("starts")}
            keywords |= {"max_length": options.max_length, "indices": arrays.get("numbers")}
            dmlops.top_k(arrays["input_tensor"], desc.k, **keywords)
        elif self.operator == "nonzero_coordinates":
            dmlops.nonzero_coordinates(arrays["input_tensor"], fill_value=options.fill, **keywords)
        elif self.operator == "gather_nd":
            keywords |= {"batch_dims": desc.batch_dimension_count, "mode": options.mode}
            keywords["wrap_negative"] = options.wraps
            if options.mode == "fill":
                keywords["fill_value"] = np.frombuffer(options.element, arrays["input_tensor"].dtype)[0]
            dmlops.gather_nd(arrays["input_tensor"], arrays["indices_tensor"], **keywords)
        else:
            keywords |= {"begin": desc.diagonal_fill_begin, "end": desc.diagonal_fill_end}
            dmlops.diagonal_matrix(arrays.get("input_tensor"), value=desc.value, **keywords)

    def check(self, found):
        """Check every byte of the operands."""
        for field, expected in self.after.items():
            differing = np.flatnonzero(found[field] != expected)
            if differing.size:
                first = differing[0]
                got = f"{found[field][first]}, not {expected[first]}"
                what = f"{field} has {differing.size} wrong bytes of {expected.size}, at {first}: {got}"
                raise AssertionError(f"{self}\n{what}")


def random_cases(count, dtypes=DTYPES):
    """Make numbered problems of each operator: `count`, or what ``DMLOPS_RANDOM_PROBLEMS`` says."""
    for number in range(int(os.environ.get("DMLOPS_RANDOM_PROBLEMS", count))):
        for operator in MAKERS:
            yield number, random_case(operator, number, dtypes=dtypes)


def random_case(operator, number, most_elements=ELEMENT_COUNTS[-1], dtypes=DTYPES, laid=None):
    """Make problem `number` of an operator, whose elements are of one of these types.

    `laid` may give the sizes, and the layouts of the tensors that are described first: the order of their
    dimensions, outermost first, and how far apart the elements of the last one lie.
    """
    maker = _Maker(random(("random case", operator, SEED, number)), most_elements, dtypes, laid)
    descriptor, options, inputs, outputs = MAKERS[operator](maker)
    before = {field: storage for field, (_, storage) in inputs.items()}
    after = dict(before)
    for field, (desc, answer) in outputs.items():
        before[field] = maker.poison(desc)
        after[field] = before[field].copy()
        # Rows that an answer does not have stay as they are.
        view = view_of(after[field], desc)
        (view[: len(answer)] if answer.ndim else view)[...] = bits(answer)
    name = f"{operator} {number} of seed {SEED} ({maker.pattern})"
    return RandomCase(
        operator,
        name,
        descriptor,
        options,
        {field: storage.view(np.uint8) for field, storage in before.items()},
        {field: storage.view(np.uint8) for field, storage in after.items()},
        {field: desc for field, (desc, _) in (inputs | outputs).items()},
    )


def view_of(storage, desc):
    """View a tensor's storage, which begins at its lowest-addressed element, as the tensor."""
    if desc.element_count == 0:
        return np.empty(desc.sizes, storage.dtype)
    return as_strided(storage[desc.offset :], desc.sizes, desc.effective_strides)


def array_in(memory, desc):
    """View the bytes of a tensor as the tensor."""
    return view_of(memory.view(DTYPE_OF[desc.data_type]), desc)


class _Maker:
    """Makes the parts of one problem."""

    def __init__(self, rng, most_elements, dtypes, laid):
        self.rng, self.dtypes = rng, [np.dtype(dtype) for dtype in dtypes]
        self.laid, self.layouts = laid, list(laid[1:]) if laid else []
        self.count = min(self.pick(ELEMENT_COUNTS), most_elements)
        self.pattern = ""

    def pick(self, values):
        """Return one of the values."""
        return values[self.rng.integers(len(values))]

    def chance(self, probability):
        """Return whether something that seldom happens does."""
        return self.rng.random() < probability

    def sizes(self, rank):
        """Return sizes of about `count` elements or fewer, sometimes none."""
        if self.laid:
            return self.laid[0]
        sizes, left = [], self.count
        for _ in range(rank):
            sizes.append(max(1, int(left ** self.rng.random())))
            left //= sizes[-1]
        if rank and self.chance(0.02):
            sizes[self.rng.integers(rank)] = 0
        return tuple(int(sizes[place]) for place in self.rng.permutation(rank))

    def desc(self, dtype, sizes, *, broadcasts=False):
        """Describe a tensor of any layout: permuted, padded, stepped, backwards, broadcast if it may be."""
        data_type, rank = TensorDataType[np.dtype(dtype).name.upper()], len(sizes)
        order, step = self.layouts.pop(0) if self.layouts else (range(rank), 1)
        if self.laid:
            inner = [[sizes[each] for each in order[order.index(place) + 1 :]] for place in range(rank)]
            # Each row ends with its last element, so that the next begins at another residue.
            strides = [step * math.prod(each) - (len(each) == 1) * (step - 1) for each in inner]
            return TensorDesc(data_type, sizes, tuple(strides))
        if self.chance(0.4):
            return TensorDesc(data_type, sizes)
        order = self.rng.permutation(rank) if self.chance(0.5) else np.arange(rank)
        gap_chance, back_chance, broadcast_chance = (
            self.pick((0, 0, 0.5)),
            self.pick((0, 0, 0.5)),
            self.pick((0, 0, 0.4)) if broadcasts else 0,
        )
        strides, reach = [0] * rank, 1
        for place in order[::-1]:
            if self.chance(gap_chance):
                reach += int(self.rng.integers(1, 5))
            strides[place] = -reach if self.chance(back_chance) else reach
            reach *= max(sizes[place], 1)
            if self.chance(broadcast_chance):
                strides[place] = 0
        return TensorDesc(data_type, sizes, tuple(strides))

    def poison(self, desc):
        """Return storage of what no operator wrote."""
        size = desc.data_type.bytes
        return np.frombuffer(self.rng.bytes(desc.extent * size), f"u{size}").copy()

    def values(self, dtype, desc):
        """Return storage for a tensor, of one of several patterns."""
        self.pattern = self.pick(tuple(PATTERNS))
        return elements(self.pattern, self.rng, desc.extent, dtype)


def _random_bits(rng, n, dtype):
    if dtype.kind == "b":  # in views of other types, any set byte is True
        return rng.choice(np.array([0, 0, 0, 1, 2, 0x80, 0xFF], np.uint8), n).view(bool)
    return np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)


def _one_hot(rng, n, dtype):
    values = np.zeros(n)
    values[rng.integers(0, max(n, 1), min(n, 3))] = 1
    return values


def _nan_rich(rng, n, dtype):
    values = _random_bits(rng, n, dtype).copy()
    specials = special_values(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nans = specials[np.isnan(specials)]
    return np.where(rng.random(n) < 0.7, rng.choice(nans, n), values) if nans.size else values


def _zeros(rng, n, dtype):
    if dtype in FLOATS:
        return float_from_bits([0, 1 << (8 * dtype.itemsize - 1)], dtype)[rng.integers(0, 2, n)]
    return np.zeros(n)


def _in_every_part(rng, n, dtype):
    values = rng.random(n)
    places = np.linspace(0, n - 1, min(n, 300)).astype(int)
    values[places] = 3 + np.arange(len(places)) % 3
    return values * 20


def _late_ties(rng, n, dtype):
    values = rng.integers(1, 50, n)
    values[n // 2 :][rng.random(n - n // 2) < 0.1] = 100
    return values


PATTERNS = {
    "random": _random_bits,
    "specials": lambda rng, n, dtype: rng.choice(special_values(dtype), n),
    "ties": lambda rng, n, dtype: rng.integers(0, 4, n),
    "normal": lambda rng, n, dtype: rng.standard_normal(n) * 20,
    "constant": lambda rng, n, dtype: np.full(n, rng.integers(0, 100)),
    "one_hot": _one_hot,
    "ascending": lambda rng, n, dtype: np.arange(n) // max(n // 100, 1),
    "descending": lambda rng, n, dtype: 100 - np.arange(n) // max(n // 100, 1),
    "noisy_ascending": lambda rng, n, dtype: 10 * np.arange(n) + rng.normal(0, 300, n),
    "nan_rich": _nan_rich,
    "zeros": _zeros,
    "rectified": lambda rng, n, dtype: np.maximum(rng.standard_normal(n) * 20, 0),
    "some_bits": lambda rng, n, dtype: rng.integers(0, 1 << int(rng.integers(1, 64)), n),
    "first_seventh": lambda rng, n, dtype: rng.standard_normal(n) * 1000 + 1e5 * (np.arange(n) <= n // 7),
    "first_third": lambda rng, n, dtype: rng.standard_normal(n) * 1000 + 1e5 * (np.arange(n) <= n // 3),
    "in_every_part": _in_every_part,
    "late_ties": _late_ties,
    "last": lambda rng, n, dtype: np.where(np.arange(n) < n - 2, 1, np.arange(n) - n + 6),
}


def elements(pattern, rng, n, dtype):
    """Return elements of a pattern."""
    values = PATTERNS[pattern](rng, n, dtype)
    if values.dtype == dtype:
        return np.ascontiguousarray(values)
    if values.dtype.kind == "f" and dtype.kind in "iu":
        values = values.astype(np.int64)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def _top_k(maker):
    dtype, index_dtype = maker.pick(maker.dtypes), maker.pick(INDEX_DTYPES)
    sizes = maker.sizes(maker.pick(RANKS))
    axis = int(maker.rng.integers(len(sizes)))
    # The axis cannot be empty: k is at least 1.
    most = max(sizes[axis], 1)
    sizes = (*sizes[:axis], most, *sizes[axis + 1 :])
    k = min(maker.pick((1, 2, 7, 30, 100, 600, 3000, max(most // 2, 1), most, most)), most)
    x = maker.desc(dtype, sizes, broadcasts=True)
    selected = (*sizes[:axis], k, *sizes[axis + 1 :])
    values, indices = maker.desc(dtype, selected), maker.desc(index_dtype, selected)
    largest = maker.chance(0.5)
    storage = maker.values(dtype, x)
    inputs = {"input_tensor": (x, storage)}
    options = Options(is_sorted=not maker.chance(0.3), nan_last=maker.chance(0.2))
    views = {}
    for field in ("lengths", "starts"):
        if maker.chance(0.3):
            given, views[field] = _lengths(maker, (*sizes[:axis], *sizes[axis + 1 :]), most)
            inputs[field] = given
            options = options._replace(**{field: given[0]})
    if views and maker.chance(0.3):
        views["max_length"] = int(maker.rng.integers(0, most, endpoint=True))
        options = options._replace(max_length=views["max_length"])
    if maker.chance(0.3):
        numbers = maker.desc(index_dtype, sizes, broadcasts=True)
        held = maker.rng.integers(0, maker.pick((3, 10**9)), numbers.extent).astype(index_dtype)
        held[maker.rng.random(numbers.extent) < maker.pick((0.0, 0.1, 0.9))] = np.array(-1).astype(
            index_dtype
        )
        inputs["numbers"] = numbers, held
        options = options._replace(numbers=numbers)
        views["indices"] = view_of(held, numbers)
    answers = reference.top_k(
        view_of(storage, x),
        k,
        axis=axis,
        largest=largest,
        sorted=options.is_sorted,
        nan_last=options.nan_last,
        **views,
    )
    descriptor = TopK1(
        input_tensor=x,
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_value_tensor=values,
        output_index_tensor=indices,
    )
    outputs = {
        "output_value_tensor": (values, answers[0]),
        "output_index_tensor": (indices, answers[1].astype(index_dtype)),
    }
    return descriptor, options, inputs, outputs


def _lengths(maker, sizes, axis_size):
    """Return the description and the storage of the lengths of rows, and a view of them."""
    dtype = maker.pick(INDEX_DTYPES)
    desc, info = maker.desc(dtype, sizes, broadcasts=True), np.iinfo(dtype)
    shortest, longest = maker.pick(((0, axis_size), (-2, 3), (axis_size - 2, axis_size + 3)))
    storage = maker.rng.integers(max(shortest, info.min), longest, desc.extent, endpoint=True).astype(dtype)
    storage[maker.rng.random(desc.extent) < 0.05] = maker.pick((info.min, info.max))
    return (desc, storage), view_of(storage, desc)


def _nonzero_coordinates(maker):
    dtype, index_dtype = maker.pick(maker.dtypes), maker.pick(INDEX_DTYPES)
    sizes = maker.sizes(0 if maker.chance(0.02) else maker.pick(RANKS))
    x = maker.desc(dtype, sizes, broadcasts=True)
    storage = maker.values(dtype, x)
    if maker.chance(0.8):
        density = maker.pick(DENSITIES)
        storage = np.where(maker.rng.random(storage.size) < density, storage, np.zeros((), dtype))
    rows = x.element_count
    found, number = reference.nonzero_coordinates(view_of(storage, x))
    capacity = int(maker.pick((rows, rows, len(found), len(found) // 2, len(found) + 1000, 0)))
    lowest, highest = int(np.iinfo(index_dtype).min), int(np.iinfo(index_dtype).max)
    fills = tuple(maker.pick((lowest, 3, column, highest)) for column in range(len(sizes)))
    fill = maker.pick((None, 0, 7, lowest, highest, fills))
    coordinates = maker.desc(index_dtype, (capacity, len(sizes)))
    count_dtype = maker.pick(INDEX_DTYPES)
    count = TensorDesc(TensorDataType[count_dtype.name.upper()], (1,))
    descriptor = NonzeroCoordinates(
        input_tensor=x,
        output_coordinates_tensor=TensorDesc(coordinates.data_type, (rows, len(sizes))),
        output_count_tensor=count,
    )
    answer = found[:capacity].astype(index_dtype)
    if fill is not None:
        left = np.full((capacity - len(answer), len(sizes)), np.array(fill, index_dtype))
        answer = np.vstack([answer, left])
    outputs = {
        "output_coordinates_tensor": (coordinates, answer),
        "output_count_tensor": (count, number.astype(count_dtype).reshape(1)),
    }
    return descriptor, Options(coordinates=coordinates, fill=fill), {"input_tensor": (x, storage)}, outputs


def _gather_nd(maker):
    dtype, index_dtype = maker.pick(maker.dtypes), maker.pick(INDEX_DTYPES)
    sizes = maker.sizes(maker.pick(RANKS))
    batch = int(maker.rng.integers(min(len(sizes), 3)))
    width = int(maker.rng.integers(1, len(sizes) - batch + 1))
    bounds, slices = sizes[batch : batch + width], sizes[batch + width :]
    most = min(MOST_TUPLES, 4 * maker.count // max(math.prod(slices), 1)) // max(math.prod(sizes[:batch]), 1)
    leading, left = [], max(most, 1)
    for _ in range(maker.rng.integers(4)):
        leading.append(int(maker.rng.integers(1, left + 1)))
        left //= leading[-1]
    shape = (*sizes[:batch], *leading, width)
    mode = "fill" if 0 in bounds else maker.pick(("clip", "fill"))
    x, indices = maker.desc(dtype, sizes, broadcasts=True), maker.desc(index_dtype, shape, broadcasts=True)
    output = maker.desc(dtype, (*shape[:-1], *slices))
    storage, picks = maker.values(dtype, x), np.zeros(indices.extent, index_dtype)
    if indices.element_count:
        view_of(picks, indices)[...] = _indices(maker, shape, bounds, index_dtype)
    fill, wraps = maker.values(dtype, TensorDesc(x.data_type, (1,))), maker.chance(0.6)
    if dtype.kind == "b":
        fill = fill.view(np.uint8) != 0
    options = {"mode": mode, "fill_value": fill[0], "wrap_negative": wraps}
    answer = reference.gather_nd(view_of(storage, x), view_of(picks, indices), batch_dims=batch, **options)
    rank = max(len(sizes), len(shape), answer.ndim)
    descriptor = GatherND1(
        input_tensor=x.with_leading_ones(rank),
        indices_tensor=indices.with_leading_ones(rank),
        output_tensor=output.with_leading_ones(rank),
        input_dimension_count=len(sizes),
        indices_dimension_count=len(shape),
        batch_dimension_count=batch,
    )
    inputs = {"input_tensor": (x, storage), "indices_tensor": (indices, picks)}
    options = Options(mode=mode, element=fill.tobytes(), wraps=wraps)
    return descriptor, options, inputs, {"output_tensor": (output, answer)}


def _indices(maker, shape, bounds, dtype):
    """Return index tuples, most of them in range."""
    rng, info = maker.rng, np.iinfo(dtype)
    columns = []
    for bound in bounds:
        column = rng.integers(-bound if info.min < 0 else 0, max(bound, 1), shape[:-1]).astype(dtype)
        near = rng.integers(max(-2 * bound - 2, info.min), 2 * bound + 2, shape[:-1]).astype(dtype)
        far = rng.integers(info.min, info.max, shape[:-1], dtype, endpoint=True)
        wild = maker.pick((0, 0.05, 0.4))
        column = np.where(rng.random(shape[:-1]) < wild, near, column)
        columns.append(np.where(rng.random(shape[:-1]) < wild / 3, far, column))
    return np.stack(columns, -1)


def _diagonal_matrix(maker):
    dtype = maker.pick(maker.dtypes)
    sizes = maker.sizes(max(maker.pick(RANKS), 2))
    height, width = sizes[-2:]
    output = maker.desc(dtype, sizes)
    anywhere, near = maker.rng.integers(-height - 2, width + 3, 2), maker.rng.integers(-3, 9, 2)
    begin, end = (int(maker.pick((0, 1, -(2**40), near[i], anywhere[i], anywhere[i]))) for i in range(2))
    value = maker.pick((0.0, -0.0, 1.0, 0.1, -5.5, np.inf) if dtype in FLOATS else (0, 1, 1))
    if dtype.kind in "iu":
        value = maker.pick((0, 1, 7, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)))
    band = {"value": value, "begin": begin, "end": end}
    inputs, x = {}, None
    if maker.chance(0.8):
        x = maker.desc(dtype, sizes, broadcasts=True)
        inputs["input_tensor"] = x, maker.values(dtype, x)
        answer = reference.diagonal_matrix(view_of(inputs["input_tensor"][1], x), **band)
    else:
        answer = reference.diagonal_matrix(shape=sizes, dtype=dtype, **band)
    descriptor = DiagonalMatrix1(
        input_tensor=x, output_tensor=output, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end
    )
    return descriptor, Options(), inputs, {"output_tensor": (output, answer)}


MAKERS = {
    "top_k": _top_k,
    "nonzero_coordinates": _nonzero_coordinates,
    "gather_nd": _gather_nd,
    "diagonal_matrix": _diagonal_matrix,
}
