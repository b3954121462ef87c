"""CUDA plans give the same words as plain Python functions and as compiled ones."""

import functools
import random
from array import array

import pytest

from tests import inside
from tests.cuda_plans import compiled_plan
from tests.inside import Target, device_words, plan_words
from tests.marks import nightly
from tests.plan_problems import random_problem

pytest.importorskip("cuda.core")

# Values for words of problems. Residues are the bytes between a 16-byte boundary and the operand's begin.
VARIED = {
    "gather_nd": {"CHECKS": (0, 0, 1), "X_RESIDUE": (0, 0, 1, 2, 4, 8), "OUTPUT_RESIDUE": (0, 0, 1, 4, 8)},
    "nonzero_coordinates": {"STEP": (0, 0, 1, 2), "X_RESIDUE": (0, 0, 8), "COORDINATE_RESIDUE": (0, 0, 4, 8)},
    "sample": {},
    "diagonal_matrix": {"X_RESIDUE": range(16), "OUTPUT_RESIDUE": (0, 0, 4, 8, 12)},
}
# Room for the launches that most plans have.
ROOM = 4096
TARGET = Target(0, "sm_90", 132, 99 << 10)


def words_module(operator):
    """Return the module of the words of an operator's problem."""
    return inside.cpu_kernels(operator, "problem_words")


def package(operator):
    """Return the package of an operator's kernels."""
    return inside.cuda_kernels(operator)


def measured_on(operator, target):
    """Return the words of what was measured on a device, of which many operators have none."""
    return [package(operator).measured_on(target)] if hasattr(package(operator), "measured_on") else []


def plan_module(operator):
    """Return the module of an operator's plan."""
    return inside.cuda_kernels(operator, "plan")


@functools.cache
def compiled(operator):
    """Return the compiled plan of an operator, which takes addresses."""
    return compiled_plan(operator, 2 + len(measured_on(operator, TARGET)))


def random_words(operator, seed):
    """Return the words of a random problem, of a random device with a policy, and of what was measured."""
    rng = random.Random(seed)
    words = words_module(operator).problem_words(random_problem(operator, seed))
    for word, values in VARIED[operator].items():
        words[getattr(words_module(operator), word)] = rng.choice(values)
    target = Target(0, rng.choice(("sm_75", "sm_90", "sm_120")), rng.choice((1, 20, 132)), 99 << 10)
    device = package(operator).plan_device(target)
    device[device_words.ROOM] = ROOM if rng.random() < 0.9 else rng.randrange(plan_words.LAUNCHES + 200, 600)
    policy = plan_module(operator).Policy()
    if rng.random() < 0.5:
        # Lower thresholds; kernels rely on many of them to be no higher.
        device[-len(policy) :] = [rng.choice((value, value, 1, rng.randint(1, value))) for value in policy]
    return [words, device, *measured_on(operator, target)]


def check_plan(operator, seed):
    """Compare the compiled plan of a random problem with the plain one; return the status of both."""
    inputs = random_words(operator, seed)
    made, expected = array("q", [-7] * (ROOM + 1)), [-7] * (ROOM + 1)
    places = [array("q", given) for given in inputs]
    status = plan_module(operator).plan(*inputs, expected)
    addresses = [each.buffer_info()[0] for each in (*places, made)]
    assert compiled(operator)(*addresses) == status, seed
    end = expected[plan_words.END]
    assert list(made[:end]) == expected[:end], seed
    # Nothing is written behind the room that there is.
    assert set(made[max(end, inputs[1][device_words.ROOM]) :]) <= {-7}, seed
    return status


@pytest.mark.parametrize("operator", VARIED)
@pytest.mark.parametrize("n_problems", [3000, nightly(100_000)])
def test_compiled_plans_give_the_words_of_plain_ones(operator, n_problems):
    statuses = {check_plan(operator, seed) for seed in range(n_problems)}
    assert statuses == {device_words.PLANNED, device_words.TOO_LONG}


def test_positions_in_the_largest_arrays_need_no_more_than_64_bits():
    # 2**63 - 2 contiguous elements that begin between two 16-byte boundaries.
    check_plan("nonzero_coordinates", 37350)
