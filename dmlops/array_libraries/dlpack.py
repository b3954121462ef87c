"""Other arrays with ``__dlpack__`` on a GPU: results are instances of `DeviceArray`."""

from dmlops.array_libraries.base import Operand, dlpack_device, refuse_exchange
from dmlops.array_libraries.cuda_array_interface import CudaArray, CudaArrayInterface
from dmlops.devices import cuda_driver
from dmlops.store import once


class DLPack(CudaArrayInterface):
    """Arrays on a CUDA device of any other library that supports DLPack."""

    name = "dlpack"
    is_lent = True

    def as_input(self, array: object, where: str, stream: int | None) -> Operand:
        _, number = dlpack_device(array, where)
        cuda_driver.check_device(number, where)  # if that device is not available, the error says so
        views = once.imported("cuda.core.utils").StridedMemoryView
        with cuda_driver.device_made_current(number):
            try:
                # The producer makes this stream wait for its own work; 1 is the default stream.
                view = views.from_dlpack(array, stream_ptr=stream or 1)
            except Exception as error:  # as in `dlpack_device`
                refuse_exchange(array, where, error)
        item = view.dtype.itemsize
        strides = None if view.strides is None else tuple(stride * item for stride in view.strides)
        interface = {
            "data": (view.ptr, view.readonly),
            "shape": view.shape,
            "typestr": view.dtype.str,
            "strides": strides,
        }
        return self._operand(CudaArray(interface, (array, view), number), where)

    def as_output(self, array: object, where: str) -> Operand:
        operand = super().as_output(array, where)
        # The producer has ordered its work with the default stream, and the call may be on another one.
        operand.array.stream = 1
        return operand
