"""From (descriptor, device, feature level) to a compiled operator: the one place that knows both sides.

Validation and planning happen once per descriptor; what is left for a call is to view the arrays
as plain memory and to launch.
"""

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dmlops import arrays, cuda, problems
from dmlops.arrays import CPU, Device, Library, Slot
from dmlops.enums import Feature, FeatureLevel, TensorDataType
from dmlops.errors import (
    DeviceMismatchError,
    InvalidDescriptorError,
    UnsupportedFeatureError,
    wording,
)
from dmlops.operators import (
    Descriptor,
    DiagonalMatrix,
    DiagonalMatrix1,
    GatherND,
    GatherND1,
    NonzeroCoordinates,
    TopK,
    TopK1,
)
from dmlops.problems import Options
from dmlops.tensor import TensorDesc
from kernels_cpu import threads

_log = logging.getLogger("dmlops")

BACKEND_LEVELS: Mapping[str, FeatureLevel] = MappingProxyType(
    {"cpu": FeatureLevel.EXTENDED, "cuda": FeatureLevel.EXTENDED}
)


class Operator(NamedTuple):
    """How a descriptor reaches its kernels.

    Attributes
    ----------
    kernels : str
        Module name in ``kernels_cpu`` and ``kernels_cuda``.
    problem : callable
        Makes the keywords of the kernels' ``plan``.
    operands : tuple of str
        Fields in the order in which the kernels take them.
    """

    kernels: str
    problem: Callable[[Any, Options], problems.Problem]
    operands: tuple[str, ...]


OPERATORS: Mapping[type[Descriptor], Operator] = MappingProxyType(
    {
        TopK1: Operator(
            "top_k",
            problems.top_k_problem,
            ("input_tensor", "output_value_tensor", "output_index_tensor"),
        ),
        NonzeroCoordinates: Operator(
            "nonzero_coordinates",
            problems.nonzero_coordinates_problem,
            ("input_tensor", "output_coordinates_tensor", "output_count_tensor"),
        ),
        GatherND1: Operator(
            "gather_nd",
            problems.gather_nd_problem,
            ("input_tensor", "indices_tensor", "output_tensor"),
        ),
        DiagonalMatrix1: Operator(
            "diagonal_matrix", problems.diagonal_matrix_problem, ("input_tensor", "output_tensor")
        ),
    }
)

DESCRIPTORS: tuple[type[Descriptor], ...] = (
    NonzeroCoordinates,
    GatherND,
    GatherND1,
    DiagonalMatrix,
    DiagonalMatrix1,
    TopK,
    TopK1,
)
"""Every descriptor, older forms included; those lower to the ones in `OPERATORS`."""


_level: ContextVar[FeatureLevel | None] = ContextVar("dmlops_feature_level", default=None)


@contextmanager
def feature_level(level: FeatureLevel) -> Iterator[None]:
    """Set the feature level that functions and `compile` apply inside a ``with`` block.

    Examples
    --------
    >>> import dmlops
    >>> with dmlops.feature_level(dmlops.FeatureLevel.DML_6_4):
    ...     dmlops.top_k([1.0, 3.0, 2.0], 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    dmlops.errors.UnsupportedFeatureError: TopK1.input_tensor: got FLOAT64, but DML_5_0 takes ...
    """
    token = _level.set(FeatureLevel(level))
    try:
        yield
    finally:
        _level.reset(token)


def level_set() -> FeatureLevel | None:
    """Return the level that `feature_level` set, or None outside of it."""
    return _level.get()


def level_or(default: FeatureLevel) -> FeatureLevel:
    """Return the level that `feature_level` set, or `default` outside of it."""
    return _level.get() or default


