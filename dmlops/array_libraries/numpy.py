"""NumPy arrays, and all objects that NumPy converts without losing information."""

import ctypes
import math
import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from dmlops.array_libraries.base import (
    ArrayLibrary,
    Operand,
    are_nonzero,
    describe_numpy_like,
    refuse_exchange,
    refuse_unaligned,
)
from dmlops.devices.memory import CPU, Device
from dmlops.types.arguments import MOST_DIMENSIONS
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import argument_of, counted, error_text, instance_of, is_output, refuse
from dmlops.types.opaque_types import ElementType, identity
from dmlops.types.tensor import TensorDesc
from kernels_cpu.native_call import ArrayKind

# The offset of the data's address in the structure of NumPy's array interface, which is faster to read than
# `ctypes.data`.
_DATA_FIELD = 40
_pointer_at = ctypes.c_size_t.from_address
_structure_of = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NUMBERS = frozenset((int, float, bool))
_BEYOND_INT64, _HIGHEST = 2.0**63, 2**64 - 1
# A capsule of the array interface does not tell whether complex64 is aligned to 8 bytes.
_TOLD_KINDS = "biuf"
# `dtype.isbuiltin` of types that others have registered, such as bfloat16. The capsule does not tell them
# from each other; `NumPy.kind_signature`, by which a native call is found, does.
_REGISTERED = 2
# Types of these kinds may be equal to NumPy without being the same. `NumPy.kind_signature` does not tell them
# apart, so native calls refuse them.
_AMBIGUOUS_KINDS = "mMV"


def _address(array: np.ndarray) -> int:
    capsule = array.__array_struct__  # which frees the structure in the end
    address: int
    try:
        address = _pointer_at(_structure_of(capsule, None) + _DATA_FIELD).value
    except ctypes.ArgumentError:  # out of memory or of stack, which this slower way says by its name
        address = array.ctypes.data
    del capsule  # only here: torch's compiler drops variables that nothing uses any more
    return address


class NumPy(ArrayLibrary):
    """NumPy, for arrays in host memory."""

    name = "numpy"
    native_type = np.ndarray
    # A C function, which takes a third of the time of a method.
    signature: Any = staticmethod(operator.attrgetter("dtype", "shape", "strides"))
    kind_signature: Any = staticmethod(operator.attrgetter("dtype", "ndim"))

    def as_plain(self, array: object, where: str) -> np.ndarray:
        return array if type(array) is np.ndarray else _as_plain(array, where)

    def as_pattern(self, array: object, where: str) -> np.ndarray:
        return self.as_plain(array, where)

    def data_type(self, array: np.ndarray, where: str) -> ElementType:
        # Its strides, which may be no multiples of its elements, do not matter.
        return describe_numpy_like(array.dtype, (), (), where).data_type

    def as_input(self, array: object, where: str, stream: int | None = None) -> Operand:
        if type(array) is not np.ndarray:
            array = _as_plain(array, where)
        # Kernels may read elements in parts that are larger than NumPy's alignment.
        has_parts = array.dtype.kind == "c" or array.dtype.names is not None
        if not array.flags.aligned or (has_parts and not _are_parts_in_place(array)):
            array = _aligned_copy(array)
        return self._operand(array)

    def as_output(self, array: object, where: str) -> Operand:
        if type(array) is not np.ndarray:
            if not (isinstance(array, np.ndarray) or _is_of_dlpack(array)):
                got, reason = type(array).__name__, "it is written to"
                raise TypeError(error_text(where, got, reason, "an output must be an array"))
            array = _as_plain(array, where)
        flags = array.flags
        if not flags.behaved:
            if flags.writeable:
                refuse_unaligned("array", where)
            refuse(where, "a read-only array", "it is written to", "an output must be writable")
        return self._operand(array)

    def _operand(self, array: np.ndarray) -> Operand:
        signature = self.signature(array)
        if array.dtype.kind in _AMBIGUOUS_KINDS:
            signature = identity(array.dtype), array.shape, array.strides
        return Operand(self, array, signature, _address(array))

    def device(self, array: np.ndarray) -> Device:
        return CPU

    def address(self, array: np.ndarray) -> int:
        return _address(array)

    def native_operand(self, array: np.ndarray, *, is_written: bool) -> ArrayKind | None:
        dtype = array.dtype
        if (dtype.kind not in _TOLD_KINDS and dtype.isbuiltin != _REGISTERED) or dtype.itemsize > 8:
            return None
        return ArrayKind.of_array_interface(array, is_written=is_written)

    def as_bools(self, operand: Operand, stream: int | None) -> Operand:
        return self._operand(np.asarray(are_nonzero(operand.array, np.int64)))

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> np.ndarray:
        return np.empty(sizes, numpy_dtype(data_type))

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], np.ndarray]:
        return partial(np.empty, desc.sizes, numpy_dtype(desc.data_type))

    def maker(self, data_type: ElementType, device: Device) -> Callable[[tuple[int, ...]], np.ndarray]:
        return partial(np.empty, dtype=numpy_dtype(data_type))


def _are_parts_in_place(array: np.ndarray) -> bool:
    """Return whether elements are aligned to their parts, and whole elements do not overlap."""
    size = array.itemsize
    if not size:  # refused with its type
        return True
    is_whole = all(stride % size == 0 for stride in array.strides)
    return is_whole and _address(array) % math.gcd(size, 8) == 0


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    dtype = array.dtype
    if dtype.names is None or dtype.hasobject:
        return array.copy()
    # NumPy would copy the fields alone, and lose the bytes between them.
    return array.view(f"V{dtype.itemsize}").copy().view(dtype)


