"""Compiled operators: planned for one device, and executed on arrays that fit the descriptor."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from dmlops.array_libraries.base import Operand
from dmlops.array_libraries.detect import as_input, as_output
from dmlops.calls.call import BoundCall, KindForm, workspace_bytes
from dmlops.calls.call_cache import CallCache
from dmlops.calls.dispatch import DESCRIPTORS, OPERATORS, check_served, device_of, level_or, plan, problems_of
from dmlops.calls.guard import NamedTensor
from dmlops.calls.kinds import Kind, Kinds
from dmlops.devices import cpu, cuda_driver
from dmlops.devices.memory import Device
from dmlops.devices.plans import Plan
from dmlops.operators.descriptor import Descriptor
from dmlops.operators.problem import Options
from dmlops.types.arguments import level_of
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import DeviceMismatchError, counted, error_text, refuse, shown
from dmlops.types.tensor import TensorDesc

# A descriptor leaves little open: libraries, the size of the workspace, strides that have no meaning.
_MAX_CALLS = 16


class CompiledOperator:
    """An operator that `compile` has planned for a device.

    It is immutable, and may be used from any thread and on any stream, with a workspace for each execution
    that runs at the same time. It can be pickled. When it is loaded,
    it is planned again for the device of the same name.

    Attributes
    ----------
    descriptor : Descriptor
        The computation.
    device : Device
        The device for which it is planned.
    inputs, outputs : mapping of str to TensorDesc
        The tensors by field name.
    workspace_size : int
        The bytes of temporary memory that one execution needs.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        device: Device,
        plan: Plan,
        operands: tuple[tuple[str, TensorDesc], ...],
    ) -> None:
        self.descriptor = descriptor
        self.device = device
        self.inputs: Mapping[str, TensorDesc] = MappingProxyType(descriptor.inputs)
        self.outputs: Mapping[str, TensorDesc] = MappingProxyType(descriptor.outputs)
        self._places = tuple((field, f"{descriptor.name}.{field}") for field, _ in operands)
        self._n_inputs = len(operands) - len(self.outputs)
        self._plan, self._descs = plan, tuple(desc for _, desc in operands)
        # One call per kind of arrays that has been found to fit.
        self._kinds = Kinds(_MAX_CALLS)
        self._calls = CallCache(_MAX_CALLS, self._kinds)
        lowest = descriptor.lower()
        problems = problems_of(lowest, Options())
        self._problem = problems[0] if len(problems) == 1 else None
        operator = OPERATORS[type(lowest)]
        self._form = KindForm(
            operator.name,
            Kind,
            sizes=(),
            fixed=(),
            shapes=no_shapes,
            gathered=operator.gathered,
            expected=self._descs,
            host=cpu.words_of_host(),
            workspace=self.workspace_size,
        )

    @property
    def workspace_size(self) -> int:
        """Bytes of temporary memory that one execution needs."""
        return workspace_bytes(self._plan)

    def __reduce__(self) -> tuple[object, ...]:
        # The level was checked when the operator was first compiled.
        anew = partial(compile, device=str(self.device), feature_level=FeatureLevel.EXTENDED)
        return anew, (self.descriptor,)

    def __repr__(self) -> str:
        return f"CompiledOperator({self.descriptor!r}, device={str(self.device)!r})"

    def execute(self, tensors: Mapping[str, object], workspace: object = None, stream: object = None) -> None:
        """Compute the outputs from the inputs.

        Parameters
        ----------
        tensors : mapping of str to array
            An array for each field of `inputs` and `outputs`, of the described type, sizes and strides.
        workspace : array, optional
            At least `workspace_size` bytes of temporary memory on the operator's device, contiguous and
            apart from the tensors. With a workspace, nothing is allocated and nothing waits. It serves one
            execution at a time: if another one, or anything else, writes to it meanwhile, answers are wrong.
        stream : int or stream object, optional
            The stream on which a GPU runs the operator; by default the current stream of the input's library.

        Raises
        ------
        InvalidDescriptorError
            If an array is missing, does not fit its description, or an output overlaps another array.
        DeviceMismatchError
            If an array is on another device.
        TypeError
            If something is not an array.

        Notes
        -----
        Indices of a gather that are out of range are clamped, as in DirectML.
        """
        name = self.descriptor.name
        if not isinstance(tensors, Mapping):
            allowed = "tensors must be a mapping from field names to arrays"
            raise TypeError(error_text(f"{name}.execute", shown(tensors), "it is not a mapping", allowed))
        arrays = [tensors[field] for field, _ in self._places if field in tensors]
        if len(tensors) != len(self._places) or len(arrays) != len(self._places):
            got = f"arrays for {', '.join(sorted(map(str, tensors))) or 'nothing'}"
            allowed = f"arrays must be given for {', '.join(field for field, _ in self._places)}"
            refuse(f"{name}.execute", got, "the operator has other fields", allowed)
        has_workspace = workspace is not None
        n = self._n_inputs
        written = tuple(arrays[n:]) if workspace is None else (*arrays[n:], workspace)
        if self._kinds.call((), tuple(arrays[:n]), (), written, stream) is not None:
            return
        handle = None if stream is None else cuda_driver.stream_handle(stream, f"{name}.stream")
        inputs = [as_input(array, where, handle) for array, (_, where) in zip(arrays[:n], self._places)]  # noqa: B905
        outputs = [
            as_output(array, where) for array, (_, where) in zip(arrays[n:], self._places[n:], strict=True)
        ]
        scratch = as_output(workspace, f"{name}.workspace") if has_workspace else None
        bind = partial(self._bind, inputs, outputs, scratch)
        self._calls.run((), (), inputs, outputs, bind, stream, scratch)

    def _bind(
        self, inputs: Sequence[Operand], outputs: Sequence[Operand], workspace: Operand | None
    ) -> BoundCall:
        """Return the plan bound to arrays that fit."""
        if workspace is not None:
            self._check_workspace(workspace)
        described, named = {**self.inputs, **self.outputs}, []
        for (field, where), desc, operand in zip(self._places, self._descs, (*inputs, *outputs), strict=True):
            self._check(where, operand, described[field])
            named.append(NamedTensor(where, desc))
        n, library = self._n_inputs, outputs[0].library
        return BoundCall(
            self.descriptor.name,
            self._plan,
            named[:n],
            named[n:],
            library,
            self.device,
            form=self._form,
            problem=self._problem,
        )

    def _check(self, where: str, operand: Operand, desc: TensorDesc) -> None:
        library, array = operand.library, operand.array
        self._check_device(where, library.device(array))
        got = library.describe(array, where)
        if got.data_type != desc.data_type:
            reason = f"the descriptor says {desc.data_type.name}"
            refuse(where, got.data_type.name, reason, "types must be equal")
        if got.sizes != desc.sizes:
            reason = f"the descriptor says {desc.sizes}"
            refuse(where, f"sizes {got.sizes}", reason, "sizes must be equal")
        if got.element_count and _meaningful_strides(got) != _meaningful_strides(desc):
            given = f"strides {got.effective_strides}"
            reason = f"the descriptor says {desc.effective_strides}"
            refuse(where, given, reason, "strides in elements must be equal")

    def _check_device(self, where: str, device: Device) -> None:
        if device != self.device:
            reason = f"the operator is compiled for {self.device}"
            got, allowed = f"an array on {device}", "both must be the same"
            raise DeviceMismatchError(error_text(where, got, reason, allowed))

    def _check_workspace(self, workspace: Operand) -> None:
        """Refuse a workspace that is too small."""
        where = f"{self.descriptor.name}.workspace"
        library, array = workspace.library, workspace.array
        self._check_device(where, library.device(array))
        desc = library.describe(array, where)
        size = desc.element_count * desc.data_type.bytes
        if size < self.workspace_size:
            allowed = f"at least {self.workspace_size} bytes are needed"
            refuse(where, counted(size, "byte"), "the operator needs more", allowed)
        if desc.extent != desc.element_count or desc.offset:
            got, allowed = f"strides {desc.effective_strides}", "it must be contiguous"
            refuse(where, got, "it has gaps or runs backwards", allowed)