def check_feature_support(feature: Feature, query: Any, *, device: str = "cpu") -> Any:
    """Answer one of the two questions that DirectML's CheckFeatureSupport knows.

    Parameters
    ----------
    feature : Feature
        What is asked.
    query : TensorDataType or sequence of FeatureLevel
        The data type, or the levels among which the highest supported one is wanted.
    device : str
        ``"cpu"`` or ``"cuda"``.

    Returns
    -------
    bool or FeatureLevel
        Whether any operator takes the data type; or the highest of the requested levels that the
        back-end serves.

    Raises
    ------
    UnsupportedFeatureError
        If the feature is unknown, or none of the levels is served.
    InvalidDescriptorError
        If the query does not fit the feature.

    References
    ----------
    IDMLDevice::CheckFeatureSupport, DML_FEATURE (directml.h).

    Examples
    --------
    >>> check_feature_support(Feature.TENSOR_DATA_TYPE_SUPPORT, TensorDataType.INT4)
    False
    >>> check_feature_support(Feature.FEATURE_LEVELS, [FeatureLevel.DML_5_0, FeatureLevel.DML_6_4]).name
    'DML_6_4'
    """
    where = "check_feature_support"
    try:
        feature = Feature(feature)
    except ValueError:
        allowed = f"feature must be one of {', '.join(member.name for member in Feature)}"
        raise UnsupportedFeatureError(
            wording(f"{where}.feature", repr(feature), "there is no such feature", allowed)
        ) from None
    highest = BACKEND_LEVELS[_device(device, f"{where}.device").kind]
    try:
        if feature == Feature.TENSOR_DATA_TYPE_SUPPORT:
            return any(TensorDataType(query) in row.types for form in OPERATORS for row in form.support)
        levels = [FeatureLevel(level) for level in query]
    except (TypeError, ValueError):
        allowed = "query must be a TensorDataType, or a sequence of FeatureLevel"
        raise InvalidDescriptorError(
            wording(f"{where}.query", repr(query), f"{feature.name} does not ask that", allowed)
        ) from None
    served = [level for level in levels if level <= highest]
    if not served:
        reason = f"the {device} back-end serves none of them"
        raise UnsupportedFeatureError(
            wording(f"{where}.query", repr(query), reason, f"its highest level is {highest.name}")
        )
    return max(served)


