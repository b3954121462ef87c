"""What a function returns, from descriptions alone: for arrays that are traced, lazy or in a model file."""

from dmlops.enums import AxisDirection, TensorDataType
from dmlops.errors import error_text, refuse, shown
from dmlops.operators import DiagonalMatrix1, GatherND1, NonzeroCoordinates, TopK1
from dmlops.operators.support import INDEX_TYPES
from dmlops.tensor import TensorDesc


def check_lengths(lengths: TensorDesc, data: TensorDesc, axis: int) -> None:
    """Refuse lengths of another type or shape than those of the rows of `data` along an axis."""
    where = "top_k.lengths"
    if lengths.data_type not in INDEX_TYPES:
        allowed = "lengths must be uint32, uint64, int32 or int64"
        raise TypeError(error_text(where, lengths.data_type.name.lower(), "it is no index type", allowed))
    rows = data.sizes[:axis] + data.sizes[axis + 1 :]
    if lengths.sizes != rows:
        reason = f"x without axis {axis} has shape {rows}"
        refuse(where, f"shape {lengths.sizes}", reason, "shapes must be equal")


def top_k(
    data: TensorDesc,
    k: int,
    axis: int,
    index_type: TensorDataType,
    lengths: TensorDesc | None = None,
) -> tuple[TensorDesc, TensorDesc]:
    """Return the values and the indices of `dmlops.top_k`."""
    if data.dimension_count == 0:
        data = TensorDesc(data.data_type, (1,))
    axis += data.dimension_count if axis < 0 else 0
    sizes = (*data.sizes[:axis], k, *data.sizes[axis + 1 :])
    values, indices = TensorDesc(data.data_type, sizes), TensorDesc(index_type, sizes)
    if lengths is not None:
        check_lengths(lengths, data, axis)
    if k == 0 and 0 <= axis < data.dimension_count:
        # The one call that DirectML has no descriptor for.
        return values, indices
    TopK1(
        input_tensor=data,
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING,
        output_value_tensor=values,
        output_index_tensor=indices,
    )
    return values, indices


def nonzero_coordinates(
    data: TensorDesc, rows: int, index_type: TensorDataType
) -> tuple[TensorDesc, TensorDesc]:
    """Return the coordinates, of which `rows` are kept, and the count of `dmlops.nonzero_coordinates`."""
    columns = data.dimension_count
    NonzeroCoordinates(
        input_tensor=data,
        output_coordinates_tensor=TensorDesc(index_type, (data.element_count, columns)),
        output_count_tensor=TensorDesc(index_type, (1,)),
    )
    return TensorDesc(index_type, (rows, columns)), TensorDesc(index_type, ())


def gather_nd_descriptor(data: TensorDesc, indices: TensorDesc, batch_dims: int) -> GatherND1:
    """Return the descriptor of a gather from arrays of any ranks: ones in front make these equal."""
    rank = max(data.dimension_count, indices.dimension_count)
    if indices.sizes:
        rank = max(rank, data.dimension_count + indices.dimension_count - 1 - batch_dims - indices.sizes[-1])
    return GatherND1(
        input_tensor=data.with_leading_ones(rank),
        indices_tensor=indices.with_leading_ones(rank),
        input_dimension_count=data.dimension_count,
        indices_dimension_count=indices.dimension_count,
        batch_dimension_count=batch_dims,
    )


def gather_nd(data: TensorDesc, indices: TensorDesc, batch_dims: int, mode: str) -> TensorDesc:
    """Return the result of `dmlops.gather_nd`."""
    if mode not in ("raise", "clip", "fill"):
        allowed = 'mode must be "raise", "clip" or "fill"'
        refuse("gather_nd.mode", shown(mode), "there is no such mode", allowed)
    if indices.data_type not in INDEX_TYPES:
        got, allowed = indices.data_type.name.lower(), "indices must be uint32, uint64, int32 or int64"
        raise TypeError(error_text("gather_nd.indices", got, "it is no index type", allowed))
    desc = gather_nd_descriptor(data, indices, batch_dims)
    padded = desc.output_tensor
    assert padded is not None
    rank = data.dimension_count + indices.dimension_count - 1 - batch_dims - desc.index_tuple_size
    return TensorDesc(padded.data_type, padded.sizes[padded.dimension_count - rank :])


def diagonal_matrix(data: TensorDesc, value: float, begin: int, end: int) -> TensorDesc:
    """Return the result of `dmlops.diagonal_matrix`."""
    desc = DiagonalMatrix1(input_tensor=data, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end)
    return desc.output_tensor
