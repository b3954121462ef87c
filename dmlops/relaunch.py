"""A launch on a GPU like one before: one call of compiled code looks at the addresses, and launches.

What a library is asked for with every launch, its stream and the addresses of its arrays, is all that is left
to Python.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dmlops import cuda
from dmlops.memory import Clash, aligned


def _nothing(*addresses: int) -> int:
    return -1


def relauncher(
    plan: Any,
    ranged_launch: Callable[[Sequence[int], int, int], None] | None,
    current_stream: Callable[[], int],
    addresses_of: Callable[[Sequence[Any]], Sequence[Any]],
    clashes: Sequence[Clash],
    *,
    n_operands: int,
    has_workspace: bool,
) -> Callable[[Sequence[Any]], bool]:
    """Return what launches a plan on arrays that were checked once: all but their addresses.

    Parameters
    ----------
    plan : Plan
        Of one of the packages in kernels_cuda.
    ranged_launch : callable, optional
        Launches as CompiledOperator.launch does, where a profiler is to see a range.
    current_stream, addresses_of : callable
        The library's, for arrays of these kinds.
    clashes : sequence of (first, second, above, below)
        Arrays that must be apart; see `dmlops.memory.clash_of`.
    n_operands : int
        How many arrays are the operator's operands.
    has_workspace : bool
        Whether the array after them is its workspace.

    Returns
    -------
    callable
        It takes the arrays, and returns False, with nothing done, where they may share memory.
    """
    launch_module = cuda.launcher("relaunch")
    pairs = tuple(clashes)
    workspace = n_operands if has_workspace else launch_module.NOTHING
    # Lists of launches as one call each, by what addresses are modulo the plan's alignment.
    lists: dict[tuple[int, ...], Callable[..., int]] = {}
    last: Callable[..., int] = _nothing

    def launch_again(arrays: Sequence[Any]) -> bool:
        stream, addresses = current_stream(), addresses_of(arrays)
        # Stars would take Python longer.
        if len(addresses) == 3:
            a, b, c = addresses
            d = 0
        elif len(addresses) == 2:
            a, b = addresses
            c = d = 0
        else:
            a, b, c, d = addresses
        if last(stream, a, b, c, d) == 0:
            return True
        return launch(stream, addresses)

    def launch(stream: int, addresses: Sequence[int]) -> bool:
        for i, j, above, below in pairs:
            if above < addresses[j] - addresses[i] < below:
                return False
        memory = aligned(addresses[n_operands]) if has_workspace else 0
        operands = addresses[:n_operands]
        if ranged_launch is not None:
            ranged_launch(operands, memory, stream)
        else:
            plan.launch(stream, *operands, memory)
            remember(operands)
        return True

    def remember(operands: Sequence[int]) -> None:
        nonlocal last
        leads = tuple(address % plan.alignment for address in operands)
        if leads not in lists:
            launches = plan.launches(*operands)
            call = launches and launches.guarded(launch_module.Guard(leads, plan.alignment, pairs, workspace))
            if call is None:
                return
            lists[leads] = call
        last = lists[leads]

    return launch_again
