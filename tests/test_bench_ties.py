"""How the benchmark judges answers to tied data; needs torch, but no GPU."""

import pytest

from bench.contests import Contract
from bench.suites import SUITES
from bench.ties import BY_INDEX, BY_VALUE, NO_ORDER, STABLE, Ties, problems
from bench.workloads import CUDA

torch = pytest.importorskip("torch")

# The three largest of a row are 5, 5 and any of four elements that are 3.
X = torch.tensor([[3.0, 5, 3, 1, 3, 5, 3]])
K = 3


def judged(*runs, has_values=True):
    """Return what is said of kernels that return these indices, run by run."""
    ties = Ties("kernel", is_sorted=True)
    indices = [torch.tensor([run], dtype=torch.int32) for run in runs]
    ties.add(X, K, [(X.gather(1, each.long()), each) if has_values else each for each in indices])
    return ties


@pytest.mark.parametrize(
    ("runs", "order", "contract"),
    [
        (([1, 5, 0], [1, 5, 0]), STABLE, Contract.STABLE),
        (([1, 5, 0], [5, 1, 0]), BY_VALUE, Contract.SORTED),
        (([5, 1, 6], [5, 1, 6]), BY_VALUE, Contract.SORTED),
        (([0, 1, 5], [0, 1, 5]), BY_INDEX, Contract.ANY),
        (([0, 1, 5], [1, 0, 5]), NO_ORDER, Contract.ANY),
    ],
)
def test_order_decides_the_contest(runs, order, contract):
    ties = judged(*runs)
    assert (ties.wrong, ties.order, ties.contract) == (0, order, contract)
    assert ties.varied == (runs[0] != runs[1])


@pytest.mark.parametrize(
    ("indices", "value"),
    [([1, 5, 3], 3), ([1, 1, 5], 3), ([1, 5, 7], 3), ([1, 5, 0], 2)],
    ids=["too small", "twice", "outside", "values of others"],
)
def test_a_wrong_answer_in_any_run_stands_in_no_contest_of_values(indices, value):
    runs = ([1, 5, 0], 3), (indices, value)
    ties = Ties("kernel", is_sorted=True)
    ties.add(X, K, [(torch.tensor([[5.0, 5, last]]), torch.tensor([run])) for run, last in runs])
    assert (ties.wrong, ties.varied, ties.contract) == (1, indices != [1, 5, 0], Contract.OPEN)
    ties = judged([1, 5, 0], [1, 5, 0], has_values=False)
    assert (ties.has_values, ties.wrong, ties.order, ties.contract) == (False, 0, STABLE, Contract.OPEN)


def test_the_weakest_answer_counts():
    ties = judged([1, 5, 0])
    ties.add(X, K, [(X.gather(1, each), each) for each in (torch.tensor([[5, 1, 0]]),)])
    assert (ties.problems, ties.order, ties.contract) == (2, BY_VALUE, Contract.SORTED)


def test_ties_are_asked_for_in_problems_that_are_timed():
    columns = {(each.shape[1], each.k) for each in SUITES["serving"].workloads(CUDA)}
    for is_sorted in (True, False):
        for problem in problems(is_sorted):
            assert (problem.shape[1], problem.k) in columns
            assert problem.is_sorted == is_sorted
