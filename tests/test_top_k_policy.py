"""The policy of top_k on CUDA as a value, and the script that measures it; needs no GPU."""

import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")
policies = importlib.import_module("kernels_cuda.top_k.policy")
dispatch = importlib.import_module("kernels_cuda.top_k.dispatch")
Target = importlib.import_module("kernels_cuda.runtime.variant").Target
Policy = policies.Policy

KIB = 1 << 10


@pytest.mark.parametrize(
    ("capability", "block_bytes", "n_shapes"),
    [((7, 5), 64 * KIB, 2), ((8, 0), 163 * KIB, 4), ((8, 6), 99 * KIB, 4), ((9, 0), 227 * KIB, 4)],
)
def test_what_a_block_may_have(capability, block_bytes, n_shapes):
    for element_size in (1, 2, 4, 8):
        policy = Policy.auto(capability, element_size)
        assert policy.block_bytes == block_bytes
        assert len(policy.block.shapes) == n_shapes
        assert all(shape.shared_bytes <= block_bytes for shape in policy.block.shapes)
        assert all(tile.shared_bytes(element_size) <= block_bytes for tile in policy.tile.shapes)


def test_devices_that_are_not_known_have_what_all_have():
    assert Policy.auto((8, 8), 4).block_bytes == 99 * KIB
    assert Policy.auto((13, 7), 4).block_bytes == 99 * KIB
    assert Policy.auto((7, 3), 4).block_bytes == 64 * KIB


def test_a_policy_is_a_value():
    policy = Policy.auto((9, 0), 4)
    assert hash(policy) == hash(Policy.auto((9, 0), 4))
    changed = policy.changed({"columns.largest_k": 5, "launch_blocks": 7})
    assert changed.values() == policy.values() | {"columns.largest_k": 5, "launch_blocks": 7}
    assert changed != policy
    assert policy.columns.largest_k == 64
    with pytest.raises(TypeError):
        policy.changed({"columns.no_such_value": 5})


def test_the_package_describes_every_module():
    package = importlib.import_module("kernels_cuda.top_k")
    modules = {path.stem for path in Path(package.__file__).parent.glob("[!_]*.py")}
    assert modules <= set(re.findall(r"`(\w+)`", package.__doc__))


def planned(script, problem, side, element_size, policy):
    """Return the launches of one side of a threshold, or None if it does not serve a problem."""
    seen = []

    class Plan:
        def __init__(self, variant, workspace_size, launches, target):
            seen.append(launches)

    target = Target(0, "sm_90", 132, 227 * KIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Plan", Plan)
        try:
            dispatch.plan(
                **script.keywords(problem, element_size),
                target=target,
                policy=policy.changed(side.changes),
                algorithm=side.algorithm,
            )
        except ValueError:
            return None
    return seen[0]


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_both_sides_of_each_threshold_can_be_measured(element_size, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "bench")
    monkeypatch.delitem(sys.modules, "top_k_policy", raising=False)
    script = importlib.import_module("top_k_policy")
    policy = Policy.auto((9, 0), element_size)
    for threshold in script.thresholds(policy, 132):
        assert script.value_of(policy, threshold.name) is not None
        both = 0
        for value in threshold.values:
            problem = threshold.problem(value)
            below, above = (
                planned(script, problem, side, element_size, policy)
                for side in (threshold.below, threshold.above)
            )
            if below and above:
                assert below != above, threshold.name
                both += 1
        assert both >= 3, threshold.name


@pytest.fixture
def choices(monkeypatch):
    """Return the script that times all algorithms."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "bench")
    return importlib.import_module("top_k_choices")


def test_problems_of_all_sizes(choices):
    problems = list(choices.problems())
    assert len(problems) == len(set(problems)) > 1000
    assert {problem.sizes[0] for problem in problems} == {*choices.ROWS}
    assert all(problem.k <= problem.sizes[1] for problem in problems)
    assert {problem.is_sorted for problem in choices.problems([1])} == {True, False}


def test_choices_that_lose(choices, capsys):
    def choice(length, **times):
        return choices.Choice(choices.Problem((4, length), 1, 8), 4, "warp", times)

    few, more = choice(512, warp=2.0, block=4.0), choice(1024, warp=5.0, block=4.0)
    noise, alone = choice(2048, warp=4.1, block=4.0), choice(4096, warp=9.0)
    assert [each.ranking[0] for each in (few, more, noise, alone)] == ["warp", "block", "block", "warp"]
    assert [each.loss for each in (few, more, alone)] == [1.0, 1.25, 1.0]
    assert [each.lead for each in (few, more, alone)] == [2.0, 1.25, 1.0]
    found = [more, noise, few, alone]
    choices.print_losses(found)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "1 of 4 problems lose 5% or more by the choice"
    assert lines[1].split(": ")[1] == "warp 5.0 us, block 4.0 us, 1.25"
    choices.print_map(found)
    assert "sorted, k 8, 4 rows: 512 warp, 1024 block*, 4096 warp" in capsys.readouterr().out
    choices.print_leads(found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    leads = {name: counts[:2] for name, *counts in lines}
    assert (leads["warp"], leads["block"], leads["grid"]) == (["2", "1"], ["2", "1"], ["0", "0"])


def test_the_choice_follows_the_measured_times(choices):
    """No choice costs much of what the fastest algorithm takes, by the times of all of them on an H200."""
    script = importlib.import_module("top_k_policy")
    measured = json.loads((script.RESULTS / "choices-h200-2026-11-23.json").read_text())["choices"]
    assert len(measured) > 3000
    target, losses = Target(0, "sm_90", 132, 227 * KIB), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Plan", lambda variant, *_: variant.partition(" ")[0])
        for each in measured[::3]:
            problem = script.Problem((each["rows"], each["length"]), 1, each["k"], each["is_sorted"])
            policy = Policy.auto((9, 0), each["element_size"])
            keywords = script.keywords(problem, each["element_size"])
            # The file has times of an algorithm that has been removed since.
            times = {name: each["microseconds"].get(name, math.inf) for name in dispatch.Algorithm}
            chosen = dispatch.plan(**keywords, target=target, policy=policy)
            losses.append(times[chosen] / min(times.values()))
    assert statistics.geometric_mean(losses) < 1.05
    assert sum(loss > 1.5 for loss in losses) < len(losses) / 100


def test_crossings():
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "bench")
        script = importlib.import_module("top_k_policy")
    values = [1, 2, 4, 8]
    assert script.crossing(values, [1.0, 2.0, 4.0, 8.0], [3.0, 3.0, 3.0, 3.0]) == "from 2 to 4"
    assert script.crossing(values, [1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]) == "above 8"
    assert script.crossing(values, [4.0, 4.0, 4.0, 4.0], [3.0, 3.0, 3.0, 3.0]) == "below 1"
    assert script.crossing(values, [1.0, 2.0, 4.0, None], [3.0, 3.0, 3.0, 3.0]) == "from 2 to 4"
    assert script.crossing(values, [None] * 4, [1.0] * 4).startswith("not measured")
