"""GATHER_ND and GATHER_ND1: the elements or slices that index tuples point at."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from dmlops.operators.batching import BATCH, Batched
from dmlops.operators.descriptor import INFERRED, Descriptor, check_index_type, result
from dmlops.operators.layout import in_parts, merge, part_of
from dmlops.operators.problem import Operator, Options
from dmlops.operators.support import DML_TYPES, EVERY_TYPE, INDEX_TYPES, SMALL_TYPES, UINT32, SupportTable
from dmlops.types.arguments import MOST_DIMENSIONS
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import IndexOutOfRangeError, Words, counted, error_text, refuse, shown
from dmlops.types.opaque_types import OpaqueType, part_bytes, type_name
from dmlops.types.scalars import fill_scalar
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import GatherProblem

_FROM_3_0 = (
    (FeatureLevel.DML_3_0, (1, 8), SMALL_TYPES, {"indices_tensor": INDEX_TYPES}),
    (FeatureLevel.DML_4_1, (1, 8), DML_TYPES, {"indices_tensor": INDEX_TYPES}),
    (FeatureLevel.EXTENDED, (1, None), EVERY_TYPE, {"indices_tensor": INDEX_TYPES}),
)


def gathered_sizes(
    words: Words, data: TensorDesc, indices: TensorDesc, data_rank: int, indices_rank: int, batch: int
) -> tuple[int, ...]:
    """Return the sizes of the result, without padding; refuse ranks, batches and tuples that do not fit."""
    where, x = words.where("indices_tensor", ".sizes"), words["input_tensor"]
    if indices_rank == 0:
        reason = "its last dimension is that of the tuples"
        refuse(where, "0 dimensions", reason, "it must have at least 1")
    if data_rank == 0 and indices.sizes[-1]:
        reason = "index tuples point into it"
        refuse(words.where("input_tensor", ".sizes"), "0 dimensions", reason, "it must have at least 1")
    limit = max(min(data_rank, indices_rank) - 1, 0)
    if not 0 <= batch <= limit:
        reason = f"{x} has {counted(data_rank, 'dimension')} and {words['indices_tensor']} {indices_rank}"
        refuse(words.where("batch_dimension_count"), batch, reason, f"it must be in [0, {limit}]")
    input_sizes = data.sizes[data.dimension_count - data_rank :]
    indices_sizes = indices.sizes[indices.dimension_count - indices_rank :]
    if input_sizes[:batch] != indices_sizes[:batch]:
        reason = f"{x} has batches {input_sizes[:batch]}"
        refuse(where, indices.sizes, reason, "the batch sizes must be equal")
    indexable, tuple_size = data_rank - batch, indices_sizes[-1]
    if tuple_size > indexable:
        reason = f"{counted(indexable, 'dimension')} of {x} can be indexed"
        allowed = f"their last size must be in [0, {indexable}]"
        refuse(where, f"shape {indices.sizes}", reason, allowed)
    return indices_sizes[:-1] + input_sizes[batch + tuple_size :]


# The usual short name of each array module, for the remedy `np.stack(...)`.
_STACKS = {"torch": "torch", "cupy": "cupy", "jax": "jnp", "jaxlib": "jnp", "dask": "da"}


def check_mode(mode: object) -> None:
    """Refuse what is no mode of the function `gather_nd`."""
    if not isinstance(mode, str) or mode not in ("raise", "clip", "fill"):
        allowed = 'mode must be "raise", "clip" or "fill"'
        refuse("gather_nd.mode", shown(mode), "there is no such mode", allowed)


def element_fill(value: object, mode: str) -> object:
    """Return what `gather_nd` fills with as a plain scalar; refuse what is none, and one without use."""
    value = fill_scalar(value, "gather_nd.fill_value")
    check_use(value, mode)
    return value


def check_use(fill: object, mode: str) -> None:
    """Refuse another scalar than 0 where nothing is filled with it: if `mode` is not ``"fill"``."""
    if mode != "fill" and not (type(fill) is int and fill == 0):
        refuse("gather_nd.fill_value", shown(fill), f"mode is {mode!r}", 'fill_value needs mode="fill"')


def check_is_one_array(
    indices: object, convert: Callable[[object, str], object] | None = None, depth: int = 0
) -> None:
    """Refuse arrays in a tuple or a list, as NumPy's own indexing takes them; numbers may be nested.

    `convert` runs first: it raises for what NumPy cannot make an array of.
    """
    if depth > MOST_DIMENSIONS:  # a conversion refuses it
        return
    for part in indices if isinstance(indices, (tuple, list)) else ():
        # torch's compiler asks no integer of a dynamic graph for attributes.
        if not isinstance(part, int) and len(getattr(part, "shape", ())):
            library = _STACKS.get(type(part).__module__.partition(".")[0], "np")
            if convert is not None and library in ("np", "da"):
                convert(indices, "gather_nd.indices")
            stack = f"{library}.stack"
            got, reason = f"arrays in a {type(indices).__name__}", "they may be columns or rows"
            allowed = (
                f"pass {stack}(indices, -1) for one array per dimension, {stack}(indices) for one per tuple"
            )
            raise TypeError(error_text("gather_nd.indices", got, reason, allowed))
        check_is_one_array(part, convert, depth + 1)


def infer_gather_nd(words: Words, data: TensorDesc, indices: TensorDesc, batch_dims: int) -> TensorDesc:
    """Return the result of a gather whose inputs share `batch_dims` leading dimensions."""
    check_index_type("gather_nd.indices", indices.data_type)
    ranks = data.dimension_count, indices.dimension_count
    sizes = gathered_sizes(words, data, indices, *ranks, batch_dims)
    return result(words.where("output_tensor", ".sizes"), data.data_type, sizes)


def batch_of_gathers(shapes: Mapping[str, Sequence[int]], batched: Set[str], gather: Any) -> Batched:
    """Return the one call for a batch; see `dmlops.operators.batching`."""
    at = gather.batch_dims
    x, indices = (tuple(range(len(shapes[name]))) for name in ("x", "indices"))
    if "x" in batched:
        return Batched({"x": (BATCH, *x), "indices": (BATCH, *indices)}, {"batch_dims": at + 1})
    # The batch only adds tuples.
    return Batched({"indices": (*indices[:at], BATCH, *indices[at:])}, batch_dim=at)


def check_can_be_in_range(data: TensorDesc, indices: TensorDesc, batch_dims: int, mode: str) -> None:
    """Raise IndexOutOfRangeError for tuples into a dimension of size 0, unless `mode` is ``"fill"``."""
    n_tuples = math.prod(indices.sizes[:-1])
    if mode != "fill" and n_tuples > 0 and 0 in data.sizes[batch_dims : batch_dims + indices.sizes[-1]]:
        reason, remedy = f"x has sizes {data.sizes}, so every index is out of range", 'use mode="fill"'
        raise IndexOutOfRangeError(
            error_text("gather_nd.indices", counted(n_tuples, "tuple"), reason, remedy)
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class GatherND(Descriptor):
    """Read the slices that index tuples point at: ``output[...] = input[indices[...], ...]``.

    All tensors have the same dimension count; leading dimensions of size 1 are padding.

    Parameters
    ----------
    input_tensor : TensorDesc
        The elements.
    indices_tensor : TensorDesc
        The tuples of indices, along the last dimension.
    output_tensor : TensorDesc, optional
        The slices, of sizes {1..., sizes of the indices without the last, sizes of the input after the
        indexed dimensions}. On DirectML's page, the formula for the latter contradicts the example, which is
        right.
    input_dimension_count, indices_dimension_count : int
        The number of dimensions of the input and of the indices, without padding.

    Raises
    ------
    InvalidDescriptorError
        If the dimension counts, the batch sizes or the tuple size do not fit.

    References
    ----------
    DML_GATHER_ND_OPERATOR_DESC structure (directml.h); ONNX GatherND.
    """

    input_tensor: TensorDesc
    indices_tensor: TensorDesc
    output_tensor: TensorDesc = INFERRED
    input_dimension_count: int
    indices_dimension_count: int

    support: ClassVar[SupportTable] = SupportTable(
        (FeatureLevel.DML_2_1, (4, 4), SMALL_TYPES, {"indices_tensor": UINT32}),
        *_FROM_3_0,
    )

    @property
    def input_sizes(self) -> tuple[int, ...]:
        """Sizes of the input without its padding."""
        return self.input_tensor.sizes[self.input_tensor.dimension_count - self.input_dimension_count :]

    @property
    def indices_sizes(self) -> tuple[int, ...]:
        """Sizes of the indices without their padding."""
        return self.indices_tensor.sizes[self.indices_tensor.dimension_count - self.indices_dimension_count :]

    def __post_init__(self) -> None:
        data, indices = self._tensor("input_tensor"), self._tensor("indices_tensor")
        if data.dimension_count == 0:
            reason = "index tuples point into it"
            self._refuse("input_tensor.sizes", "0 dimensions", reason, "it must have at least 1")
        if indices.dimension_count != data.dimension_count:
            reason = f"input_tensor has {data.dimension_count}"
            got = counted(indices.dimension_count, "dimension")
            self._refuse("indices_tensor.sizes", got, reason, "both must have the same number")
        if indices.data_type.is_float:
            got, allowed = type_name(indices.data_type), "data_type must be uint32, uint64, int32 or int64"
            self._refuse("indices_tensor.data_type", got, "indices are integers", allowed)
        self._check_padding("input_dimension_count", data)
        self._check_padding("indices_dimension_count", indices)
        ranks = self.input_dimension_count, self.indices_dimension_count
        batch = getattr(self, "batch_dimension_count", 0)
        sizes = gathered_sizes(self.words, data, indices, *ranks, batch)
        if len(sizes) > data.dimension_count:
            reason = f"the output {sizes} has more"
            allowed = f"all tensors must have at least {counted(len(sizes), 'dimension')}"
            self._refuse("input_tensor.sizes", counted(data.dimension_count, "dimension"), reason, allowed)
        padded = (1,) * (data.dimension_count - len(sizes)) + sizes
        output = result(self.words.where("output_tensor", ".sizes"), data.data_type, padded)
        self._check_output("output_tensor", output)
        self._same_type("output_tensor", "input_tensor")

    def _check_padding(self, field: str, desc: TensorDesc) -> None:
        count = self._integer(field)
        tensor = field.replace("_dimension_count", "_tensor")
        if not 1 <= count <= desc.dimension_count:
            reason = f"{tensor} has {counted(desc.dimension_count, 'dimension')}"
            self._refuse(field, count, reason, f"{field} must be in [1, {desc.dimension_count}]")
        if any(size != 1 for size in desc.sizes[: desc.dimension_count - count]):
            reason = f"{tensor} has sizes {desc.sizes}"
            self._refuse(field, count, reason, "the dimensions before these must have size 1")

    def lower(self) -> "GatherND1":
        """Return the GatherND1 that computes the same, which may be this one."""
        if isinstance(self, GatherND1):
            return self
        return GatherND1(**self._fields_of(GatherND1), batch_dimension_count=0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class GatherND1(GatherND):
    """Read the slices of each batch: ``output[batch, ...] = input[batch, indices[batch, ...], ...]``.

    Parameters
    ----------
    input_tensor, indices_tensor, output_tensor, input_dimension_count, indices_dimension_count
        As for `GatherND`.
    batch_dimension_count : int
        The number of leading dimensions, after the padding, that input and indices have in common.

    References
    ----------
    DML_GATHER_ND1_OPERATOR_DESC structure (directml.h); ONNX GatherND.

    Examples
    --------
    >>> from dmlops.types.enums import TensorDataType
    >>> desc = GatherND1(input_tensor=TensorDesc(TensorDataType.FLOAT32, (3, 4, 5, 6, 7)),
    ...                  indices_tensor=TensorDesc(TensorDataType.UINT32, (1, 1, 1, 2, 3)),
    ...                  input_dimension_count=5, indices_dimension_count=3, batch_dimension_count=0)
    >>> desc.output_tensor.sizes
    (1, 1, 2, 6, 7)
    """

    batch_dimension_count: int

    support: ClassVar[SupportTable] = SupportTable(*_FROM_3_0)

    def __post_init__(self) -> None:
        self._integer("batch_dimension_count")
        GatherND.__post_init__(self)

    def parts(self, options: Options) -> "Sequence[tuple[GatherND1, Options]]":
        """Return the same on unsigned integers; see `Descriptor.parts`.

        Parts that are filled with the same bits are blocks of one gather, and others are each a gather.
        """
        data_type = self.input_tensor.data_type
        if not isinstance(data_type, OpaqueType):
            return ((self, options),)
        size, element = part_bytes(data_type), options.element
        fills = [element[at : at + size] for at in range(0, len(element), size)] or [b""]
        are_equal = len(set(fills)) == 1
        arrange = in_parts if are_equal else part_of
        part = self._inferred_with(
            input_tensor=arrange(self.input_tensor),
            output_tensor=arrange(self.output_tensor),
            input_dimension_count=self.input_dimension_count + are_equal,
        )
        return [(part, options._replace(element=fill)) for fill in (fills[:1] if are_equal else fills)]

    def older_form(self) -> GatherND | None:
        """Return the GatherND that computes the same, or None: it has no batches and no scalar input."""
        has_form = self.input_dimension_count > 0 and not self.batch_dimension_count
        return GatherND(**self._fields_of(GatherND)) if has_form else None


def gather_nd_problem(desc: GatherND1, options: Options) -> GatherProblem:
    """Return the problem of a descriptor."""
    x, indices, output = desc.input_tensor, desc.indices_tensor, desc.output_tensor
    batch, coordinates = desc.batch_dimension_count, indices.sizes[-1]
    x_sizes, index_sizes = desc.input_sizes, desc.indices_sizes
    x_strides = x.effective_strides[x.dimension_count - len(x_sizes) :]
    index_strides = indices.effective_strides[indices.dimension_count - len(index_sizes) :]
    sliced = batch + coordinates
    output_rank = len(index_sizes) - 1 + len(x_sizes) - sliced
    output_strides = output.effective_strides[output.dimension_count - output_rank :]
    tuple_dims = len(index_sizes) - 1
    return GatherProblem(
        element_size=x.data_type.bytes,
        index_size=indices.data_type.bytes,
        index_signed=indices.data_type.is_signed,
        batch=merge(x_sizes[:batch], x_strides[:batch], index_strides[:batch], output_strides[:batch]),
        tuples=merge(index_sizes[batch:-1], index_strides[batch:-1], output_strides[batch:tuple_dims]),
        coordinate_stride=index_strides[-1],
        bounds=tuple(zip(x_sizes[batch:sliced], x_strides[batch:sliced], strict=True)),
        slices=merge(x_sizes[sliced:], x_strides[sliced:], output_strides[tuple_dims:]),
        mode=options.mode,
        fill=int.from_bytes(options.element, sys.byteorder),
        wraps=options.wraps,
        x_offset=x.offset,
    )


OPERATOR = Operator(
    "gather_nd",
    (GatherND, GatherND1),
    gather_nd_problem,
    ("input_tensor", "indices_tensor", "output_tensor"),
    gathered=0,
)
