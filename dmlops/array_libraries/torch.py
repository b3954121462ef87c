"""torch tensors, on the CPU and on CUDA devices."""

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from dmlops.array_libraries import frameworks
from dmlops.array_libraries.base import (
    ArrayLibrary,
    Operand,
    are_nonzero,
    described,
    refuse_type,
    refuse_unaligned,
)
from dmlops.devices.memory import CPU, LARGE, Device, ask_for_huge_pages
from dmlops.store import once
from dmlops.types.arguments import check_dimensions
from dmlops.types.data_types import SUPPORTED, named_data_type
from dmlops.types.errors import argument_of, error_text, instance_of, is_output, refuse
from dmlops.types.opaque_types import OPAQUE, ElementType
from dmlops.types.tensor import TensorDesc
from kernels_cpu.native_call import ArrayKind, dlpack_describe

if TYPE_CHECKING:
    from torch import Tensor


class Torch(ArrayLibrary):
    """torch, for its own dense strided tensors."""

    name = "torch"
    allocates_on_streams = True
    knows_capture = True

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self._plain_types = (torch.Tensor, torch.nn.Parameter)
        self._strided = torch.strided
        self._unpack_dual = torch.autograd.forward_ad.unpack_dual
        self.was_written = torch.autograd.graph.increment_version
        self._is_tracing = torch.jit.is_tracing
        # Two operators say whether a mode, or a transformation of torch.func, would see an operator.
        self._has_mode = self._observer("has_mode", "Python")
        self._has_transform = self._observer("has_transform", "FuncTorchDynamicLayerFrontMode")
        # The operators cost as much as a small kernel. This flag is raised while any thread is in a mode.
        modes = sys.modules.get("torch.utils._python_dispatch")
        self._may_have_mode = getattr(modes, "is_in_torch_dispatch_mode", lambda: True)
        self.native_type = torch.Tensor if dlpack_describe(torch.Tensor) else None
        self.other_native_type = torch.nn.Parameter
        self.limits = self._limits
        self._is_grad_enabled = torch.is_grad_enabled
        self._is_inference_mode = torch.is_inference_mode_enabled
        self._current_device, self._current_stream = torch.cuda.current_device, torch.cuda.current_stream
        # The public getter makes a Stream object, which costs as much as a launch.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._dtypes = {
            data_type: getattr(torch, name)
            for name, data_type in {**SUPPORTED, **OPAQUE}.items()
            if hasattr(torch, name)
        }

    def _observer(self, name: str, key: str) -> Callable[[], bool]:
        """Return an operator that tells whether torch dispatches to a key, unseen by handlers of that key."""
        torch = self._torch

        def register() -> object:
            operators = torch.library.Library("dmlops", "FRAGMENT")
            operators.define(f"{name}() -> bool")
            operators.impl(name, lambda: False, "CompositeExplicitAutograd")
            operators.impl(name, lambda: True, key)
            return operators  # which has to live as long as what it registers

        once.registered("torch", name, register)
        return getattr(torch.ops.dmlops, name).default  # type: ignore[no-any-return]

    def owns(self, kind: type) -> bool:
        return kind in self._plain_types

    def as_input(self, array: "Tensor", where: str, stream: int | None) -> Operand:
        self._check_type(array, where)
        if array.is_neg():
            if array.data_ptr() % array.element_size():
                got, reason = "an unaligned tensor with the negative bit", "torch cannot read it either"
                refuse(where, got, reason, "its first element must be at a multiple of the element size")
            with self._on(stream, array):
                array = array.resolve_neg()
        if array.is_conj():
            with self._on(stream, array):
                array = array.resolve_conj()
        operand = self._operand(array, where)
        if operand[3] % array.element_size():
            with self._on(stream, array):
                operand = self._operand(self._aligned_copy(array), where)
        return operand

    def beside(self, operands: Sequence[Operand], place: int, where: str, stream: int | None) -> Operand:
        if operands[0].array.is_cpu:
            with suppress(TypeError):  # an older torch lacks unsigned types, and no torch has strings
                return self._operand(self._torch.from_numpy(operands[place].array), where)
        return super().beside(operands, place, where, stream)

    def as_pattern(self, array: "Tensor", where: str) -> "Tensor":
        self._check_type(array, where)
        return self._operand(array, where).array

    def as_output(self, array: "Tensor", where: str) -> Operand:
        operand = self.writable(array, where)
        if self._is_traced():
            got, reason = "a tensor", "torch traces this call, and would not see that it is written to"
            refuse(where, got, reason, "call a function of dmlops, with tensors as inputs")
        return operand

    def writable(self, array: "Tensor", where: str) -> Operand:
        """Return a tensor that torch's own operators may write, or kernels if nothing traces the call."""
        self._check_type(array, where)
        if array.is_neg():
            got, reason = "a tensor with the negative bit", "what is written to it would be read negated"
            refuse(where, got, reason, "an output must be a tensor without it")
        if array.is_conj():
            got, reason = "a tensor with the conjugate bit", "what is written to it would be read conjugated"
            refuse(where, got, reason, "an output must be a tensor without it")
        if array.requires_grad and self._torch.is_grad_enabled():
            got, reason = "a tensor that requires a gradient", "it is written to in place"
            refuse(where, got, reason, f"pass {argument_of(where)}.detach(), or use torch.no_grad()")
        if self._has_tangent(array):
            got, reason = "a tensor with a tangent", "it is written to in place, and the tangent would stay"
            refuse(where, got, reason, f"pass {argument_of(where)}.detach()")
        check_inference(array, where)
        operand = self._operand(array, where)
        if operand[3] % array.element_size():
            refuse_unaligned("tensor", where)
        return operand

    def _aligned_copy(self, array: "Tensor") -> "Tensor":
        # As bytes, because torch's own kernels also read elements only at multiples of their size.
        contents = array.detach().unsqueeze(-1).view(self._torch.uint8)
        copy = contents.clone(memory_format=self._torch.contiguous_format)
        return copy.view(array.dtype).squeeze(-1)

    def _check_type(self, array: "Tensor", where: str) -> None:
        """Refuse everything that is not known to be a dense strided tensor."""
        check_kind(array, where)
        if type(array) not in self._plain_types:
            reason = "only plain tensors are known to have elements in memory of their own"
            remedy = f"pass {argument_of(where)}.as_subclass(torch.Tensor), if it is one underneath"
            raise TypeError(error_text(where, instance_of(array), reason, remedy))

    def takes_over(self, array: "Tensor", differentiable: bool, *, alone: bool = False) -> ModuleType | None:
        is_seen = self._is_traced() or (not alone and self._has_transform())
        if is_seen or self._is_dispatched(array, differentiable):
            return frameworks.torch
        return None

    def check_scalar(self, array: "Tensor", where: str) -> None:
        if self._is_dispatched(array, True):
            refuse_as_scalar(where)

    def _is_dispatched(self, array: "Tensor", differentiable: bool) -> bool:
        """Return whether a tensor has a derivative, or stands for others."""
        if type(array) not in self._plain_types:
            return True
        if differentiable and (
            (array.requires_grad and self._torch.is_grad_enabled()) or self._has_tangent(array)
        ):
            return True
        if array.is_nested or array.layout is not self._strided:
            return False
        try:
            if array.data_ptr() or not array.numel():
                return array.is_meta  # type: ignore[no-any-return]
            # Stand-ins have no address, but still report the size of their memory; freed tensors report none.
            return array.untyped_storage().nbytes() > 0  # type: ignore[no-any-return]
        except RuntimeError:
            return True

    def _is_traced(self) -> bool:
        """Return whether torch records operators, or lets a mode see them."""
        if self._is_tracing():
            return True
        if not self._may_have_mode():
            return False
        # make_fx(pre_dispatch=True) uses another kind of mode, which would record our query operator.
        proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
        return (proxies is not None and proxies.get_proxy_mode() is not None) or self._has_mode()

    def _has_tangent(self, array: "Tensor") -> bool:
        try:
            return self._unpack_dual(array).tangent is not None
        except RuntimeError:  # within torch's own operators, where derivatives have been seen to
            return False

    def _have_tangents(self, arrays: Sequence["Tensor"]) -> bool:
        try:
            first = self._unpack_dual(arrays[0])
        except RuntimeError:  # as in `_has_tangent`
            return False
        # torch returns the tensor itself, unless a derivative in forward mode is under way.
        if first.primal is arrays[0]:
            return False
        return first.tangent is not None or any(map(self._has_tangent, arrays[1:]))

    def _operand(self, array: "Tensor", where: str) -> Operand:
        """Return a tensor whose storage covers its elements, at an address that is aligned to them."""
        try:
            address = array.data_ptr()
        except RuntimeError:
            got, reason = "a tensor without storage", "it is a stand-in of a torch transformation"
            remedy = f"pass tensors only, and {argument_of(where)} itself as one"
            raise TypeError(error_text(where, got, reason, remedy)) from None
        if array.numel():
            n_bytes = array.untyped_storage().nbytes()
            if not address or (array.storage_offset() + _span(array)) * array.element_size() > n_bytes:
                got = f"{instance_of(array)} with memory for {n_bytes} bytes at address {address:#x}"
                reason, remedy = "its elements are not in memory", "pass an array that holds its data"
                raise TypeError(error_text(where, got, reason, remedy))
        return Operand(self, array, self.signature(array), address)

    def signature(self, array: "Tensor") -> Hashable:
        return array.dtype, array.shape, array.stride(), array.device

    def kind_signature(self, array: "Tensor") -> Hashable:
        return array.dtype, array.ndim, array.device

    def device(self, array: "Tensor") -> Device:
        kind, index = array.device.type, array.device.index
        return CPU if kind == "cpu" else Device(kind, index or 0)

    def describe(self, array: "Tensor", where: str) -> TensorDesc:
        if not (array.is_cpu or array.is_cuda):
            got, allowed = f"a tensor on {array.device}", "it must be on the CPU or on a CUDA device"
            raise TypeError(error_text(where, got, "no back-end serves that device", allowed))
        data_type = named_data_type(str(array.dtype).removeprefix("torch."), where)
        check_dimensions(where, array.dim())
        return described(data_type, tuple(array.shape), tuple(array.stride()))

    def address(self, array: "Tensor") -> int:
        return array.data_ptr()  # type: ignore[no-any-return]

    def native_operand(self, array: "Tensor", *, is_written: bool) -> ArrayKind | None:
        code = _DLPACK_CODES.get(str(array.dtype).removeprefix("torch.").rstrip("0123456789"))
        if code is None:
            return None
        device = (_DLPACK_CPU, 0) if array.is_cpu else (_DLPACK_CUDA, array.device.index)
        return ArrayKind.of_dlpack(code, 8 * array.element_size(), array.ndim, device)

    def _limits(self, arrays: Sequence["Tensor"], written: Sequence["Tensor"]) -> tuple[int, ...] | None:
        limits = []
        try:
            for array in arrays:
                if array.requires_grad and self._is_grad_enabled():
                    return None
                if array.__class__ not in self._plain_types or array.is_neg():
                    return None
                offset = array.storage_offset()
                if offset:
                    offset *= array.element_size()
                limits.append(array.untyped_storage().nbytes() - offset)
            for array in written:
                if array.is_inference() and not self._is_inference_mode():
                    return None
        except RuntimeError:  # for kinds of tensors that have no storage
            return None
        if self._is_tracing() or self._may_have_mode() or (arrays and self._have_tangents(arrays)):
            return None
        return tuple(limits)

    def trimmed(self, array: "Tensor", rows: int) -> "Tensor":
        return array.narrow_copy(0, 0, rows)

    def as_bools(self, operand: Operand, stream: int | None) -> Operand:
        with self._on(stream, operand.array):
            return self._operand(are_nonzero(operand.array, self._torch.int64), "")

    def check_representable(self, data_type: ElementType, where: str) -> None:
        if data_type not in self._dtypes:
            refuse_type(data_type, "torch", where)

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> "Tensor":
        array = self._torch.empty(sizes, dtype=self._dtypes[data_type], device=str(device))
        if device == CPU:
            ask_for_huge_pages(array.data_ptr(), array.nbytes)
        return array

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], "Tensor"]:
        if device == CPU and desc.total_tensor_size_in_bytes >= LARGE:
            return super().allocator(desc, device)
        # `new_empty` takes four fifths of the time of `torch.empty` with a type and a device. Separate sizes
        # take two thirds of the time of a tuple, which only a 0-d tensor needs.
        like = self.empty((0,), desc.data_type, device)  # this holds no memory
        return partial(like.new_empty, *(desc.sizes or ((),)))

    def maker(self, data_type: ElementType, device: Device) -> Callable[[tuple[int, ...]], "Tensor"]:
        # `new_empty` takes four fifths of the time of `torch.empty` with a type and a device.
        new_empty = self.empty((0,), data_type, device).new_empty  # this tensor holds no memory
        if device != CPU:
            return new_empty  # type: ignore[no-any-return]

        def make(shape: tuple[int, ...]) -> "Tensor":
            array = new_empty(shape)
            if array.nbytes >= LARGE:
                ask_for_huge_pages(array.data_ptr(), array.nbytes)
            return array

        return make

    def current_stream(self, device: Device) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(device.number)  # type: ignore[no-any-return]
        return self._current_stream(device.number).cuda_stream  # type: ignore[no-any-return]

    def is_current(self, device: Device) -> bool:
        return self._current_device() == device.number  # type: ignore[no-any-return]

    def on_stream(self, stream: int, device: Device, given: object = None) -> AbstractContextManager[object]:
        # torch knows the legacy default stream only as 0.
        external = self._torch.cuda.ExternalStream(stream if stream != 1 else 0, device=device.number)
        return self._torch.cuda.stream(external)  # type: ignore[no-any-return]

    def _on(self, stream: int | None, array: "Tensor") -> AbstractContextManager[object]:
        is_needed = stream is not None and array.is_cuda
        return self.on_stream(stream or 0, self.device(array)) if is_needed else nullcontext()


