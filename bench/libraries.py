"""The array libraries of the contenders: whether they are installed, their threads and their arrays."""

import functools
import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np

import dmlops
from bench.workloads import CPU, CUDA

_PACKAGES = {"dmlops": (), "onnxruntime": ("onnxruntime", "onnx"), "cub": ("cuda.cccl",)}
_ONNX_OPSET, _ONNX_IR = 17, 8


class NotServedError(Exception):
    """A contender does not support a workload; the text gives the reason in a few words."""


def not_served(reason: str) -> NoReturn:
    raise NotServedError(reason)


def module(name: str) -> Any:
    """Import a library that may not be installed; raise NotServedError if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # libraries for one kind of GPU raise all kinds of errors
        not_served(f"{name} cannot be imported: {first_line(error)}")


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:150]}".removesuffix(": ")


def missing(library: str, device: str) -> str | None:
    """Return why a library cannot run on a device of this machine, or None."""
    for package in _PACKAGES.get(library, (library,)):
        try:
            is_installed = find_spec(package) is not None
        except ModuleNotFoundError:  # the package that it is in
            is_installed = False
        if not is_installed:
            return f"{package} is not installed"
    if device == CUDA and library == "torch" and not module("torch").cuda.is_available():
        return "this torch has no CUDA"
    if device == CUDA and library == "jax" and module("jax").default_backend() != "gpu":
        return "this jax has no CUDA"
    return None


def set_threads(count: int, device: str) -> None:
    """Give every library the same number of threads; JAX heeds it only if it is not imported yet."""
    dmlops.set_num_threads(count)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25")  # the others need memory too
    if device == CPU:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ["NPROC"] = str(count)  # the size of XLA's thread pool
    if find_spec("torch"):
        module("torch").set_num_threads(count)


def is_torch(array: Any) -> bool:
    return type(array).__module__ == "torch"


def to_numpy(array: Any) -> "np.ndarray[Any, Any]":
    if not is_torch(array):
        return np.asarray(array)
    if str(array.dtype) == "torch.bfloat16":
        raw = array.cpu().view(module("torch").int16).numpy()
        return np.asarray(raw).view(module("ml_dtypes").bfloat16)
    return np.asarray(array.cpu().numpy())


def to_torch(array: Any) -> Any:
    """Return the array as a torch tensor in the same memory."""
    torch = module("torch")
    if is_torch(array):
        return array
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_jax(array: Any) -> Any:
    """Return the array as a JAX array; raise NotServedError if JAX would narrow its type."""
    jax = module("jax")
    if "int64" in str(array.dtype):
        not_served("64-bit types are off by default")
    return jax.dlpack.from_dlpack(array) if is_torch(array) else jax.numpy.asarray(array)


def to_long(indices: Any) -> Any:
    """Return indices as 64-bit integers, which most peers require."""
    return indices.long() if is_torch(indices) else indices.astype(np.int64)


def to_int(indices: Any) -> Any:
    return indices.int() if is_torch(indices) else indices.astype(np.int32)


def empty(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """Return a new array of the library of `like`, and by default of its type."""
    if not is_torch(like):
        return np.empty(shape, dtype or like.dtype)
    torch = module("torch")
    # torch barely supports uint32; int32 has the same bytes.
    kind = like.dtype if dtype is None else getattr(torch, dtype.replace("uint32", "int32"))
    return torch.empty(shape, dtype=kind, device=like.device)


def arange(like: Any, stop: int) -> Any:
    """Return 0, 1, ... as 64-bit integers, made by the library of `like`."""
    return module("torch").arange(stop, device=like.device) if is_torch(like) else np.arange(stop)


@functools.cache
def jit(function: Callable[..., Any], **known: Any) -> Callable[..., Any]:
    """Compile a function with JAX, for some values of its keyword arguments.

    On the CPU, a call returns when it is done; on a GPU, the clock waits for it.
    """
    jax = module("jax")
    compiled: Callable[..., Any] = jax.jit(functools.partial(function, **known))
    if jax.default_backend() != "cpu":
        return compiled
    return lambda *arguments: jax.block_until_ready(compiled(*arguments))


def onnx_call(
    operator: str, inputs: dict[str, Any], outputs: dict[str, Any], **attributes: Any
) -> Callable[[], Any]:
    """Return a call of one ONNX operator on bound memory.

    `inputs` are NumPy arrays, in the operator's order, and `outputs` arrays to write to; where a type stands
    instead, every call makes a new array. Types without a kernel of ONNX Runtime raise NotServedError.
    """
    onnx, runtime = module("onnx"), module("onnxruntime")
    element, describe = onnx.helper.np_dtype_to_tensor_dtype, onnx.helper.make_tensor_value_info
    types = {name: np.dtype(each if isinstance(each, type) else each.dtype) for name, each in outputs.items()}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, list(inputs), list(outputs), **attributes)],
        operator,
        [describe(name, element(array.dtype), array.shape) for name, array in inputs.items()],
        [describe(name, element(dtype), None) for name, dtype in types.items()],
    )
    opsets = [onnx.helper.make_opsetid("", _ONNX_OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_ONNX_IR).SerializeToString()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = dmlops.get_num_threads(), 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exception types have no public names
        if "NOT_IMPLEMENTED" in str(error) or "invalid" in str(error).lower():
            not_served("no kernel for this type")
        raise
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for name, output in outputs.items():
        if isinstance(output, np.ndarray):
            binding.bind_output(name, "cpu", 0, output.dtype, output.shape, output.ctypes.data)
        else:
            binding.bind_output(name, "cpu")

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding

    call.keep_alive = (inputs, outputs)  # type: ignore[attr-defined]  # the binding has their addresses only
    return call
