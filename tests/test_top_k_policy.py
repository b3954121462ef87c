"""The policy of top_k on CUDA as a value, and the table of the fastest algorithms; needs no GPU."""

import importlib
import itertools
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")
policies = importlib.import_module("kernels_cuda.top_k.shared.policy")
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
    changed = policy.changed({"block.largest_k": 5, "launch_blocks": 7})
    assert changed.values() == policy.values() | {"block.largest_k": 5, "launch_blocks": 7}
    assert changed != policy
    assert policy.block.largest_k == 4096
    with pytest.raises(TypeError):
        policy.changed({"columns.no_such_value": 5})


def test_the_package_describes_every_module():
    package = importlib.import_module("kernels_cuda.top_k")
    modules = {path.stem for path in Path(package.__file__).parent.glob("[!_]*.py")}
    assert modules <= set(re.findall(r"`(\w+)`", package.__doc__))


@pytest.fixture
def choices():
    """Return the module that times all algorithms."""
    pytest.importorskip("torch")
    return importlib.import_module("bench.choices")


def test_problems_of_all_sizes(choices):
    problems = list(choices.problems(4))
    assert len(problems) == len(set(problems)) > 3000
    assert {rows for kind, rows, *_ in problems if not kind.is_transposed} == {*choices.ROWS}
    assert {kind for kind, *_ in problems} == {
        choices.Kind(4, is_transposed, is_sorted)
        for is_transposed, is_sorted in itertools.product((False, True), repeat=2)
    }
    assert all(k <= length and rows * length * 4 <= 1 << 29 for _, rows, length, k in problems)
    (row,) = {choices.problem_of(choices.Kind(4, False, True), 3, 100, 7)}
    (column,) = {choices.problem_of(choices.Kind(4, True, False), 3, 100, 7)}
    assert row == ((3, 100), 1, 7, True)
    assert column == ((100, 3), 0, 7, False)


def made_choice(choices, length, rows=3, k=8, chosen="warp", **times):
    return choices.Choice(choices.Kind(4, False, True), rows, length, k, chosen, times)


def test_choices_that_lose(choices, capsys):
    few, more = (
        made_choice(choices, 512, warp=2.0, block=4.0),
        made_choice(choices, 1024, warp=5.0, block=4.0),
    )
    noise, alone = made_choice(choices, 2048, warp=4.1, block=4.0), made_choice(choices, 4096, warp=9.0)
    assert [each.ranking[0] for each in (few, more, noise, alone)] == ["warp", "block", "block", "warp"]
    assert [each.loss for each in (few, more, alone)] == [1.0, 1.25, 1.0]
    assert [each.lead for each in (few, more, alone)] == [2.0, 1.25, choices.KEPT]
    found = [more, noise, few, alone]
    choices.print_losses(found)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "1 of 4 problems lose 5% or more by the choice"
    assert lines[1].split(": ")[1] == "warp 5.0 us, block 4.0 us, 1.25"
    choices.print_leads(found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    leads = {name: counts[:2] for name, *counts in lines}
    assert (leads["warp"], leads["block"], leads["grid"]) == (["2", "2"], ["2", "1"], ["0", "0"])


def test_the_table_names_the_fastest(choices):
    """Noise does not change the algorithm of shorter rows; devices without clusters have another one.

    Where no time has been kept, it is the one that serves all long rows.
    """
    found = choices.table_of(
        [
            made_choice(choices, 128, warp=5.0, block=9.0),
            made_choice(choices, 256, warp=5.1, block=5.0),
            made_choice(choices, 512, warp=7.0, block=5.0, cluster=8.0),
            made_choice(choices, 1024, block=9.0, grid=7.0, cluster=4.0),
            made_choice(choices, 2048),
            made_choice(choices, 128, rows=14, warp=3.0, block=9.0),
            made_choice(choices, 128, rows=66, warp=3.0, block=2.5),
            made_choice(choices, 256, rows=66, block=2.5),
            made_choice(choices, 128, rows=264, block=2.5),
            made_choice(choices, 64, k=32, sampled=2.0, block=2.3),
            made_choice(choices, 128, k=32, sampled=2.0, block=2.1),
            made_choice(choices, 256, k=32, sampled=2.0, block=2.01),
            made_choice(choices, 512, k=32, sampled=2.0, block=2.3),
            made_choice(choices, 64, rows=1024, rounds=2.1, warp=2.0),
            made_choice(choices, 128, rows=1024, rounds=2.3, warp=2.0),
        ]
    )
    assert found == {
        "4 bytes, rows one after the other, by value": {
            "8": {
                "4": "256 warp, 512 block, 1024 cluster grid, grid",
                "14": "warp",
                "264": "block",
                "2896": "64 rounds, warp",
            },
            "32": {"4": "64 sampled block, 256 block, sampled block"},
        }
    }


def test_what_a_table_says(monkeypatch):
    """It holds for smaller problems, and beyond the largest ones; rows count by multiprocessor."""
    fastest = importlib.import_module("kernels_cuda.top_k.fastest")
    kind = fastest.Kind(4, False, True)
    table = {str(kind): {"8": {"4": "256 warp, 512 block, cluster grid", "16": "tile"}, "32": {"4": "sort"}}}
    monkeypatch.setattr(fastest, "_table", lambda: {"multiprocessors": 132, "fastest": table})
    fastest._steps.cache_clear()
    expected = {
        (1, 1, 1): ("warp",),
        (4, 256, 8): ("warp",),
        (4, 257, 8): ("block",),
        (4, 513, 8): ("cluster", "grid"),
        (4, 1 << 40, 1): ("cluster", "grid"),
        (5, 9, 1): ("tile",),
        (99, 9, 1): ("tile",),
        (1, 9, 9): ("sort",),
        (1, 9, 33): ("sort",),
    }
    try:
        assert {each: fastest.fastest(kind, *each, 132) for each in expected} == expected
        assert fastest.fastest(kind, 4, 1, 1, 66) == ("tile",)
        assert fastest.fastest(kind, 8, 1, 1, 264) == ("warp",)
    finally:
        fastest._steps.cache_clear()


def test_the_choice_follows_the_measured_times(choices):
    """The table is that of the measured times; no choice costs more than noise, or what steadiness may."""
    results = choices.RESULTS / "choices-2026-11-26.json"
    measured = choices.load(results)
    assert len(measured) > 10_000
    assert json.loads(choices.TABLE.read_text())["fastest"] == choices.table_of(measured)
    target = Target(0, "sm_90", 132, 227 * KIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Plan", lambda variant, *_: variant.partition(" ")[0])
        for each in filter(lambda each: each.times, measured[::7]):
            problem = importlib.import_module("bench.stopwatch").plain_problem(
                each.problem, each.kind.element_size
            )
            chosen = dispatch.plan(problem, target)
            loss = each._replace(chosen=chosen).loss
            is_steady = chosen in choices.steadier_than(each.ranking[0], each)
            assert loss < (choices.STEADY_MARGIN if is_steady else 1.05), each
