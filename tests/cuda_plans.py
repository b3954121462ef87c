"""The launches of CUDA plans, with their arguments by name, for a GPU that need not be present."""

import ctypes
import functools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from dmlops import AxisDirection, NonzeroCoordinates, TensorDesc, TopK1
from dmlops import TensorDataType as T
from tests import inside
from tests.inside import Options, dispatch, plan_words

KIB = 1 << 10
# A block may have this of shared memory, by the CUDA programming guide.
SHARED_BYTES = {"sm_75": 64 * KIB, "sm_86": 99 * KIB, "sm_90": 227 * KIB}
STREAM = 5
# The operands lie this far from each other, and the workspace from the last of them.
APART = 1 << 58
# As many rows as a count is taken to have given.
ROWS = 9

# Words of problems that say which step of a plan is launched.
GATHER, NONZERO = (inside.cpu_kernels(each, "problem_words") for each in ("gather_nd", "nonzero_coordinates"))
CHECKING, COUNTING = {GATHER.CHECKS: 1}, {NONZERO.STEP: NONZERO.COUNT}

# Kinds of CUlaunchAttribute.
CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6


def expanding(n_rows):
    """Return the words of the step that writes so many rows."""
    return {NONZERO.STEP: NONZERO.EXPAND, NONZERO.CAPACITY: n_rows}


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, of which the value is integers here."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("n_attributes", ctypes.c_uint),
    )

    def is_early_and_cluster(self):
        """Return whether the launch begins early, and the blocks of its clusters, from its attributes."""
        values = {each.id: tuple(each.value) for each in self.attributes[: self.n_attributes]}
        assert len(values) == self.n_attributes
        is_early = values.pop(PROGRAMMATIC_SERIALIZATION, None)
        assert is_early in (None, (1,) + (0,) * 15)
        cluster, *rest = values.pop(CLUSTER_DIMENSION, (1, 1, 1, *(0,) * 13))
        assert (rest, values) == ([1, 1, *(0,) * 13], {})
        return is_early is not None, cluster


@dataclass(frozen=True)
class Asked:
    """One launch."""

    variant: Any
    grid: int
    block: int
    shared_bytes: int
    is_early: bool
    cluster: int
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name without its parameters."""
        return self.variant.name

    def __getattr__(self, name):
        """Return an argument."""
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None


@functools.cache
def _parameters(variant):
    """Return the names and the Numba types of a kernel's parameters."""
    compiler = inside.compiler
    return compiler.parameter_types(compiler.make_kernel(variant, (9, 0)))


def _read(kind, values):
    """Return the next argument of a Numba type from an iterator over what a launch passes."""
    members = getattr(kind, "types", None) or (kind.dtype,) * len(kind) if hasattr(kind, "__len__") else ()
    if not members:
        return next(values)
    read = [_read(member, values) for member in members]
    return kind.instance_class(*read) if hasattr(kind, "instance_class") else tuple(read)


def _by_name(arguments):
    """Yield arguments, and those in NamedTuples, by name."""
    for name, value in arguments.items():
        yield name, value
        if hasattr(value, "_asdict"):
            yield from _by_name(value._asdict())


class WordLaunch(NamedTuple):
    """A launch in the words of a plan; pointers are slots and offsets."""

    variant: Any
    grid: int
    block: int
    shared_bytes: int
    cluster: int
    pointers: list[tuple[int, int]]
    values: list[int]


def launches_of(words, variant_of):
    """Return the launches in the words of a plan; `variant_of` knows kernels by their numbers."""
    launches, at = [], plan_words.LAUNCHES
    for _ in range(words[plan_words.N_LAUNCHES]):
        kernel, *sizes, n_pointers, n_values = words[at : at + plan_words.N_VALUES + 1]
        begin = at + plan_words.CONTENT
        at = begin + 2 * n_pointers + n_values
        pointers = [(words[i], words[i + 1]) for i in range(begin, begin + 2 * n_pointers, 2)]
        launches.append(WordLaunch(variant_of(kernel), *sizes, pointers, words[begin + 2 * n_pointers : at]))
    assert at == words[plan_words.END]
    return launches