class CompiledOperator:
    """An operator that is planned for one device; made by `compile`.

    It is immutable, and may be used from any thread and on any stream.

    Attributes
    ----------
    descriptor : Descriptor
        What is computed.
    device : Device
        Where.
    inputs, outputs : mapping of str to TensorDesc
        The tensors by field name.
    workspace_size : int
        Bytes of temporary memory that one execution needs.
    """

    def __init__(self, descriptor: Descriptor, device: Device, options: Options = Options()) -> None:  # noqa: B008
        lowest = descriptor.lower()
        operator = OPERATORS[type(lowest)]
        self.descriptor = descriptor
        self.device = device
        self.inputs = MappingProxyType(descriptor.inputs)
        self.outputs = MappingProxyType(descriptor.outputs)
        self._operands = operator.operands
        tensors = problems.operand_tensors(lowest, options)
        descs = [tensors.get(field) for field in operator.operands]
        self._slots = tuple(None if desc is None else Slot.of(desc) for desc in descs)
        width = next(slot.unsigned for slot in self._slots if slot is not None)
        empty = [np.empty(0, width if slot is None else slot.unsigned) for slot in self._slots]
        self._absent = tuple(empty if device == CPU else [0] * len(empty))
        self.plan = _plan(operator.kernels, operator.problem(lowest, options), device, descriptor.name)
        self.workspace_size: int = self.plan.workspace_size
        # Pairs of an output and another operand, which must not share memory.
        self._exclusive = [
            (i, j)
            for j, field in enumerate(self._operands)
            for i in range(j if field.startswith("output_") else 0)
            if self._slots[i] is not None and self._slots[j] is not None
        ]
        self._no_memory: Any = np.empty(0, np.uint8) if device == CPU else 0
        self._accepted: dict[tuple[str, Library, Any], bool] = {}

    def __repr__(self) -> str:
        return f"<compiled {self.descriptor.name} on {self.device}: {self.plan.variant}>"

    def execute(self, tensors: Mapping[str, Any], workspace: Any = None, stream: Any = None) -> None:
        """Compute the outputs from the inputs, all of them given.

        Parameters
        ----------
        tensors : mapping of str to array
            An array for each field of `inputs` and `outputs`, of the described type, sizes and strides.
        workspace : array, optional
            At least `workspace_size` bytes of temporary memory on the operator's device, one-dimensional
            and contiguous. With it nothing is allocated, and nothing waits.
        stream : int or stream object, optional
            Where a GPU runs it; None for the current stream of the input's library.

        Raises
        ------
        InvalidDescriptorError
            If an array is missing, does not fit its description, or an output overlaps another array.
        DeviceMismatchError
            If an array lives on another device.
        TypeError
            If something is no array.

        Notes
        -----
        Gather indices out of range are clamped, as DirectML does.
        """
        name = self.descriptor.name
        expected = {**self.inputs, **self.outputs}
        if tensors.keys() != expected.keys():
            got = f"arrays for {', '.join(sorted(tensors)) or 'nothing'}"
            allowed = f"arrays must be given for {', '.join(expected)}"
            raise InvalidDescriptorError(
                wording(f"{name}.execute", got, "the operator has other fields", allowed)
            )
        bound: dict[str, tuple[Library, Any]] = {}
        for field, array in tensors.items():
            bound[field] = self._bind(field, array, expected[field])
        operands = [bound[field] for field in self._operands if field in bound]
        views = self.views([bound.get(field) for field in self._operands])
        self.check_overlap(views, [f"{name}.{field}" for field in self._operands])
        handle = self.stream(stream, operands, f"{name}.stream")
        if workspace is not None:
            memory = self._workspace_view(workspace)
            self.launch(views, memory, handle)
        else:
            library = operands[0][0]
            with self.allocating_on(library, stream, handle):
                memory, _owner = self.scratch(library)
                self.launch(views, memory, handle)

    def _bind(self, field: str, array: Any, desc: TensorDesc) -> tuple[Library, Any]:
        where = f"{self.descriptor.name}.{field}"
        adopt = arrays.adopt_output if field.startswith("output_") else arrays.adopt
        library, array = adopt(array, where)
        key = field, library, library.signature(array)
        if key not in self._accepted:
            self._check(where, library, array, desc)
            self._accepted[key] = True
        return library, array

    def _check(self, where: str, library: Library, array: Any, desc: TensorDesc) -> None:
        if (device := library.device(array)) != self.device:
            reason = f"the operator is compiled for {self.device}"
            raise DeviceMismatchError(
                wording(where, f"an array on {device}", reason, "both must be the same")
            )
        got = library.describe(array, where)
        if got.data_type != desc.data_type:
            reason = f"the descriptor says {desc.data_type.name}"
            raise InvalidDescriptorError(wording(where, got.data_type.name, reason, "types must be equal"))
        if got.sizes != desc.sizes:
            reason = f"the descriptor says {desc.sizes}"
            raise InvalidDescriptorError(wording(where, f"sizes {got.sizes}", reason, "sizes must be equal"))
        strides = _meaningful_strides(got), _meaningful_strides(desc)
        if strides[0] != strides[1] and got.element_count:
            reason = f"the descriptor says {desc.effective_strides}"
            raise InvalidDescriptorError(
                wording(
                    where, f"strides {got.effective_strides}", reason, "strides in elements must be equal"
                )
            )

    def _workspace_view(self, workspace: Any) -> Any:
        where = f"{self.descriptor.name}.workspace"
        library, array = arrays.adopt(workspace, where)
        if (device := library.device(array)) != self.device:
            reason = f"the operator is compiled for {self.device}"
            raise DeviceMismatchError(wording(where, f"memory on {device}", reason, "both must be the same"))
        desc = library.describe(array, where)
        size = desc.element_count * desc.data_type.bytes
        if size < self.workspace_size:
            allowed = f"at least {self.workspace_size} bytes are needed"
            raise InvalidDescriptorError(wording(where, f"{size} bytes", "the operator needs more", allowed))
        if desc.extent != desc.element_count:
            raise InvalidDescriptorError(
                wording(where, f"strides {desc.effective_strides}", "it has gaps", "it must be contiguous")
            )
        memory = library.view(array, _bytes(size))
        if self.device == CPU:
            return memory.view(np.uint8)
        return memory

    def views(self, bound: Sequence[tuple[Library, Any] | None]) -> list[Any]:
        """Return the operands as the kernels take them."""
        return [
            absent if operand is None or slot is None else operand[0].view(operand[1], slot)
            for operand, slot, absent in zip(bound, self._slots, self._absent, strict=True)
        ]

    def check_overlap(self, views: Sequence[Any], names: Sequence[str]) -> None:
        """Refuse outputs that share memory with another operand; `names` are theirs in error texts.

        Raises
        ------
        InvalidDescriptorError
            If two of them do.
        """
        for i, j in self._exclusive:
            if arrays.share_memory(views[i], self._slots[i], views[j], self._slots[j]):
                reason = f"it shares memory with {names[i]}"
                allowed = "an output must have memory of its own"
                raise InvalidDescriptorError(wording(names[j], "an overlapping array", reason, allowed))

    def launch(self, views: Sequence[Any], workspace: Any, handle: int) -> None:
        """Run the kernels on viewed operands."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s on %s: %s", self.descriptor.name, self.device, self.plan.variant)
        if self.device == CPU:
            self.plan.launch(*views, workspace)
        else:
            with _profiler_range(self.descriptor.name):
                self.plan.launch(_stream(handle), *views, workspace)

    def stream(self, stream: Any, operands: Sequence[tuple[Library, Any]], where: str) -> int:
        """Return the stream handle to launch on, with the work of other libraries ordered before it."""
        if self.device == CPU:
            if stream is not None:
                reason = "the arrays live on cpu"
                raise InvalidDescriptorError(wording(where, repr(stream), reason, "stream must be None"))
            return 0
        first = operands[0][0]
        if stream is None:
            handle: int = first.current_stream(self.device)
        else:
            handle = cuda.stream_handle(stream, self.device.number, where)
        for library, array in operands:
            if stream is None and library is not first:
                cuda.wait_for(handle, library.current_stream(self.device))
            if array is not None and (producer := library.producer_stream(array)) is not None:
                cuda.wait_for(handle, producer)
        return handle

    def stream_argument(self, handle: int) -> tuple[Any, ...]:
        """Return what precedes the operands in a call of the kernels."""
        return () if self.device == CPU else (_stream(handle),)

    def read(self, view: Any, data_type: TensorDataType, handle: int, at: int = 0) -> int:
        """Return one integer of an operand, `at` elements from where its view begins; waits on a GPU."""
        dtype = arrays.numpy_dtype(data_type)
        if self.device == CPU:
            return int(view.view(dtype)[at])
        return int(cuda.read_back(view + at * dtype.itemsize, dtype, 1, handle)[0])

    def allocating_on(self, library: Library, stream: Any, handle: int) -> AbstractContextManager[Any]:
        """Return a context in which the library's new arrays belong to the stream of this call."""
        if stream is None or self.device == CPU:
            return nullcontext()
        return library.allocating_on(handle, self.device)

    def scratch(self, library: Library) -> tuple[Any, Any]:
        """Return temporary memory as the kernels take it, and the object that keeps it alive."""
        if self.workspace_size == 0:
            return self._no_memory, None
        if self.device == CPU:
            memory = _host_scratch(self.workspace_size)
            return memory, memory
        owner = library.empty((self.workspace_size,), TensorDataType.UINT8, self.device)
        return library.view(owner, _bytes(self.workspace_size)), owner


