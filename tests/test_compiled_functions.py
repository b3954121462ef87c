"""Plain Python functions of integers, of which plans consist, as they are compiled."""

from array import array

from kernels_cpu.compiler import compile_kernel
from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cpu.linking import link
from kernels_cpu.plan_compiler import POINTER, plan_ir


def weighted(number, weight, is_negative=False):
    """Return a product."""
    return -number * weight if is_negative else number * weight


def weigh(words):
    """Call a function with constants and variables."""
    words[0] = weighted(words[0], 3) + weighted(5, words[1]) + weighted(7, 11)
    words[1] = weighted(words[1], 4, is_negative=True) + weighted(2, 3, is_negative=words[2] > 0)
    return 0


def test_functions_are_compiled_once_whatever_constants_they_are_called_with():
    compiled = link(compile_kernel(Kernel("weigh", f"{__name__}:weigh", (INTEGERS,))))
    found, expected = array("q", [10, 100, 1]), [10, 100, 1]
    assert compiled(found.buffer_info()[0]) == weigh(expected)
    assert list(found) == expected
    assert plan_ir(weigh, [POINTER], "entry").count("@weighted") == 6  # its definition, and five calls