class Recorder:
    """Stands for the driver, and keeps what it is asked to launch."""

    def __init__(self):
        self.asked, self._variants, self.n_values = [], [], {}
        self._launch = inside.launch
        recorder = self

        class Frame(self._launch._Frame):
            """A frame of which the number of values is known."""

            def __init__(self, sizes, is_early, values):
                super().__init__(sizes, is_early, values)
                recorder.n_values[self.config] = len(values)

        self.frame = Frame

    def load(self, variant, target):
        """Return a kernel without code."""
        self._variants.append(variant)
        return self._launch.DeviceKernel(len(self._variants), target)

    def entry(self, config, function, addresses, extra):
        """Take a launch, as ``cuLaunchKernelEx`` does."""
        given, variant = Config.from_address(config), self._variants[function - 1]
        assert (*given.grid[1:], *given.block[1:], given.stream, extra) == (1, 1, 1, 1, STREAM, 0)
        is_early, cluster = given.is_early_and_cluster()
        assert cluster <= variant.cluster
        assert given.grid[0] % cluster == 0
        n_values = self.n_values[config]
        values = iter(values_at(addresses, n_values))
        arguments = {name: _read(kind, values) for name, kind in _parameters(variant).items()}
        assert next(values, None) is None, f"{variant.label} takes fewer than {n_values} values"
        named = {}
        for name, value in _by_name(arguments):
            # A member of a parameter does not hide another parameter.
            named.setdefault(name, value)
        sizes = given.grid[0], given.block[0], given.shared_bytes
        self.asked.append(Asked(variant, *sizes, is_early, cluster, named))
        return 0


def compiled_plan(operator, n_inputs=2):
    """Return the compiled plan of an operator, which takes the addresses of its inputs and of its words."""
    source = f"{inside.cuda_kernels(operator, 'plan').__name__}:plan"
    kernel = inside.Kernel(f"cuda_{operator}_plan", source, (inside.INTEGERS,) * (n_inputs + 1))
    return inside.link(inside.compile_kernel(kernel))


def values_at(addresses, n_values):
    """Return the values that a launch passes; each is where a table of addresses says."""
    places = (ctypes.c_void_p * n_values).from_address(addresses)
    return [ctypes.c_int64.from_address(place).value for place in places]


@contextmanager
def driver_replaced(stand_in):
    """Have kernels loaded and launched by the methods ``load`` and ``entry`` of a stand-in for the driver."""
    launch = inside.launch
    with (
        mock.patch.object(launch, "load", functools.cache(stand_in.load)),
        mock.patch.object(launch, "_driver_version", return_value=12_090),
        mock.patch.object(launch, "launch_entry", return_value=stand_in.entry),
    ):
        yield


class Planned(NamedTuple):
    """A plan, the addresses that it is launched with, and what it then launches."""

    plan: Any
    addresses: tuple[int, ...]
    workspace: int
    asked: list[Asked]


