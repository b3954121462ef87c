"""The plan of rows that several threads sort together, row by row; `shared_sort` has the kernels."""

from collections.abc import Callable

from kernels_cpu import threads as pool
from kernels_cpu.kernel import BYTES, INTEGER, Arguments, Kernel, LoadedKernel, Table, packed, pointer
from kernels_cpu.target import Target

_ARGUMENTS = {
    "list_part": 6 * (INTEGER,),
    "plan_passes": 2 * (INTEGER,),
    "count_part": 6 * (INTEGER,),
    "find_offsets": 5 * (INTEGER,),
    "scatter_part": 6 * (INTEGER,),
    "write_part": (*5 * (INTEGER,), INTEGER, INTEGER, BYTES, INTEGER),
}


def shared_sort_kernels(element_size: int) -> dict[str, Kernel]:
    """Return the kernels, by the names of their functions."""
    keys = pointer("i", element_size)
    return {
        name: Kernel(f"top_k_sort_{name}", f"kernels_cpu.top_k.shared_sort:{name}", (keys, *arguments))
        for name, arguments in _ARGUMENTS.items()
    }


def shared_sort_launcher(
    table: Table, element_size: int, n_rows: int, axis_size: int, k: int, n_parts: int, target: Target
) -> Callable[[int, int, int, int], None]:
    """Return a function that sorts one row after the other, each in `n_parts` parts."""
    kernels = {name: target.load(kernel) for name, kernel in shared_sort_kernels(element_size).items()}
    parts = _parts(axis_size, n_parts)
    results = _parts(k, n_parts)

    def run(name: str, blocks: list[Arguments]) -> None:
        pool.run(kernels[name].call, [packed(block) for block in blocks])

    def ask(name: str, *arguments: int) -> int:
        kernel: LoadedKernel = kernels[name]
        return kernel(table.address, *arguments)

    def launch(x: int, values: int, indices: int, workspace: int) -> None:
        for row in range(n_rows):
            run("list_part", [(table, row, *part, x, workspace) for part in parts])
            n_passes = ask("plan_passes", len(parts), workspace)
            is_moved = 0
            for number in range(n_passes):
                numbered: list[Arguments] = [(table, number, is_moved, *part, workspace) for part in parts]
                run("count_part", numbered)
                if ask("find_offsets", len(parts), axis_size, is_moved, number == n_passes - 1, workspace):
                    run("scatter_part", numbered)
                    is_moved ^= 1
            addresses = x, values, indices, workspace
            run("write_part", [(table, row, is_moved, *part, *addresses) for part in results])

    return launch


def _parts(n: int, n_parts: int) -> list[tuple[int, int, int]]:
    return [(first, last, part) for part, (first, last) in enumerate(pool.split(n, n_parts))]
