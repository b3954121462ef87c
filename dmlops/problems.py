"""From a descriptor to the problem its kernels solve: plain integers, free of types and of shapes.

One function an operator. The keywords are those of the kernels' ``plan`` functions, on either device.
"""

from typing import Any, NamedTuple

from dmlops.enums import AxisDirection, TensorDataType
from dmlops.layout import merge
from dmlops.operators import DiagonalMatrix1, GatherND1, NonzeroCoordinates, TopK1
from dmlops.scalars import scalar_bits
from dmlops.tensor import TensorDesc

Problem = dict[str, Any]


class Options(NamedTuple):
    """What a function may ask for beyond DirectML's descriptors.

    Attributes
    ----------
    mode : str
        What gather does with indices out of range: ``"clip"`` or ``"fill"``.
    coordinates : TensorDesc or None
        The coordinates as they lie in memory, with as many rows as may be written; None for one an element.
    fill : int or None
        Value of the coordinate rows from the count on; None leaves them as they are.
    is_sorted : bool
        Whether top-k's results are in order of value; in ascending order of index otherwise.
    lengths : TensorDesc or None
        Integers that say how many elements each row of top-k's input has; None for all.
    """

    mode: str = "clip"
    coordinates: TensorDesc | None = None
    fill: int | None = None
    is_sorted: bool = True
    lengths: TensorDesc | None = None


def operand_tensors(desc: Any, options: Options) -> dict[str, TensorDesc]:
    """Return the tensors as they lie in memory, by field name."""
    tensors: dict[str, TensorDesc] = dict(desc.tensors)
    if options.coordinates is not None:
        tensors["output_coordinates_tensor"] = options.coordinates
    if options.lengths is not None:
        tensors["lengths"] = options.lengths
    return tensors


def top_k_problem(desc: TopK1, options: Options) -> Problem:
    """Return the keywords of ``top_k.plan``."""
    tensors = _present(desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor)
    x, values, indices = tensors
    axis = desc.axis
    is_largest = desc.axis_direction == AxisDirection.DECREASING
    outer = [size for d, size in enumerate(x.sizes) if d != axis]
    strides = [
        [stride for d, stride in enumerate(tensor.effective_strides) if d != axis] for tensor in tensors
    ]
    rows = merge(outer, *strides)
    asked: Problem = {} if options.is_sorted else {"is_sorted": False}
    lengths = options.lengths
    if lengths is not None:
        merged = merge(outer, *strides, lengths.effective_strides)
        rows = tuple(row[:-1] for row in merged)
        asked["length_size"] = lengths.data_type.bytes
        asked["length_signed"] = lengths.data_type.is_signed
        asked["length_strides"] = tuple(row[-1] for row in merged)
        asked["padding"] = x.data_type.lowest_bits if is_largest else x.data_type.highest_bits
    return {
        "element_size": x.data_type.bytes,
        "index_size": indices.data_type.bytes,
        **_key_masks(x.data_type),
        "largest": is_largest,
        "k": desc.k,
        "axis_size": x.sizes[axis],
        "rows": rows,
        "axis_strides": tuple(tensor.effective_strides[axis] for tensor in tensors),
        "x_offset": x.offset,
        "value_offset": values.offset,
        "index_offset": indices.offset,
        **asked,
    }


def nonzero_coordinates_problem(desc: NonzeroCoordinates, options: Options) -> Problem:
    """Return the keywords of ``nonzero_coordinates.plan``."""
    tensors = operand_tensors(desc, options)
    x, coordinates = tensors["input_tensor"], tensors["output_coordinates_tensor"]
    masks = _key_masks(x.data_type)
    columns = coordinates.sizes[-1]
    fill = options.fill
    return {
        "element_size": x.data_type.bytes,
        "magnitude": masks["flip"] or (1 << x.data_type.bits) - 1,
        "sizes": x.sizes[x.dimension_count - columns :],
        "dims": merge(x.sizes, x.effective_strides),
        "x_offset": x.offset,
        "coordinate_offset": coordinates.offset,
        "capacity": coordinates.sizes[-2],
        "coordinate_strides": coordinates.effective_strides[-2:],
        "coordinate_size": coordinates.data_type.bytes,
        "count_size": tensors["output_count_tensor"].data_type.bytes,
        "fill": None if fill is None else fill % (1 << coordinates.data_type.bits),
    }


def gather_nd_problem(desc: GatherND1, options: Options) -> Problem:
    """Return the keywords of ``gather_nd.plan``."""
    x, indices, output = _present(desc.input_tensor, desc.indices_tensor, desc.output_tensor)
    batch, coordinates = desc.batch_dimension_count, desc.index_tuple_size
    x_sizes, index_sizes = desc.input_sizes, desc.indices_sizes
    x_strides = x.effective_strides[x.dimension_count - len(x_sizes) :]
    index_strides = indices.effective_strides[indices.dimension_count - len(index_sizes) :]
    sliced = batch + coordinates
    output_rank = len(index_sizes) - 1 + len(x_sizes) - sliced
    output_strides = output.effective_strides[output.dimension_count - output_rank :]
    tuple_dims = len(index_sizes) - 1
    return {
        "element_size": x.data_type.bytes,
        "index_size": indices.data_type.bytes,
        "index_signed": indices.data_type.is_signed,
        "batch": merge(x_sizes[:batch], x_strides[:batch], index_strides[:batch], output_strides[:batch]),
        "tuples": merge(index_sizes[batch:-1], index_strides[batch:-1], output_strides[batch:tuple_dims]),
        "coordinate_stride": index_strides[-1],
        "bounds": tuple(zip(x_sizes[batch:sliced], x_strides[batch:sliced], strict=True)),
        "slices": merge(x_sizes[sliced:], x_strides[sliced:], output_strides[tuple_dims:]),
        "mode": options.mode,
        "x_offset": x.offset,
        "index_offset": indices.offset,
        "output_offset": output.offset,
    }


def diagonal_matrix_problem(desc: DiagonalMatrix1, options: Options) -> Problem:
    """Return the keywords of ``diagonal_matrix.plan``."""
    (output,) = _present(desc.output_tensor)
    x = desc.input_tensor
    x_strides = output.effective_strides if x is None else x.effective_strides
    height, width = output.sizes[-2:]
    first, last = sorted((desc.diagonal_fill_begin, desc.diagonal_fill_end))
    return {
        "element_size": output.data_type.bytes,
        "has_input": x is not None,
        "value": scalar_bits(desc.value, output.data_type),
        "batch": merge(output.sizes[:-2], x_strides[:-2], output.effective_strides[:-2]),
        "height": height,
        "width": width,
        "x_strides": x_strides[-2:],
        "output_strides": output.effective_strides[-2:],
        # Beyond the matrix all bounds mean the same; kept near it, none can overflow.
        "begin": min(max(first, -height), width),
        "end": min(max(last, -height), width),
        "inverted": desc.diagonal_fill_begin > desc.diagonal_fill_end,
        "x_offset": 0 if x is None else x.offset,
        "output_offset": output.offset,
    }


def _key_masks(data_type: TensorDataType) -> dict[str, int]:
    sign = 1 << (data_type.bits - 1) if data_type.is_signed else 0
    return {"sign": sign, "flip": sign - 1 if data_type.is_float else 0, "infinity": data_type.infinity}


def _present(*tensors: TensorDesc | None) -> list[TensorDesc]:
    """Return tensors that a checked descriptor always has."""
    return [tensor for tensor in tensors if tensor is not None]
