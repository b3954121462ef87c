"""From a descriptor, a device and a feature level to a plan; the registry of operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from dmlops.devices import backend, cuda_driver
from dmlops.devices.memory import CPU, Device
from dmlops.devices.plans import Plan
from dmlops.operators import diagonal_matrix, gather_nd, nonzero_coordinates, sample, top_k
from dmlops.operators.descriptor import Descriptor
from dmlops.operators.problem import Operator, Options
from dmlops.types.arguments import as_integer, level_of, member_of
from dmlops.types.enums import Feature, FeatureLevel, TensorDataType
from dmlops.types.errors import UnsupportedFeatureError, Words, error_text, refuse, shown
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import Problem

_REGISTRY = (
    nonzero_coordinates.OPERATOR,
    gather_nd.OPERATOR,
    diagonal_matrix.OPERATOR,
    top_k.OPERATOR,
    sample.OPERATOR,
)
OPERATORS: Mapping[type[Descriptor], Operator] = MappingProxyType(
    {operator.forms[-1]: operator for operator in _REGISTRY}
)
"""The operators by the newest form of their descriptor; that of `sample` serves functions alone."""

DESCRIPTORS = tuple(form for operator in _REGISTRY for form in operator.forms if "support" in vars(form))
"""Every descriptor of DirectML, older forms included; those lower to the ones in `OPERATORS`."""


_NO_OPTIONS = Options()
_level: ContextVar[FeatureLevel | None] = ContextVar("dmlops_feature_level", default=None)
level_set: Callable[[], FeatureLevel | None] = _level.get
"""Returns the level that `feature_level` set, or None outside of it."""


@contextmanager
def feature_level(level: FeatureLevel | int | str) -> Iterator[None]:
    """Set the feature level that functions and `compile` apply inside a ``with`` block.

    Parameters
    ----------
    level : FeatureLevel
        The member, its number or its name.

    Raises
    ------
    InvalidDescriptorError
        If there is no such level.

    Examples
    --------
    >>> import dmlops
    >>> with dmlops.feature_level(dmlops.FeatureLevel.DML_6_4):
    ...     dmlops.top_k([1.0, 3.0, 2.0], 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    dmlops.UnsupportedFeatureError: top_k.x: got float64, but DML_6_4 takes ...
    """
    token = _level.set(level_of(level, "feature_level.level"))
    try:
        yield
    finally:
        _level.reset(token)


def level_or(default: FeatureLevel) -> FeatureLevel:
    """Return the level that `feature_level` set, or `default` outside of it."""
    return _level.get() or default


def check_feature_support(feature: Feature, query: Any, *, device: str = "cpu") -> Any:
    """Answer one of the two queries of DirectML's CheckFeatureSupport.

    Parameters
    ----------
    feature : Feature
        The query: a member, its number or its name.
    query : TensorDataType or sequence of FeatureLevel
        The data type, or the levels to choose from. A number above the highest level is not an error, but a
        level that is not supported: an application may know newer levels than its DirectML.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. As in DirectML, where CheckFeatureSupport is a method of a
        device, the device must exist.

    Returns
    -------
    bool or FeatureLevel
        Whether any operator supports the data type; or the highest of the given levels that is supported.

    Raises
    ------
    UnsupportedFeatureError
        If the feature is unknown, none of the levels is supported, or the device cannot be used.
    InvalidDescriptorError
        If the query does not fit the feature, or there is no such device.

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
    asked = member_of(Feature, feature)
    if asked is None:
        allowed = f"feature must be one of {', '.join(Feature.__members__)}"
        raise UnsupportedFeatureError(
            error_text(f"{where}.feature", shown(feature), "there is no such feature", allowed)
        )
    at = device_of(device, f"{where}.device")
    if at is not CPU:
        cuda_driver.check_device(at.number, f"{where}.device")
    if asked == Feature.TENSOR_DATA_TYPE_SUPPORT:
        data_type = member_of(TensorDataType, query)
        if data_type is None:
            reason, allowed = "there is no such data type", "query must be a TensorDataType"
            refuse(f"{where}.query", shown(query), reason, allowed)
        return any(data_type in row.types for form in DESCRIPTORS for row in form.support)
    where = f"{where}.query"
    try:
        levels = None if isinstance(query, str) else list(query)
    except TypeError:
        levels = None
    if levels is None:
        allowed = "query must be a sequence of FeatureLevel"
        refuse(where, shown(query), "it is not a sequence of levels", allowed)
    newest = max(level for level in FeatureLevel if level != FeatureLevel.EXTENDED)
    known = []
    for level in levels:
        number = as_integer(level)
        if member_of(FeatureLevel, level) is not None or number is None or number <= newest:
            known.append(level_of(level, where))
    highest = backend.HIGHEST_LEVELS[at.kind]
    served = [level for level in known if level <= highest]
    if not served:
        allowed = f"its highest level is {highest.name}"
        raise UnsupportedFeatureError(error_text(where, shown(query), f"{at} serves none of them", allowed))
    return max(served)


def plan(
    descriptor: Descriptor, device: Device, options: Options = _NO_OPTIONS
) -> tuple[Plan, tuple[tuple[str, TensorDesc], ...]]:
    """Plan a descriptor, whose level has been checked, for a device.

    Returns
    -------
    plan, operands : Plan, tuple of (str, TensorDesc)
        The kernels' plan; the fields that they take, in their order, and how each lies in memory.
    """
    lowest = descriptor.lower()
    operands = OPERATORS[type(lowest)].tensors(lowest, options)
    planned = plan_problems(lowest, problems_of(lowest, options), device, f"{descriptor.name}.device")
    planned.prepared()
    return planned, tuple(operands.items())


def problems_of(descriptor: Descriptor, options: Options) -> list[Problem]:
    """Return the problems of a descriptor of the newest form: one, or one for each part of its elements."""
    operator = OPERATORS[type(descriptor)]
    return [operator.problem(part, each) for part, each in descriptor.parts(options)]


def plan_problems(descriptor: Descriptor, problems: Sequence[Problem], device: Device, where: str) -> Plan:
    """Plan the problems of a descriptor; an error about the device begins with `where`."""
    operator = OPERATORS[type(descriptor)]
    plans = [backend.plan(operator.name, problem, device, where) for problem in problems]
    if len(plans) == 1:
        return plans[0]
    return _PartPlans(plans, problems[0].element_size, len(operator.operands))


class _PartPlans:
    """Plans for elements that are too wide for kernels, each of which writes one part of all elements.

    Parameters
    ----------
    plans : sequence of plan
        In the order of the parts.
    part_bytes : int
        How far the parts of an element are from each other.
    n_operands : int
        How many arrays kernels take. The first and the last consist of such elements.
    """

    def __init__(self, plans: Sequence[Plan], part_bytes: int, n_operands: int) -> None:
        self._plans, self._part_bytes, self._n_operands = plans, part_bytes, n_operands
        self.workspace_size = max(plan.workspace_size for plan in plans)
        self.variant = f"{len(plans)} parts of {part_bytes} bytes: {plans[0].variant}"

    def launch(self, *arguments: int) -> int:
        """Run all plans: ``launch([stream,] x, [indices,] output, workspace)`` by address."""
        addresses = [*arguments]
        x, output = len(arguments) - self._n_operands - 1, len(arguments) - 2
        for plan in self._plans:
            plan.launch(*addresses)
            addresses[x] += self._part_bytes if addresses[x] else 0
            addresses[output] += self._part_bytes
        return 0

    def prepared(self) -> None:
        """Load all kernels."""
        for plan in self._plans:
            plan.prepared()


def check_served(
    descriptor: Descriptor, level: FeatureLevel, device: Device, words: Words | None = None
) -> None:
    """Refuse a descriptor that needs more than the device's back-end serves; errors may be in other words."""
    served = backend.HIGHEST_LEVELS[device.kind]
    if level > served and (needed := descriptor.minimum_feature_level()) > served:
        where = (words or descriptor.words).where("feature_level")
        reason = f"the descriptor needs {needed.name}"
        remedy = f"the {device.kind} back-end serves levels up to {served.name}"
        raise UnsupportedFeatureError(error_text(where, level.name, reason, remedy))


def device_of(device: object, where: str) -> Device:
    """Return the device that a name, such as ``"cuda:1"``, stands for.

    Raises
    ------
    InvalidDescriptorError
        If it names none.
    """
    try:
        name = str(device)  # a Device, or that of a library, is accepted too
    except ValueError:  # it holds an integer of thousands of digits
        name = ""
    if name == "cpu":
        return CPU
    kind, colon, number = name.partition(":")
    # A CUDA device's number is an int of C.
    numbered = number.isascii() and number.isdecimal() and len(number) < 10
    if kind != "cuda" or (colon and not numbered):
        allowed = 'it must be "cpu", "cuda" or "cuda:N"'
        refuse(where, shown(device), "there is no such device", allowed)
    return Device("cuda", int(number or 0))