def compile(
    descriptor: Descriptor, *, device: str = "cpu", feature_level: FeatureLevel | None = None
) -> CompiledOperator:
    """Plan an operator for a device.

    Parameters
    ----------
    descriptor : Descriptor
        What is computed.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    feature_level : FeatureLevel, optional
        The level whose rules apply; DML_6_4 outside of a `feature_level` block.

    Returns
    -------
    CompiledOperator
        Ready to be executed, any number of times.

    Raises
    ------
    UnsupportedFeatureError
        If the level or the back-end does not take the descriptor, or the device cannot be used.
    InvalidDescriptorError
        If there is no such device.

    Examples
    --------
    >>> import numpy as np
    >>> from dmlops import TensorDesc, TopK1, AxisDirection, TensorDataType
    >>> desc = TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, (4,)), axis=0, k=2,
    ...              axis_direction=AxisDirection.DECREASING)
    >>> op = compile(desc, device="cpu")
    >>> values, indices = np.empty(2, np.float32), np.empty(2, np.uint32)
    >>> op.execute({"input_tensor": np.array([3, 7, 1, 7], np.float32),
    ...             "output_value_tensor": values, "output_index_tensor": indices})
    >>> values, indices
    (array([7., 7.], dtype=float32), array([1, 3], dtype=uint32))
    """
    if not isinstance(descriptor, Descriptor):
        allowed = "descriptor must be a dmlops operator descriptor"
        raise TypeError(wording("compile.descriptor", repr(descriptor), "it is no descriptor", allowed))
    where = _device(device, "compile.device")
    level = level_or(FeatureLevel.DML_6_4) if feature_level is None else FeatureLevel(feature_level)
    check_level(descriptor, level, where)
    return CompiledOperator(descriptor, where)


