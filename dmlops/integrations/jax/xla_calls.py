"""The operators as calls in XLA's computations.

A call is written as a text. When XLA runs the computation, it passes this text to the handler, together with
the addresses of operands, results and, on a GPU, scratch memory.
"""

import functools
import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.array_libraries.jax import Jax
from dmlops.calls.binding import Spec, default_index_type
from dmlops.calls.call import BoundCall
from dmlops.calls.dispatch import feature_level
from dmlops.devices import cuda_driver
from dmlops.devices.cpu import HOST
from dmlops.devices.cuda import Stream
from dmlops.devices.memory import CPU, Device, ask_for_huge_pages
from dmlops.integrations.jax import xla_ffi
from dmlops.types.data_types import index_data_type, named_data_type, numpy_dtype
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import error_text, refuse
from kernels_cpu.threads import get_num_threads

_TARGET = "dmlops"
_CUDA = "cuda"
# Number of calls that are kept ready; others are planned again.
_MAX_CALLS = 4096


class _Described(Jax):
    """JAX arrays of which only the types, the sizes and the device are known."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def device(self, array: object) -> Device:
        return self._device


class _Buffers(_Described):
    """JAX arrays while a computation runs: addresses; types were checked when it was traced."""

    check_representable = ArrayLibrary.check_representable


class _Request(NamedTuple):
    """A computation in terms that can be written as text.

    XLA keeps the text, and may bring it back in another process.
    """

    function: str
    """The function's name."""
    inputs: Sequence[tuple[str, Sequence[int]]]
    """The data type and the sizes of each."""
    parameters: Sequence[object]
    """The other arguments, as JSON can hold them."""

    @classmethod
    def of(cls, spec: Spec, inputs: Sequence[Array], parameters: Sequence[object]) -> "_Request":
        """Return a request for arrays of these types and shapes."""
        for where, x in zip(spec.inputs, inputs, strict=True):
            check_input(x, where)
        return cls(spec.operator, [(x.dtype.name, x.shape) for x in inputs], parameters)

    def bind(self, library: _Described) -> BoundCall:
        """Plan the kernels, or refuse the request."""
        arrays = [jax.ShapeDtypeStruct(sizes, jnp.dtype(name)) for name, sizes in self.inputs]
        operands = [Operand(library, array, None, 0) for array in arrays]
        return _BINDERS[self.function](library, operands, self.parameters)


_Binder = Callable[[_Described, Sequence[Operand], Sequence[Any]], BoundCall]
_BINDERS: dict[str, _Binder] = {}


def bound_by(spec: Spec) -> Callable[[_Binder], _Binder]:
    """Register what binds requests of an operator: of the library, the arrays and the parameters."""
    return partial(_BINDERS.setdefault, spec.operator)


def check_input(x: Array, where: str) -> None:
    """Refuse types that JAX alone has, and sizes that are symbols."""
    named_data_type(x.dtype.name, where)
    if not all(isinstance(size, int) for size in x.shape):
        reason, allowed = "a size is not known", "kernels are planned for sizes that are numbers"
        raise TypeError(error_text(where, f"shape {x.shape}", reason, allowed))


def index_type_name(dtype: object, function: str) -> str:
    """Return the name of an ``index_dtype``; the default is JAX's default integer."""
    index_type = None if dtype is None else index_data_type(dtype, f"{function}.index_dtype")
    return (index_type or default_index_type(Jax())).name.lower()


def number_text(number: complex) -> int | str:
    """Return a number in a form that JSON can hold, with the payload of a NaN."""
    if isinstance(number, complex):
        return struct.pack("<2d", number.real, number.imag).hex()
    return struct.pack("<d", number).hex() if isinstance(number, float) else int(number)


def number_of(text: int | str) -> complex:
    """Return the number that `number_text` wrote."""
    if isinstance(text, int):
        return text
    parts = [part for (part,) in struct.iter_unpack("<d", bytes.fromhex(text))]
    return complex(*parts) if len(parts) == 2 else float(parts[0])