def planned(
    descriptor,
    options=None,
    *,
    arch="sm_90",
    leads=(0, 0, 0),
    multiprocessors=132,
    call="launch",
    at=None,
    load_plan=None,
    **arguments,
):
    """Plan a descriptor for a GPU and launch it, with made-up addresses unless they are given.

    Parameters
    ----------
    descriptor : Descriptor
        What is planned.
    options : mapping or Options, optional
        What functions ask for beyond it, by name.
    arch : str
        The architecture.
    leads : tuple of int
        How many bytes after a multiple of 256 each operand begins.
    multiprocessors : int
        How many the GPU has.
    call : {"launch", "count", "expand", "check"}
        The plan's step that is launched.
    at : sequence of int, optional
        The addresses of the operands and of the workspace.
    load_plan : callable, optional
        Compiles plans, which run as Python otherwise.
    **arguments
        What the kernels' `plan` takes besides the problem: an algorithm, a policy.
    """
    target = inside.variant.Target(0, arch, multiprocessors, SHARED_BYTES[arch], load_plan=load_plan)
    lowest = descriptor.lower()
    operator = dispatch.OPERATORS[type(lowest)]
    kernels = inside.cuda_kernels(operator.name)
    options = options if isinstance(options, Options) else Options(**options or {})
    fields = [
        field for field in operator.operands if getattr(options, field, True) is not None
    ]  # an absent operand has an address, too, unless it is an option
    n_operands = len(fields)
    all_leads = (*leads, *(0 for _ in range(n_operands)))
    addresses = tuple((1 + i) * APART + all_leads[i] for i in range(n_operands))
    workspace = (1 + n_operands) * APART
    if at is not None:
        *addresses, workspace = at
    recorder = Recorder()
    with driver_replaced(recorder), mock.patch.object(recorder._launch, "_Frame", recorder.frame):
        plan = kernels.plan(operator.problem(lowest, options), target, **arguments)
        changes, given = {
            "launch": ({}, addresses),
            "count": (COUNTING, (addresses[0], 0, addresses[-1])),
            "expand": (expanding(ROWS), (*addresses[:2], 0)),
            "check": (CHECKING, (0, addresses[1], 0)),
        }[call]
        plan.step(changes, STREAM, *given, workspace)
    return Planned(plan, addresses, workspace, recorder.asked)


def top_k(sizes, k, axis=-1, data_type=T.FLOAT32, index_type=T.INT64, strides=None):
    """Describe a selection."""
    axis %= len(sizes)
    selected = (*sizes[:axis], k, *sizes[axis + 1 :])
    return TopK1(
        input_tensor=TensorDesc(data_type, sizes, strides),
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING,
        output_value_tensor=TensorDesc(data_type, selected),
        output_index_tensor=TensorDesc(index_type, selected),
    )


def nonzero(sizes, strides=None, data_type=T.FLOAT32):
    """Describe a search."""
    x = TensorDesc(data_type, sizes, strides)
    return NonzeroCoordinates(
        input_tensor=x,
        output_coordinates_tensor=TensorDesc(T.INT64, (x.element_count, len(sizes))),
        output_count_tensor=TensorDesc(T.INT64, (1,)),
    )


TOP_K = {
    # name: (sizes, k, axis, areas that there must be at least)
    "one_long_row": ((1, 1 << 24), 100, 1, 2),
    "some_long_rows": ((5, 1 << 20), 1000, 1, 2),
    "parts_of_a_row": ((1, (1 << 31) + 9), 4000, 1, 4),
    "parts_of_rows": ((3, (1 << 31) + 9), 2000, 1, 4),
    "longer_than_32_bits": ((1, (1 << 33) + 5), 300, 1, 4),
    "side_by_side": ((3, 50_257, 256), 50, 1, 2),
    "columns": ((1 << 16, 1 << 13), 16, 0, 0),
    "long_columns": ((1 << 20, 1 << 10), 2, 0, 2),
    "sorted": ((7, 100_003), 100_003, 1, 4),
    "sorted_in_batches": ((700, 100_003), 50_000, 1, 4),
    "filtered": ((3, 1_000_003), 20_000, 1, 4),
    "filtered_in_batches": ((700, 100_003), 20_000, 1, 4),
    "sorted_of_30_bits": ((1, 1 << 30), 1 << 30, 1, 4),
    "sorted_beyond_30_bits": ((1, (1 << 30) + 77), (1 << 30) + 77, 1, 4),
    "sorted_beyond_32_bits": ((1, (1 << 32) + 77), 1 << 20, 1, 4),
    "many_rows": ((1 << 31, 3), 1, 1, 0),
    "many_rows_of_blocks": ((1 << 20, 5000), 20, 1, 0),
    "many_tiles": ((1 << 18, 5000), 5000, 1, 0),
}
