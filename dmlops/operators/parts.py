"""Parts: the adjacent unsigned integers as which kernels handle elements that are too wide for them."""

from dmlops.types.enums import TensorDataType
from dmlops.types.opaque_types import part_bytes
from dmlops.types.tensor import TensorDesc

_UNSIGNED = {
    1: TensorDataType.UINT8,
    2: TensorDataType.UINT16,
    4: TensorDataType.UINT32,
    8: TensorDataType.UINT64,
}


def in_parts(desc: TensorDesc) -> TensorDesc:
    """Return a tensor with one more dimension, the last, for the parts of each element.

    Examples
    --------
    >>> from dmlops.types.data_types import data_type_of
    >>> in_parts(TensorDesc(data_type_of("complex128", "x"), (3, 4), (8, 2)))
    TensorDesc(data_type=<TensorDataType.UINT64: 10>, sizes=(3, 4, 2), strides=(16, 4, 1))
    """
    size = part_bytes(desc.data_type)
    n_parts = desc.data_type.bytes // size
    strides = [n_parts * stride for stride in desc.effective_strides]
    return TensorDesc(_UNSIGNED[size], (*desc.sizes, n_parts), (*strides, 1))


def parts_as_batch(desc: TensorDesc) -> TensorDesc:
    """Return matrices with the dimension for the parts before rows and columns."""
    parts = in_parts(desc)
    moved = [(*each[:-3], each[-1], *each[-3:-1]) for each in (parts.sizes, parts.effective_strides)]
    return TensorDesc(parts.data_type, *moved)


def part_of(desc: TensorDesc) -> TensorDesc:
    """Return one part of each element."""
    parts = in_parts(desc)
    return TensorDesc(parts.data_type, parts.sizes[:-1], parts.effective_strides[:-1])