def no_shapes(inputs: Sequence[object], sizes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """Return the shapes of no outputs: those of a compiled operator are the caller's."""
    return ()


def _meaningful_strides(desc: TensorDesc) -> list[int]:
    return [stride for size, stride in zip(desc.sizes, desc.effective_strides, strict=True) if size > 1]


def compile(
    descriptor: Descriptor, *, device: str = "cpu", feature_level: FeatureLevel | int | str | None = None
) -> CompiledOperator:
    """Plan an operator for a device.

    Parameters
    ----------
    descriptor : Descriptor
        The computation.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    feature_level : FeatureLevel, optional
        The level whose rules apply: a member, its number or its name. The default is that of the
        `feature_level` block, or else DML_6_4.

    Returns
    -------
    CompiledOperator
        The operator, which can be executed any number of times.

    Raises
    ------
    UnsupportedFeatureError
        If the level or the device does not support the descriptor, or the device cannot be used.
    InvalidDescriptorError
        If there is no such device or no such level.
    TypeError
        If `descriptor` is not a descriptor.

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
    if type(descriptor) not in DESCRIPTORS:
        allowed = f"descriptor must be one of {', '.join(form.__name__ for form in DESCRIPTORS)}"
        raise TypeError(
            error_text("compile.descriptor", shown(descriptor), "it is not a descriptor", allowed)
        )
    where = device_of(device, "compile.device")
    if feature_level is None:
        level = level_or(FeatureLevel.DML_6_4)
    else:
        level = level_of(feature_level, "compile.feature_level")
    descriptor.validate(level)
    check_served(descriptor, level, where)
    return CompiledOperator(descriptor, where, *plan(descriptor, where))