def _as_plain(array: Any, where: str) -> np.ndarray:
    """Return an ndarray with the elements of a subclass, a list, a scalar or another object."""
    if _is_of_dlpack(array):
        try:
            return np.from_dlpack(array)
        except Exception as error:  # as in `dlpack_device`
            refuse_exchange(array, where, error)
    _check_plain(array, where)
    try:
        plain = np.asarray(array)
    except (ValueError, TypeError, OverflowError, RecursionError, RuntimeError) as error:
        differ = "inhomogeneous" in str(error)
        reason = "its rows differ in length" if differ else "NumPy cannot make an array of it"
        raise TypeError(error_text(where, type(array).__name__, reason, "it must be an array")) from None
    if isinstance(array, (int, list, tuple)) and plain.dtype in (object, np.float64):
        plain = _exact(array, plain, where)
    if plain.dtype == object and not plain.ndim and not isinstance(array, np.ndarray):
        refuse_object(array, where)
    return plain


def _exact(given: object, plain: np.ndarray, where: str) -> np.ndarray:
    """Return integers exactly if NumPy has made floats or objects of them because int64 is too narrow."""
    if plain.dtype != object and not (np.abs(plain) >= _BEYOND_INT64).any():
        return plain
    integers = np.array(given, object)
    if any(type(each) is not int for each in integers.flat):
        return plain
    lowest, highest = min(integers.flat), max(integers.flat)
    if lowest < 0 or highest > _HIGHEST:
        got, name = highest if highest > _HIGHEST else lowest, argument_of(where)
        allowed = f"integers in {name} must all be in [-2**63, 2**63 - 1] or in [0, 2**64 - 1]"
        refuse(where, got, "no type of 64 bits holds all of them", allowed)
    return integers.astype(np.uint64)


def _is_of_dlpack(array: object) -> bool:
    """Return whether an array in host memory can be read by DLPack alone."""
    return hasattr(array, "__dlpack__") and not hasattr(array, "__array__")


def refuse_object(array: object, where: str) -> NoReturn:
    """Refuse an object that no library takes for an array."""
    got = None if array is None else instance_of(array)
    if hasattr(array, "toarray"):  # of SciPy
        raise TypeError(error_text(where, got, "it is sparse", f"pass {argument_of(where)}.toarray()"))
    raise TypeError(error_text(where, got, "it is not an array", "it must be an array"))


def _check_plain(array: object, where: str, depth: int = 0) -> None:
    """Refuse objects, also in lists, whose mask, nulls or device memory a conversion by NumPy would lose."""
    if type(array) in _NUMBERS:
        return
    if isinstance(array, (list, tuple)):
        if depth < MOST_DIMENSIONS and not _NUMBERS.issuperset(map(type, array)):
            for part in array:
                _check_plain(part, where, depth + 1)
        return
    # Without this module there are no masked arrays.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        name = argument_of(where)
        copied = "" if is_output(where) else f"{name}.filled(value) or "
        reason, remedy = "the mask would be lost", f"pass {copied}{name}.data"
        raise TypeError(error_text(where, "a masked array", reason, remedy))
    if isinstance(array, (np.ndarray, np.generic, int, float)):
        return
    graph = getattr(array, "__dask_graph__", None)
    is_of_dask = callable(graph) and graph() is not None
    if is_of_dask or (_module_of(array) == "polars" and hasattr(array, "collect")):
        name = argument_of(where)
        remedy = f"pass {name}.collect()"
        if is_of_dask:
            remedy = f"use dmlops.integrations.dask, or pass {name}.compute()"
        got, reason = f"a lazy {type(array).__name__}", "it is computed only when asked for"
        raise TypeError(error_text(where, got, reason, remedy))
    device = str(getattr(array, "device", None) or "cpu")
    if not device.lower().startswith(("cpu", "host")) and hasattr(array, "__array__"):
        got, remedy = f"{instance_of(array)} on {device}", "copy it to the CPU first"
        raise TypeError(error_text(where, got, "reading it would copy it silently", remedy))
    n_nulls = _count_nulls(array)
    if n_nulls:
        got = f"{instance_of(array)} with {counted(n_nulls, 'null')}"
        reason = "an array of numbers has no nulls"
        raise TypeError(error_text(where, got, reason, "fill or drop them first"))


def _count_nulls(array: Any) -> int:
    """Count the nulls of an array or a table of polars, Arrow or pandas."""
    module = _module_of(array)
    if module == "pyarrow":
        columns = getattr(array, "columns", [array])
        return sum(int(getattr(column, "null_count", 0)) for column in columns)
    if module == "polars":
        columns = array.get_columns() if hasattr(array, "get_columns") else [array]
        return sum(_count_polars_nulls(column) for column in columns)
    if module == "pandas":
        # NaN in a column of NumPy floats is a number; a missing value of pandas' own types is a null.
        columns = [column for _, column in array.items()] if hasattr(array, "columns") else [array]
        return sum(int(column.isna().sum()) for column in columns if not isinstance(column.dtype, np.dtype))
    return 0


def _count_polars_nulls(column: Any) -> int:
    """Count the nulls of a polars series, including those in its lists and arrays."""
    n_nulls = int(column.null_count())
    while not n_nulls and hasattr(column.dtype, "inner"):
        column = column.explode()
        n_nulls = int(column.null_count())
    return n_nulls


def _module_of(array: object) -> str:
    return type(array).__module__.partition(".")[0]


NUMPY = NumPy()
