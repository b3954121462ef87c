"""JAX arrays. They are immutable, and JAX shows no stream to order work by: calls on a GPU wait for them."""

import math
import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from dmlops.array_libraries.base import ArrayLibrary, Operand, are_nonzero, described, refuse_type
from dmlops.array_libraries.numpy import NUMPY
from dmlops.devices import cuda_driver
from dmlops.devices.memory import ALIGNMENT, CPU, Device, aligned
from dmlops.types.data_types import named_data_type, numpy_dtype
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import error_text, refuse
from dmlops.types.opaque_types import ElementType, OpaqueType
from dmlops.types.tensor import TensorDesc, packed_strides

if TYPE_CHECKING:
    from jax import Array

# To copy an array of up to this size takes less time than JAX needs to take its memory over.
_COPIED_BYTES = 1 << 16


class Jax(ArrayLibrary):
    """JAX, for arrays that lie on one device.

    On the CPU the arrays that are worked on are NumPy's: JAX gives its memory out as such, and takes results
    in.
    """

    name = "jax"
    needs_ordering = True
    is_lent = True

    def __init__(self) -> None:
        self._jax = sys.modules["jax"]

    def owns(self, kind: type) -> bool:
        return not issubclass(kind, self._jax.core.Tracer)

    @property
    def index_type(self) -> TensorDataType:  # type: ignore[override]
        """JAX's default integer, which depends on jax_enable_x64."""
        return TensorDataType[self._jax.dtypes.canonicalize_dtype(np.int64).name.upper()]

    def as_input(self, array: "Array", where: str, stream: int | None) -> Operand:
        if isinstance(array, self._jax.core.Tracer):
            reason = "jit, vmap and grad run on stand-ins without elements"
            remedy = "call the function of this name in dmlops.integrations.jax"
            raise TypeError(error_text(where, "a traced array", reason, remedy))
        if array.is_deleted():
            reason = "it was deleted, or donated to a computation"
            refuse(where, "an array without memory", reason, "pass an array that still exists")
        if not isinstance(array.dtype, np.dtype):  # such as keys of random numbers
            named_data_type(array.dtype.name, where)
        devices = array.devices()
        if len(devices) != 1:
            reason, remedy = f"it is spread over {len(devices)} devices", "move it to one: jax.device_put"
            raise TypeError(error_text(where, "a sharded array", reason, remedy))
        (device,) = devices
        if device.platform not in ("cpu", "gpu", "cuda"):
            got, allowed = f"an array on {device.platform}", "it must be on the CPU or on a CUDA device"
            raise TypeError(error_text(where, got, "no back-end serves that device", allowed))
        array.block_until_ready()
        return self._operand(array)

    def _operand(self, array: "Array | np.ndarray") -> Operand:
        signature = self, array.dtype, array.shape, self.device(array), self.index_type
        return Operand(self, array, signature, self.address(array))

    def beside(self, operands: Sequence[Operand], place: int, where: str, stream: int | None) -> Operand:
        array, index_type = operands[place].array, self.index_type
        if self.device(operands[0].array) != CPU or array.dtype.kind not in "biuf":
            return super().beside(operands, place, where, stream)
        if array.dtype == np.int64 and index_type is TensorDataType.INT32 and array.size:
            lowest, highest = index_type.integer_range
            if lowest <= array.min() and array.max() <= highest:
                array = array.astype(np.int32)
        return self._operand(array)

    def as_output(self, array: "Array", where: str) -> NoReturn:
        reason, allowed = "JAX arrays are immutable", "leave it out, and take the result"
        refuse(where, type(array).__name__, reason, allowed)

    def kind_signature(self, array: "Array") -> Hashable:
        return super().kind_signature(array), self.index_type

    def device(self, array: "Array | np.ndarray") -> Device:
        if isinstance(array, np.ndarray):
            return CPU
        device = next(iter(array.devices()))
        return CPU if device.platform == "cpu" else Device("cuda", device.local_hardware_id)

    def describe(self, array: "Array", where: str) -> TensorDesc:
        return described(named_data_type(array.dtype.name, where), array.shape, packed_strides(array.shape))

    def address(self, array: "Array") -> int:
        if isinstance(array, np.ndarray):
            return NUMPY.address(array)
        return array.unsafe_buffer_pointer()  # type: ignore[no-any-return]

    def as_bools(self, operand: Operand, stream: int | None) -> Operand:
        return self.as_input(are_nonzero(operand.array, np.int64), "", stream)

    def check_representable(self, data_type: ElementType, where: str) -> None:
        if isinstance(data_type, OpaqueType) and data_type.dtype is not None:
            refuse_type(data_type, "JAX", where)
        dtype = numpy_dtype(data_type)
        if self._jax.dtypes.canonicalize_dtype(dtype) != dtype:
            reason, allowed = "jax_enable_x64 is off", "turn it on, or use 32-bit types"
            raise TypeError(error_text(where, dtype.name, reason, allowed))

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> "Array | np.ndarray":
        dtype = numpy_dtype(data_type)
        if device == CPU:
            # JAX makes an array of memory that is aligned to 64 bytes, and copies any other.
            memory = np.empty(math.prod(sizes) * dtype.itemsize + ALIGNMENT, np.uint8)
            begin = aligned(NUMPY.address(memory)) - NUMPY.address(memory)
            return memory[begin : begin + memory.size - ALIGNMENT].view(dtype).reshape(sizes)
        at = next(gpu for gpu in self._jax.devices("gpu") if gpu.local_hardware_id == device.number)
        return self._jax.block_until_ready(self._jax.numpy.empty(sizes, dtype, device=at))

    def finalize(self, array: "Array", stream: int) -> "Array":
        if isinstance(array, np.ndarray):
            # `jax.numpy.asarray` compiles a program for each new shape, in a tenth of a second.
            device = self._jax.devices("cpu")[0] if self._jax.default_backend() != "cpu" else None
            may_alias = None if array.nbytes > _COPIED_BYTES else False
            return self._jax.device_put(array, device, may_alias=may_alias)
        cuda_driver.synchronize(stream)
        return array
