"""Plans on the host: compiled and as plain Python, they write the same words; these name known kernels."""

import functools
from random import Random

import numpy as np
import pytest

from tests import inside
from tests.inside import cpu, plan_words
from tests.marks import exhaustive, nightly
from tests.plan_problems import PROBLEMS

CHANGES = {"gather_nd": [{"CHECKS": 1}], "nonzero_coordinates": [{"STEP": 1}, {"STEP": 2}]}
"""Words that ask for another step of an operator than its whole."""


def random_host(rng):
    """Return a number of threads, and the bytes from which on outputs are written past the caches."""
    return rng.choice((1, 1, 2, 3, 16, rng.randrange(1, 65))), rng.choice((1 << 20, 1 << 24))


@functools.cache
def part_of(operator, name):
    return inside.cpu_kernels(operator, name)


def problems(operator, n):
    """Yield the words of random problems and of their hosts."""
    rng = Random(f"{operator} {n}")  # scalars of NumPy's generators take several times as long
    given = part_of(operator, "problem_words")
    for number in range(n):
        problem = PROBLEMS[operator](rng)
        if "x_offset" in problem._fields:  # which plans for the host allow alone
            problem = problem._replace(x_offset=rng.choice((0, 0, 5, 2**40)))
        if operator == "gather_nd" and problem.bounds and rng.random() < 0.03:
            problem = problem._replace(bounds=((0, 1), *problem.bounds[1:]))
        words = given.problem_words(problem)
        changes = [{}, *CHANGES.get(operator, [])]
        for name, value in changes[number % len(changes)].items():
            words[getattr(given, name)] = value
        yield words, random_host(rng)


def launches(words):
    """Yield the kernel, the tasks and the units of each launch of a plan."""
    at = plan_words.LAUNCHES
    for _ in range(words[plan_words.N_LAUNCHES]):
        kernel, n_tasks, n_units = (
            words[at + i] for i in (plan_words.KERNEL, plan_words.GRID, plan_words.BLOCK)
        )
        yield kernel, n_tasks, n_units
        n_pointers, n_values = words[at + plan_words.N_POINTERS], words[at + plan_words.N_VALUES]
        at += plan_words.CONTENT + 2 * n_pointers + n_values
    assert at == words[plan_words.END]


@pytest.mark.parametrize("n", [1500, exhaustive(20_000), nightly(100_000)])
@pytest.mark.parametrize("operator", PROBLEMS)
def test_compiled_and_plain_plans_write_the_same_words(operator, n):
    plans = part_of(operator, "plan")
    compiled = cpu.load(inside.cpu_kernels(operator).PLAN)
    plain, written = [0] * plan_words.MAX_WORDS, np.zeros(plan_words.MAX_WORDS, np.int64)
    for words, host in problems(operator, n):
        arrays = np.array(words, np.int64), np.array(host, np.int64)
        status = plans.plan(words, host, plain)
        assert compiled(0, *[array.ctypes.data for array in (*arrays, written)]) == status == 0, words
        end = plain[plan_words.END]
        assert written[:end].tolist() == plain[:end], words


@pytest.mark.parametrize("operator", PROBLEMS)
def test_plans_name_known_kernels_and_leave_no_task_without_work(operator):
    kernels = inside.cpu_kernels(operator)
    plan = part_of(operator, "plan").plan
    known = set(kernels.all_kernels())
    out = [0] * plan_words.MAX_WORDS
    used = set()
    for words, host in problems(operator, 1500):
        plan(words, host, out)
        for key, n_tasks, n_units in launches(out):
            kernel = kernels.kernel_of(key)
            used.add(kernel)
            assert kernel in known, words
            assert n_tasks >= 1, words
            step = -(-n_units // n_tasks)
            assert (n_tasks - 1) * step < n_units <= n_tasks * step, words
    assert len(used) > len(known) // 2


def test_a_workspace_beyond_every_address_space_is_asked_for_as_such():
    """No launch can follow, as nobody can allocate it."""
    operator = "top_k"
    rng = Random(operator)
    given, plans = part_of(operator, "problem_words"), part_of(operator, "plan")
    out = [0] * plan_words.MAX_WORDS
    rows = {"rows": (), "length_strides": (), "start_strides": (), "number_strides": ()}
    problem = PROBLEMS[operator](rng)._replace(k=2**50, axis_size=2**51, max_length=None, **rows)
    assert plans.plan(given.problem_words(problem), (2, 1 << 24), out) == 0
    assert out[plan_words.WORKSPACE] == 2**63 - 1
    assert out[plan_words.N_LAUNCHES] == 0
