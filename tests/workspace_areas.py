"""Plans for a GPU with gaps between the areas of their workspaces, which no kernel may write to."""

from contextlib import contextmanager
from unittest import mock

from kernels_cpu.plan_words import WORKSPACE
from kernels_cuda.nonzero_coordinates import launches as nonzero_launches
from kernels_cuda.top_k.shared import launches

GAP = 512


@contextmanager
def areas_apart():
    """Have plans leave gaps between the areas of their workspaces; serve the list of these gaps."""
    gaps, n_bytes = [], 0
    take, aligned = launches.take_workspace, nonzero_launches._aligned

    def take_apart(words, size, alignment):
        begin = take(words, size, alignment)
        gaps.append((words[WORKSPACE], words[WORKSPACE] + GAP))
        words[WORKSPACE] += GAP
        return begin

    def aligned_apart(size):
        nonlocal n_bytes
        n_bytes += aligned(size) + GAP
        gaps.append((n_bytes - GAP, n_bytes))
        return aligned(size) + GAP

    with (
        mock.patch.object(launches, "take_workspace", take_apart),
        mock.patch.object(nonzero_launches, "_aligned", aligned_apart),
    ):
        yield gaps
