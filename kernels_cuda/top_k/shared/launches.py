"""What the launches of all algorithms have in common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.launch import NULL, WORKSPACE_ALIGNMENT, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import (
    AxisStrides,
    KeyFormat,
    LengthFormat,
    Problem,
    RowLayout,
    TableDimension,
    UnfoldedFormat,
)

# The pointer slots of a launch, in the order of the addresses that a plan is launched with.
X, VALUES, INDICES, WORKSPACE = range(4)
# The slot of the rows' lengths, if they have any: a plan takes them after x (`dispatch.WITH_LENGTHS`).
LENGTHS = WORKSPACE + 1
# The table of row offsets has four int64 for each row.
OFFSETS_BYTES = 32
OFFSETS_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits that tests lower, so that small problems meet them; each algorithm may have more."""

    # If at least this many rows lie side by side, lanes read one each; with fewer, most of what is loaded is
    # wasted.
    transposed_rows: int = 16
    # Longer rows have positions of 8 bytes in the workspace.
    narrow_axis_elements: int = 1 << 32
    # A launch has at most this many blocks.
    launch_blocks: int = 1 << 30

    def is_transposed(self, problem: Problem) -> bool:
        """Tell whether enough rows lie side by side for lanes to read one each."""
        return problem.rows.n_neighbours >= self.transposed_rows

    def position_bytes(self, problem: Problem) -> int:
        """Return the bytes of a position of a row in the workspace."""
        return 4 if problem.axis_size <= self.narrow_axis_elements else 8


class Launch(NamedTuple):
    """One kernel launch: blocks, threads per block, what the kernel takes, and blocks per cluster.

    `more` is what the kernel takes after its first parameters.
    """

    variant: Variant
    grid: int
    block: int
    pointers: tuple[Pointer, ...]
    parameters: Any
    shared_bytes: int = 0
    cluster: int = 1
    more: tuple[Any, ...] = ()


class RowParameters(NamedTuple):
    """First parameters of kernels that select from whole rows, the first of which has number `first`."""

    index_size: int
    first: int
    n_rows: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    length_format: LengthFormat


class UnservedError(ValueError):
    """Raised where an algorithm cannot serve a problem."""

    def __init__(self, problem: Problem, algorithm: str) -> None:
        super().__init__(
            f"top_k: algorithm {algorithm!r} does not take k {problem.k} of rows of {problem.axis_size}, "
            f"by {'value' if problem.is_sorted else 'index'}"
        )


class Workspace:
    """Gives out aligned pieces of the workspace; `size` bytes so far."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, n_bytes: int) -> Pointer:
        """Return the next piece."""
        piece = Pointer(WORKSPACE, self.size)
        self.size += ceil_div(n_bytes, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        return piece


class Algorithm(NamedTuple):
    """How an algorithm is launched. Its kernels also read row lengths if the problem has them.

    Attributes
    ----------
    launches : function
        Returns the launches that solve a problem; raises `UnservedError` if it does not take it.
    variants : function
        Lists the kernels for an element size.
    policy : Policy
        The limits that `launches` keeps to.
    orders_by_index : bool
        Whether its results come by ascending index where they are not to be sorted; results of the others
        are reordered.
    """

    launches: Callable[[Problem, Any, Workspace], list[Launch]]
    variants: Callable[[int], Iterator[Variant]]
    policy: Policy = Policy()
    orders_by_index: bool = True


def variant(name: str, factory: str, *parameters: int, **needs: Any) -> Variant:
    """Return a kernel of top-k, made by ``"module:function"`` of this package."""
    return Variant(f"top_k_{name}", f"kernels_cuda.top_k.{factory}", parameters, **needs)


def row_parameters(problem: Problem, **others: Any) -> RowParameters:
    """Return the first parameters of a kernel: `others`, and what the problem has of the rest.

    The first launch begins with row, block or unit number 0.
    """
    given = {"first": 0, **others}
    names = RowParameters._fields
    return RowParameters(*(given[name] if name in given else getattr(problem, name) for name in names))


def lengths_of(problem: Problem) -> Pointer:
    """Return where the rows' lengths are, if they have any."""
    return NULL if problem.lengths is None else Pointer(LENGTHS)


def operands_of(problem: Problem) -> tuple[Pointer, ...]:
    """Return where x, lengths, values and indices of all rows are."""
    return Pointer(X), lengths_of(problem), Pointer(VALUES), Pointer(INDICES)


def batches(count: int, largest: int) -> Iterator[tuple[int, int]]:
    """Split a number of rows or blocks into (first, how many)."""
    for first in range(0, count, largest):
        yield first, min(largest, count - first)


def launch_all(launch: Launch, policy: Policy) -> list[Launch]:
    """Split a launch into as many as its blocks need, each of which is told the first of its clusters."""
    if launch.grid <= policy.launch_blocks:
        return [launch]
    return [
        launch._replace(grid=n * launch.cluster, parameters=launch.parameters._replace(first=first))
        for first, n in batches(launch.grid // launch.cluster, max(1, policy.launch_blocks // launch.cluster))
    ]


def launch_rows(launch: Launch, problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Do the same for a kernel that takes x, lengths, values, indices and the table of row offsets."""
    offsets, launches = fill_offsets(problem, workspace)
    return launches + launch_all(launch._replace(pointers=(*operands_of(problem), offsets)), policy)


class OffsetsParameters(NamedTuple):
    """Parameters of `rows.add_dimension`."""

    n_rows: int
    is_first: int
    dimension: TableDimension


def offsets_variant() -> Variant:
    """Return the kernel that fills the table of row offsets."""
    return variant("offsets", "shared.rows:offsets_kernel")


def fill_offsets(problem: Problem, workspace: Workspace) -> tuple[Pointer, list[Launch]]:
    """Return where the table of row offsets is, if the rows need one, and what fills it."""
    if not problem.rows.table:
        return NULL, []
    offsets = workspace.take(problem.n_rows * OFFSETS_BYTES)
    return offsets, [
        Launch(
            offsets_variant(),
            ceil_div(problem.n_rows, OFFSETS_THREADS),
            OFFSETS_THREADS,
            (offsets,),
            OffsetsParameters(n_rows=problem.n_rows, is_first=int(number == 0), dimension=dimension),
        )
        for number, dimension in enumerate(problem.rows.table)
    ]
