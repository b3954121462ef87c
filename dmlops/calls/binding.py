"""From the arguments of a function to a bound call, as far as all functions do it alike."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.array_libraries.detect import (
    KIND_SIGNATURES,
    as_input,
    as_output,
    as_plain,
    compiling_framework,
    find_library,
)
from dmlops.array_libraries.numpy import NUMPY
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.call_cache import CALLS
from dmlops.calls.dispatch import check_served, level_or, plan_problems, problems_of
from dmlops.calls.guard import NamedTensor
from dmlops.calls.kinds import KINDS
from dmlops.devices import backend, cuda_driver
from dmlops.devices.memory import CPU, Device
from dmlops.devices.plans import Plan
from dmlops.operators.batching import BatchingRule
from dmlops.operators.descriptor import Descriptor, check_index_type, check_strides
from dmlops.operators.problem import Options
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import (
    DeviceMismatchError,
    UnsupportedFeatureError,
    Words,
    counted,
    error_text,
    refuse,
)
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import Problem

_Make = Callable[..., BoundCall]
# Beside arrays of another library, NumPy's forms of these become arrays of that one.
_CONVERTED = (int, list, tuple)


class Spec:
    """An operator as a function of arrays: its signature, its outputs, its plan, and what frameworks ask.

    Parameters
    ----------
    name : str
        As users call it.
    bind : callable
        Makes a bound call of a `Binding` and the arguments that are no arrays.
    inputs : tuple of str
        The parameters that are arrays to read; those at the end may be left out.
    results : mapping of str to str
        What texts call each result, and the parameter that says its type.
    fields : mapping of str to str
        The parameter for each field of the operator's descriptor.
    made : mapping of str to str, optional
        The parameter that says the type of each output field, if the caller gives no outputs.
    operator : str, optional
        The function that this one is a form of; by default, the function itself.
    has_derivative : bool
        Whether the result has a derivative by the first input.
    convert : callable, optional
        Makes what kernels read of the first input, its name in texts, and the handle of the stream.
    batch : callable, optional
        Says how a call on a batch of examples is one call (`dmlops.operators.batching`).
    """

    def __init__(
        self,
        name: str,
        bind: _Make,
        inputs: tuple[str, ...],
        results: Mapping[str, str],
        fields: Mapping[str, str],
        *,
        made: Mapping[str, str] | None = None,
        operator: str = "",
        has_derivative: bool = True,
        convert: Callable[[Operand, str, int | None], Operand] | None = None,
        batch: BatchingRule | None = None,
    ) -> None:
        self.name, self._bind, self._convert = name, bind, convert
        self.operator, self.has_derivative, self.batch = operator or name, has_derivative, batch
        self.parameters, self.results = inputs, tuple(results)
        self.inputs = tuple([f"{name}.{parameter}" for parameter in inputs])
        numbers = range(len(results)) if len(results) > 1 else [None]
        places = ["out" if i is None else f"out[{i}]" for i in numbers]
        self.outputs = tuple([f"{name}.{place}" for place in places])
        self.types = tuple([f"{name}.{parameter}" for parameter in results.values()])
        outputs = dict(zip(made or ("output_tensor",), places, strict=True))
        self.words_with_out = Words(name, {**fields, **outputs})
        self.words = Words(name, {**fields, **(made or outputs)})
        self._renewed = partial(
            Spec,
            name,
            bind,
            fields=fields,
            operator=operator,
            has_derivative=has_derivative,
            convert=convert,
            batch=batch,
        )
        self._results, self._made = results, made
        self._with: dict[tuple[str, ...], Spec] = {(): self}

    def with_arrays(self, names: tuple[str, ...]) -> "Spec":
        """Return the form of the function in which these parameters are arrays, and not numbers or left out.

        If one of them has the name of a result, the result has its type.
        """
        found = self._with.get(names)
        if found is None:
            typed = {parameter: result for result, parameter in self._results.items() if result in names}
            results, made = (
                {key: typed.get(parameter, parameter) for key, parameter in (each or {}).items()}
                for each in (self._results, self._made)
            )
            inputs = (*self.parameters, *names)
            found = self._with[names] = self._renewed(inputs=inputs, results=results, made=made or None)
        return found

    def framework(self, inputs: Sequence[object]) -> Any:
        """Return the module of the framework that takes a call on these inputs over; see `takes_over`."""
        framework = compiling_framework()
        for place, array in enumerate(inputs):
            if framework is None:
                library = find_library(array, self.inputs[place])
                framework = library.takes_over(array, self.has_derivative and place == 0)
        return framework

    def run(
        self,
        parameters: Hashable,
        sizes: tuple[object, ...],
        inputs: tuple[object, ...],
        out: Any,
        stream: object,
        *others: object,
    ) -> Sequence[object]:
        """Make a call in Python, on arrays that their libraries vouch for.

        `parameters` and `sizes` hold all that the call depends on but its arrays, and `others` what binding
        needs of that.
        """
        framework = self.framework(inputs)
        if framework is not None:
            return framework.run(self, inputs, out, stream, *others)  # type: ignore[no-any-return]
        names, outs = self.inputs, () if out is None else out if len(self.outputs) > 1 else (out,)
        is_converted = any(isinstance(array, _CONVERTED) for array in inputs[1:])
        is_beside = is_converted and find_library(inputs[0], names[0]) is not NUMPY
        is_other = stream is not None or any(type(array) not in KIND_SIGNATURES for array in inputs)
        if is_other and not is_beside:
            plain = tuple([as_plain(array, name) for array, name in zip(inputs, names)])  # noqa: B905
            results = KINDS.call(parameters, plain, sizes, outs, stream)
            if results is not None:
                return results
        handle = None if stream is None else cuda_driver.stream_handle(stream, f"{self.name}.stream")
        operands, outputs = self.operands(inputs, outs, handle)
        if is_beside and operands[0].library.device(operands[0].array) == CPU:
            arrays = tuple([operand.array for operand in operands])
            results = KINDS.call(parameters, arrays, sizes, outs, stream)
            if results is not None:
                return results
        bind = partial(self.bind, operands, outputs, *others)
        return CALLS.run(parameters, sizes, operands, outputs, bind, stream)

    def operands(
        self, inputs: Sequence[object], out: Sequence[object], stream: int | None = None
    ) -> tuple[list[Operand], list[Operand]]:
        """Return arrays that their libraries vouch for; copies are made on `stream`."""
        names = self.inputs
        operands = [as_input(array, name, stream) for array, name in zip(inputs, names)]  # noqa: B905
        for place, array in enumerate(inputs):
            if place and isinstance(array, _CONVERTED):
                operands[place] = operands[0].library.beside(operands, place, names[place], stream)
        if self._convert is not None:
            operands[0] = self._convert(operands[0], names[0], stream)
        outputs = [as_output(array, name) for array, name in zip(out, self.outputs)]  # noqa: B905
        return operands, outputs

    def bind(self, inputs: Sequence[Operand], out: Sequence[Operand], *others: object) -> BoundCall:
        """Check the arguments of a call, and plan it."""
        return self._bind(Binding(self, inputs, out), *others)


class Binding:
    """The arrays of a function's call, for which its operator is described and planned.

    Attributes
    ----------
    library, device : ArrayLibrary, Device
        Those of the first input, which are those of the results; see `make_on`.
    words : Words
        The names for error texts.
    inputs : list of TensorDesc
        The inputs as they lie in memory.
    """

    library: ArrayLibrary
    device: Device

    def __init__(self, function: Spec, inputs: Sequence[Operand], out: Sequence[Operand]) -> None:
        self.function, self.out = function, out
        self.words = function.words_with_out if out else function.words
        self.inputs: list[TensorDesc] = []
        self._outputs: Sequence[TensorDesc] = ()
        for operand, where in zip(inputs, function.inputs, strict=False):
            library, array = operand.library, operand.array
            found = library.describe(array, where)
            if not self.inputs:
                self.library, self.device = library, library.device(array)
                check_type_has_level(found.data_type, where)
            check_device(where, library.device(array), self.device)
            self.inputs.append(found)

    def make_on(self, library: ArrayLibrary, device: Device) -> None:
        """Let the results of a call without inputs belong to a library and a device."""
        self.library, self.device = library, device

    def check_outputs(self, *inferred: TensorDesc) -> Sequence[TensorDesc]:
        """Return the inferred descriptions of the outputs, or those of given outputs, which must fit."""
        self._outputs = inferred
        if not self.out:
            return inferred
        self._outputs = checked = []
        function = self.function
        for operand, where, name, expected in zip(
            self.out, function.outputs, function.results, inferred, strict=True
        ):
            library, array = operand.library, operand.array
            check_device(where, library.device(array), self.device)
            got = library.describe(array, where)
            is_plural = name.endswith("s")
            if got.sizes != expected.sizes:
                reason = f"the {name} {'have' if is_plural else 'has'} shape {expected.sizes}"
                refuse(where, f"shape {got.sizes}", reason, "shapes must be equal")
            if got.data_type != expected.data_type:
                expected_type = type_name(expected.data_type)
                reason = f"the {name} {'are' if is_plural else 'is'} {expected_type}"
                refuse(where, type_name(got.data_type), reason, "types must be equal")
            check_strides(where, got)
            checked.append(got)
        return checked

    def index_type(self, index_type: TensorDataType | None, place: int = 1) -> TensorDataType:
        """Return the type of indices: what the caller asked for, or that of an output or of the library."""
        if index_type is None and self.out:
            library, array, *_ = self.out[place]
            where = self.function.outputs[place]
            return check_index_type(where, library.describe(array, where).data_type)
        return default_index_type(self.library) if index_type is None else index_type

    def plan(
        self,
        descriptor: Descriptor,
        options: Options = Options(),  # noqa: B008
        make: _Make = BoundCall,
        *,
        even_if_empty: bool = False,
        form: KindForm | None = None,
    ) -> BoundCall:
        """Plan a descriptor for these arrays; `form` tells how native code makes other calls of the kind.

        `make` makes the call, unless there is nothing to compute.
        """
        level = level_or(FeatureLevel.EXTENDED)
        # A DirectML level may want an older form of the operator, or more dimensions; the kernels do not.
        served = descriptor if level is FeatureLevel.EXTENDED else descriptor.in_form_of(level, self.words)
        check_served(served, level, self.device, self.words)
        if not self.out:  # their library may lack the types of results, or silently change them
            for where, desc in zip(self.function.types, self._outputs, strict=True):
                self.library.check_representable(desc.data_type, where)
        if not even_if_empty and not any(desc.element_count for desc in self._outputs):
            return self._bound(BoundCall, None, None, None)
        problems = problems_of(descriptor, options)
        if level is not FeatureLevel.EXTENDED and form is not None:
            form = self._form_at(level, form)

        def bound() -> BoundCall:
            kernels = plan_problems(descriptor, problems, self.device, f"{self.function.name}.device")
            return self._bound(make, kernels, form, problems[0] if len(problems) == 1 else None)

        return backend.planned(self.function.operator, self.device, bound)

    def _form_at(self, level: FeatureLevel, form: KindForm) -> KindForm | None:
        """Return the form of a kind at a level of DirectML; None if ranks do not tell what it serves."""
        most = 8 if level >= FeatureLevel.DML_5_0 else 4
        is_served = all(desc.dimension_count <= most for desc in (*self.inputs, *self._outputs))
        return form._replace(is_limited=True) if is_served else None

    def _bound(
        self, make: _Make, kernels: Plan | None, form: KindForm | None, problem: Problem | None
    ) -> BoundCall:
        function, library = self.function, self.library
        inputs = list(map(NamedTensor, function.inputs, self.inputs))
        outputs = list(map(NamedTensor, function.outputs, self._outputs))
        return make(function.name, kernels, inputs, outputs, library, self.device, form=form, problem=problem)


def check_device(where: str, got: object, device: object) -> None:
    """Refuse an array on another device than that of `x`, in the terms of any library."""
    if got != device:
        reason, allowed = f"x lives on {device}", "all arrays must share a device"
        raise DeviceMismatchError(error_text(where, f"an array on {got}", reason, allowed))


def default_index_type(library: ArrayLibrary) -> TensorDataType:
    """Return the type of indices in arrays of a library, or UINT32, which DirectML has at every level."""
    is_extended = level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED
    return library.index_type if is_extended else TensorDataType.UINT32


def check_type_has_level(data_type: ElementType, where: str) -> None:
    """Refuse an opaque type at a level of DirectML."""
    if isinstance(data_type, OpaqueType):
        check_extended(where, data_type.name, "DirectML has no such type")


def check_extended(where: str, got: object, reason: str) -> None:
    """Refuse options that no DirectML level supports, if such a level is set."""
    if level_or(FeatureLevel.EXTENDED) < FeatureLevel.EXTENDED:
        remedy = f"the lowest level that supports it is {FeatureLevel.EXTENDED.name}"
        raise UnsupportedFeatureError(error_text(where, got, reason, remedy))


def check_is_pair(out: object, where: str) -> None:
    """Refuse an ``out`` argument that is not one array for each of two results."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        got = counted(len(out), "array") if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(error_text(where, got, "there are 2 results", "out must be 2 arrays"))
