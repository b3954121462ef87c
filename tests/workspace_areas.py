"""Plans for a GPU with gaps between the areas of their workspaces, which no kernel may write to."""

from contextlib import contextmanager
from unittest import mock

from tests import inside
from tests.inside import cpu, launches, plan_words

nonzero_plan = inside.cuda_kernels("nonzero_coordinates", "plan")

GAP = 512


@contextmanager
def areas_apart():
    """Have plans leave gaps between the areas of their workspaces; serve the list of these gaps."""
    gaps, take = [], launches.take_workspace

    def take_apart(words, size, alignment):
        begin = take(words, size, alignment)
        # A plan of several selections may use the areas of an earlier one again, and the gaps between them.
        gaps[:] = [gap for gap in gaps if gap[1] <= begin]
        gaps.append((words[plan_words.WORKSPACE], words[plan_words.WORKSPACE] + GAP))
        words[plan_words.WORKSPACE] += GAP
        return begin

    with (
        mock.patch.object(cpu, "compiles_plans", return_value=False),
        mock.patch.object(launches, "take_workspace", take_apart),
        mock.patch.object(nonzero_plan, "take_workspace", take_apart),
    ):
        yield gaps