def check_level(descriptor: Descriptor, level: FeatureLevel, device: Device) -> None:
    """Apply the rules of a feature level, and those of the device's back-end.

    Raises
    ------
    UnsupportedFeatureError
        If either does not take the descriptor.
    """
    descriptor.validate(level)
    served, needed = BACKEND_LEVELS[device.kind], descriptor.minimum_feature_level()
    if needed > served:
        reason = f"the descriptor needs {needed.name}"
        remedy = f"the {device.kind} back-end serves levels up to {served.name}"
        raise UnsupportedFeatureError(wording(f"{descriptor.name}.feature_level", level.name, reason, remedy))


def _plan(kernels: str, problem: problems.Problem, device: Device, name: str) -> Any:
    if device == CPU:
        module = importlib.import_module(f"kernels_cpu.{kernels}")
        return module.plan(**problem, threads=threads.get_num_threads())
    target = cuda.target(device.number, f"{name}.device")
    module = importlib.import_module(f"kernels_cuda.{kernels}")
    return module.plan(**problem, target=target)


def _device(name: Any, where: str) -> Device:
    if name == "cpu":
        return CPU
    kind, _, index = str(name).partition(":")
    if kind != "cuda" or not (index == "" or index.isdecimal()):
        allowed = 'it must be "cpu", "cuda" or "cuda:N"'
        raise InvalidDescriptorError(wording(where, repr(name), "there is no such device", allowed))
    return Device("cuda", int(index or 0))


def _bytes(size: int) -> Slot:
    return Slot.of(TensorDesc(TensorDataType.UINT8, (size,)))


def _meaningful_strides(desc: TensorDesc) -> list[int]:
    return [stride for size, stride in zip(desc.sizes, desc.effective_strides, strict=True) if size > 1]


_SCRATCH_ALIGNMENT = 64
# Scratch up to this size is kept between calls: fresh pages cost more than the work done in them.
_KEPT_SCRATCH = 1 << 26
_kept = threading.local()


def _host_scratch(size: int) -> "np.ndarray[Any, Any]":
    kept: np.ndarray[Any, Any] | None = getattr(_kept, "scratch", None)
    if kept is not None and kept.size >= size:
        return kept
    raw = np.empty(size + _SCRATCH_ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _SCRATCH_ALIGNMENT
    memory = raw[start : start + size]
    if size <= _KEPT_SCRATCH:
        _kept.scratch = memory
    return memory


@functools.lru_cache(maxsize=256)
def _stream(handle: int) -> Any:
    return cuda.launcher("stream").stream_from_handle(handle)


@functools.cache
def _annotate() -> Callable[[str], AbstractContextManager[Any]]:
    try:
        import nvtx  # noqa: PLC0415
    except ImportError:
        return nullcontext
    return functools.partial(nvtx.annotate, domain="dmlops")


def _profiler_range(name: str) -> AbstractContextManager[Any]:
    return _annotate()(name)
