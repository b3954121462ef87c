"""The choice of an algorithm of top_k on CUDA: by a table, by the rule, or by the user; needs no GPU."""

import importlib
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")
dispatch = importlib.import_module("kernels_cuda.top_k.dispatch")
plans = importlib.import_module("tests.test_cuda_top_k_plans")
planned = plans.planned
# The device that was measured.
TARGET = plans.Target(0, "sm_90", 132, plans.SHARED_BYTES["sm_90"])


def test_the_package_names_every_algorithm_and_its_family():
    package = importlib.import_module("kernels_cuda.top_k")
    folders = {path.parent.name for path in Path(package.__file__).parent.glob("*/__init__.py")}
    assert {*dispatch.ALGORITHMS} | folders <= {*re.findall(r"\w+", package.__doc__)}


@pytest.mark.parametrize("name", dispatch.ALGORITHMS)
def test_the_user_forces_an_algorithm(monkeypatch, name):
    n = 100 if name in ("rounds", "warp") else 9000
    given = {"shape": (64, n, 1), "k": n if name == "copy" else 3, "is_sorted": name != "copy"}
    chosen = planned(**given).algorithm
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", name)
    assert planned(**given).algorithm == name
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "")
    assert planned(**given).algorithm == chosen


def test_algorithms_that_cannot_be_forced(monkeypatch):
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "quick")
    with pytest.raises(ValueError, match=r"ALGORITHM: got 'quick', .* must be one of rounds, "):
        planned((64, 100, 1), 3)
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "rounds")
    with pytest.raises(ValueError, match="algorithm 'rounds' does not take k 30 of rows of 100, by value"):
        planned((64, 100, 1), 30)
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "copy")
    for k, is_sorted in ((99, False), (100, True)):
        with pytest.raises(ValueError, match=f"'copy' does not take k {k} of rows of 100"):
            planned((64, 100, 1), k, is_sorted=is_sorted)


@pytest.mark.parametrize("arch", [arch for arch in plans.SHARED_BYTES if arch != "sm_90"])
def test_devices_without_a_table_follow_the_rule(arch):
    """What it names first is what runs, unless the device lacks it; rows count by multiprocessor."""
    few, many = (planned((n, 9000, 1), 100, arch=arch).algorithm for n in (60, 6000))
    assert (few, many) == ("one_pass", "block")
    assert planned((60, 9000, 1), 100, arch=arch, multiprocessors=1).algorithm == "block"


@pytest.fixture
def choices():
    """Return the module that times all algorithms."""
    pytest.importorskip("torch")
    return importlib.import_module("bench.choices")


def test_what_a_table_says(monkeypatch):
    """It holds for smaller problems, and beyond the largest ones; rows count by multiprocessor."""
    kind = "4 bytes, rows one after the other, by value"
    table = {kind: {"8": {"4": "256 warp, 512 block, grid", "16": "tile"}, "32": {"4": "sort"}}}
    monkeypatch.setattr(dispatch, "table_of", lambda _: {"multiprocessors": 132, "fastest": table})
    expected = {
        (1, 1, 1): "warp",
        (4, 256, 8): "warp",
        (4, 257, 8): "block",
        (4, 513, 8): "grid",
        (4, 1 << 28, 1): "grid",
        (5, 9, 1): "tile",
        (99, 9, 1): "tile",
        (1, 9, 9): "sort",
        (1, 40, 33): "sort",
    }
    assert {(n, m, k): planned((n, m, 1), k).algorithm for n, m, k in expected} == expected
    assert planned((4, 1, 1), 1, multiprocessors=66).algorithm == "tile"
    assert planned((8, 1, 1), 1, multiprocessors=264).algorithm == "warp"


def test_the_choice_follows_the_measured_times(choices):
    """The table is that of the measured times, of all of them, and costs next to nothing."""
    results = choices.RESULTS / "choices-2026-11-26.json"
    if not results.exists():
        pytest.skip("source distributions have no raw times")
    measured = [each for each in choices.load(results) if each.times]
    assert len(measured) > 10_000
    problems = {place for size in choices.ELEMENT_SIZES for place in choices.problems(size)}
    assert {each[:4] for each in measured} <= problems
    for what in range(1, 4):
        assert {each[what] for each in measured} == {place[what] for place in problems}
    table = json.loads((dispatch.TABLES / "sm_90.json").read_text())
    assert table["fastest"] == choices.table_of(measured)
    for source, most in ((dispatch.candidates, 1.005), (dispatch.rule, 1.05)):
        found = [choices.with_choice(source, each, TARGET) for each in measured[::17]]
        assert choices.mean_loss(found) < most
