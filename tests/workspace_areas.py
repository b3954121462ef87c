"""Plans for a GPU with gaps between the areas of their workspaces, which no kernel may write to."""

from contextlib import contextmanager
from unittest import mock

from kernels_cuda.nonzero_coordinates import launches as nonzero_launches
from kernels_cuda.top_k.shared import launches

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
