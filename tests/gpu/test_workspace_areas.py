"""Each area of a workspace has its own fence: no kernel writes outside its area."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from kernels_cuda.nonzero_coordinates import launches as nonzero_launches
from kernels_cuda.top_k.shared import launches
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.gpu.memory import execute
from tests.random_cases import random_case

GAP = 512


@contextmanager
def areas_apart():
    """Have plans leave gaps between the areas of their workspaces; serve the list of these gaps."""
    gaps, n_bytes = [], 0
    take, aligned = launches.Workspace.take, nonzero_launches._aligned

    def take_apart(workspace, size):
        piece = take(workspace, size)
        gaps.append((workspace.size, workspace.size + GAP))
        workspace.size += GAP
        return piece

    def aligned_apart(size):
        nonlocal n_bytes
        n_bytes += aligned(size) + GAP
        gaps.append((n_bytes - GAP, n_bytes))
        return aligned(size) + GAP

    with (
        mock.patch.object(launches.Workspace, "take", take_apart),
        mock.patch.object(nonzero_launches, "_aligned", aligned_apart),
    ):
        yield gaps


@pytest.mark.parametrize(
    ("operator", "algorithm"),
    [
        (operator, algorithm)
        for operator in ("top_k", "nonzero_coordinates")
        for algorithm in ALGORITHMS[operator]
    ],
    ids=str,
)
def test_nothing_is_written_between_areas(operator, algorithm):
    n_served = 0
    for number in range(-1, -13, -1):
        case = random_case(operator, number)
        try:
            with forced(algorithm), areas_apart() as gaps:
                execute(case, np.random.default_rng(-number), gaps=gaps)
        except CannotServeError:
            continue
        n_served += 1
    assert n_served
