"""The one choice of an algorithm, and the plan that launches it."""

from dataclasses import dataclass
from typing import Any

from kernels_cuda.diagonal_matrix import launches
from kernels_cuda.diagonal_matrix.kernels import kernel
from kernels_cuda.diagonal_matrix.launches import Part
from kernels_cuda.diagonal_matrix.parameters import (
    THREADS,
    VECTOR,
    Dims,
    ElementsParameters,
    elements_per_thread,
)
from kernels_cuda.diagonal_matrix.policy import Policy
from kernels_cuda.diagonal_matrix.problem import Band, Problem
from kernels_cuda.layout import NARROW_DEPTH, NARROW_LIMIT, WideLaunch, ceil_div, divisor, is_wide, make_table
from kernels_cuda.runtime.launch import LaunchList, load
from kernels_cuda.runtime.variant import Target

ROWS, STRIDED, TRANSPOSED, ELEMENTS = "rows", "strided", "transposed", "elements"
# The transposed kernel counts rows and diagonals in 31 bits.
_MOST_TRANSPOSED_ROWS = 1 << 29


def choose(problem: Problem, policy: Policy) -> str:
    """Choose the algorithm for a problem whose output has contiguous columns, if its rows or columns are."""
    fits_rows = policy.vector_row_bytes <= problem.row_bytes <= policy.longest_row_bytes
    if problem.output_strides[1] != 1 or not fits_rows or len(problem.batch) > NARROW_DEPTH:
        return ELEMENTS
    if problem.band.has_input and _is_transposed(problem, policy):
        return TRANSPOSED
    return STRIDED if problem.are_strided else ROWS


def _is_transposed(problem: Problem, policy: Policy) -> bool:
    """Return whether neighbours of the input are in the same column, and there are enough of them."""
    x_row, x_column = (abs(stride) for stride in problem.x_strides)
    has_rows = policy.transposed_rows <= problem.height <= _MOST_TRANSPOSED_ROWS
    return 0 < x_row < x_column and has_rows and launches.tiles(problem)[0] < NARROW_LIMIT


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernel; see `plan`.

    Where rows of the output may begin anywhere, one more vector covers them: `_aligned` is for an output on
    a 16-byte boundary, `_anywhere` for any. `_wide` is for what narrow kernels cannot count.
    """

    variant: str
    workspace_size: int
    _aligned: tuple[Part, ...] = ()
    _anywhere: tuple[Part, ...] = ()
    _wide: WideLaunch | None = None

    def launches(self, x: int, output: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        parts = self._anywhere if output % VECTOR else self._aligned
        is_one = self._wide is None and len(parts) == 1 and parts[0].x == parts[0].output == 0
        return parts[0].launch if is_one else None

    def launch(self, stream: int, x: int, output: int, workspace: int) -> None:
        """Write the output."""
        if self._wide is not None:
            self._wide(stream, workspace, x, output)
            return
        parts = self._anywhere if output % VECTOR else self._aligned
        for part in parts:
            part.launch(stream, x + part.x, output + part.output)


def plan(problem: Any, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernel that writes a band.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.diagonal_matrix`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    policy = policy or Policy()
    element_size, batch, output_strides = problem.element_size, problem.batch, problem.output_strides
    band = Band(problem.begin, problem.end, problem.inverted, problem.has_input, problem.value)
    matrices = Problem(
        element_size=element_size,
        batch=batch,
        height=problem.height,
        width=problem.width,
        x_strides=problem.x_strides,
        output_strides=output_strides,
        band=band,
    )
    if matrices.n_elements == 0:
        return Plan("diagonal_matrix: nothing to write", 0)
    if output_strides[1] != 1 and output_strides[0] == 1:
        matrices = matrices.transposed()
    algorithm = choose(matrices, policy)
    name = f"diagonal_matrix {8 * element_size}-bit {algorithm}"
    if algorithm == TRANSPOSED:
        parts: tuple[Part, ...] = (launches.transposed_part(matrices, target),)
        return Plan(name, 0, parts, parts)
    if algorithm == ELEMENTS:
        return _elements_plan(name, matrices, policy, target)
    strides = matrices.output_strides[0], *(stride for *_, stride in batch)
    is_every_row_aligned = all(stride * element_size % VECTOR == 0 for stride in strides)
    latest = VECTOR - element_size
    residues = 0 if is_every_row_aligned else latest, latest
    aligned, anywhere = (
        tuple(launches.rows_parts(matrices, policy, residue, target)) for residue in residues
    )
    return Plan(name, 0, aligned, anywhere)


def _elements_plan(name: str, problem: Problem, policy: Policy, target: Target) -> Plan:
    size = problem.element_size
    wide = is_wide(problem.n_elements, len(problem.batch), limit=policy.narrow_elements)
    loaded = load(kernel("elements", size, wide), target)
    table = make_table(Dims, problem.batch, (size, size), wide, target)
    n_blocks = ceil_div(problem.n_elements, THREADS * elements_per_thread(wide))
    width, height = divisor(problem.width, wide), divisor(problem.height, wide)
    parameters = ElementsParameters(problem.n_elements, width, height, problem.matrix)
    if wide:
        launch = WideLaunch(loaded, n_blocks, THREADS, parameters, table)
        return Plan(name, table.workspace_size, _wide=launch)
    parts = (Part(0, 0, loaded.prepare(n_blocks, THREADS, 0, 2, parameters, table.parameters())),)
    return Plan(name, 0, parts, parts)