def call(spec: Spec, inputs: Sequence[Array], parameters: Sequence[object]) -> Sequence[Array]:
    """Add a call to the computation that is being traced, and return its results."""
    request, gpus = _Request.of(spec, inputs, parameters), _gpus()
    bound = request.bind(_Described(gpus[0] if gpus else CPU))
    shaped = jax.ShapeDtypeStruct
    results = tuple(shaped(desc.sizes, numpy_dtype(desc.data_type)) for desc in bound.results)
    if bound.plan is None:
        return tuple(jnp.zeros(result.shape, result.dtype) for result in results)
    text = json.dumps(request)

    def on_host(*inputs: Array) -> Sequence[Array]:
        found: Sequence[Array] = jax.ffi.ffi_call(_TARGET, results)(*inputs, call=text)
        return found

    def on_gpu(*inputs: Array) -> Sequence[Array]:
        # All kernels are loaded now, because none can be loaded while XLA records a CUDA graph.
        sizes = [_bound(text.encode(), gpu, 0).workspace_size for gpu in gpus]
        workspace = shaped((max(sizes),), np.uint8)
        found: Sequence[Array] = jax.ffi.ffi_call(_TARGET, (*results, workspace))(*inputs, call=text)
        return found[:-1]

    if not gpus:
        return _as_varying(on_host(*inputs), inputs)
    return _as_varying(jax.lax.platform_dependent(*inputs, cuda=on_gpu, default=on_host), inputs)


def _as_varying(results: Sequence[Array], inputs: Sequence[Array]) -> Sequence[Array]:
    """Tell `jax.shard_map` that results vary along the same mesh axes as the inputs."""
    kinds = [jax.typeof(x) for x in inputs]
    axes = frozenset().union(
        *(kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma for kind in kinds)
    )
    return jax.lax.pcast(results, tuple(axes), to="varying") if axes else results


@functools.cache
def _gpus() -> Sequence[Device]:
    """Return the CUDA devices that JAX uses in this process."""
    try:
        return [Device(_CUDA, device.local_hardware_id) for device in jax.local_devices(backend=_CUDA)]
    except RuntimeError:
        return []


@functools.lru_cache(_MAX_CALLS)
def _bound(text: bytes, device: Device, n_threads: int) -> BoundCall:
    # The level that was set while the function was traced has been applied.
    with feature_level(FeatureLevel.EXTENDED):
        return _Request(*json.loads(text)).bind(_Buffers(device))


def _run_on_host(call: xla_ffi.Call, stream: Callable[[], int]) -> None:
    bound = _bound(call.text, CPU, get_num_threads())
    _check_count(call, bound, len(bound.results))
    for address, result in zip(call.results, bound.results, strict=True):
        ask_for_huge_pages(address, result.total_tensor_size_in_bytes)
    bound.launch(HOST, (*call.operands, *call.results))


def _run_on_gpu(call: xla_ffi.Call, stream: Callable[[], int]) -> None:
    handle, gpus = stream(), _gpus()
    device = gpus[0] if len(gpus) == 1 else Device(_CUDA, cuda_driver.stream_device(handle))
    bound = _bound(call.text, device, 0)
    _check_count(call, bound, len(bound.results) + 1)
    *results, workspace = call.results
    if call.last_size < bound.workspace_size:
        reason = f"{device} needs {bound.workspace_size}"
        allowed = "trace the function on a machine with such a GPU"
        refuse(f"{bound.name}.workspace", f"{call.last_size} bytes", reason, allowed)
    addresses = (*call.operands, *results)
    current = cuda_driver.device_made_current(device.number)
    with current, Stream(handle, bound.library, device) as executor:
        bound.launch(executor, addresses, workspace)


def _check_count(call: xla_ffi.Call, bound: BoundCall, count: int) -> None:
    """Refuse a call that was traced for another platform."""
    if len(call.results) != count or len(call.operands) != len(bound.inputs):
        got = f"{len(call.operands)} operands and {len(call.results)} results"
        reason = f"there are {len(bound.inputs)} and {count}, scratch memory on a GPU included"
        refuse(f"{bound.name}.call", got, reason, "trace the function where there is such a device")


xla_ffi.register(_TARGET, "cpu", _run_on_host)
xla_ffi.register(_TARGET, "CUDA", _run_on_gpu)