# DLDeviceType and DLDataTypeCode, of dlpack.h.
_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


def _span(array: "Tensor") -> int:
    """Return the number of elements from the first to the last one in memory, both included."""
    if array.is_contiguous():
        return array.numel()  # type: ignore[no-any-return]
    steps = zip(array.shape, array.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)  # type: ignore[no-any-return]


def check_kind(array: "Tensor", where: str) -> None:
    """Refuse tensors that are not dense, or that hold more than their elements."""
    name = argument_of(where)
    if array.is_nested:
        got, reason = "a nested tensor", "its rows differ in length"
        remedy = f"pass {name}.to_padded_tensor(padding), or one row at a time"
    elif type(array).__name__ == "MaskedTensor":
        got, reason = "a MaskedTensor", "its mask would be lost"
        remedy = f"pass {name}.get_data() or {name}.to_tensor(value)"
    elif array.layout is not sys.modules["torch"].strided:
        got, reason = f"a {array.layout} tensor", "its elements are not strided"
        remedy = f"make it dense first: {name}.to_dense()"
    else:
        return
    if is_output(where):
        remedy = "an output must be a dense tensor"
    raise TypeError(error_text(where, got, reason, remedy))


def refuse_as_scalar(where: str) -> NoReturn:
    """Refuse a tensor that may have a derivative as a number."""
    reason, allowed = "there is no derivative with respect to it", "it must be a number: pass value.item()"
    raise TypeError(error_text(where, "a tensor", reason, allowed))


def check_inference(array: "Tensor", where: str) -> None:
    """Refuse to write to an inference tensor outside of inference mode: torch could not notice it."""
    if array.is_inference() and not sys.modules["torch"].is_inference_mode_enabled():
        got, reason = "an inference tensor", "torch does not count how often it is written to"
        refuse(where, got, reason, "pass a clone of it, or use torch.inference_mode()")
