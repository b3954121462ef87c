"""Sweeps: the coverage of the table, and the comparisons of points."""

import pytest

from bench.suites import SUITES
from bench.sweeps import LIMITS, Sweep, beyond, compared
from bench.workloads import CPU, CUDA, TopK

MIB = 1 << 20
WITH_SWEEPS = ("data", "sizes")


def selection(name, size, **other):
    return TopK(name=name, shape=(1, size), k=1, **other)


def found(sweep, times):
    """Return the points beyond a limit, and with which they were compared."""
    seconds = {point.name: each for point, each in zip(sweep.points, times, strict=True) if each}
    return [(each["point"], each["other"]) for each in beyond(compared([sweep], seconds))]


@pytest.mark.parametrize(
    ("sizes", "times", "flagged"),
    [
        ((1000, 2000, 4000), (1, 2, 4), []),
        # Twice the work in up to four times the time, for the same work in twice the time.
        ((1000, 2000, 4000), (1, 3.9, 7), []),
        ((1000, 2000, 4000), (1, 4.1, 7), [("2000", "1000")]),
        ((1000, 1001), (1, 1.9), []),
        ((1000, 1001), (1, 2.1), [("1001", "1000")]),
        # A point that takes longer than a larger one.
        ((1000, 1001, 2000), (2.1, 1, 2), [("1000", "1001")]),
        ((1000, 2000), (1.9, 1), []),
        # The time of a quadratic path.
        ((1000, 2000, 4000), (1, 5, 26), [("4000", "2000"), ("2000", "1000")]),
        # Points without a time have no neighbours.
        ((1000, 2000, 4000), (1, None, 100), []),
    ],
)
def test_steps(sizes, times, flagged):
    points = tuple(selection(str(size), size) for size in sizes)
    assert found(Sweep("steps", points, 2, has_steps=True), times) == flagged


@pytest.mark.parametrize(
    ("kind", "seconds", "is_flagged"),
    [
        ({"data": "constant"}, 1.9, False),
        ({"data": "constant"}, 2.1, True),
        ({"dtype": "float16"}, 0.9, False),
        ({"dtype": "float16"}, 1.1, True),
        ({"dtype": "float64"}, 3.9, False),
    ],
)
def test_kinds(kind, seconds, is_flagged):
    points = (selection("first", 10_000), selection("other", 10_000, **kind))
    sweep = Sweep("kinds", points, limit=2)
    assert found(sweep, (1, seconds)) == ([("other", "first")] if is_flagged else [])


def test_the_worst_comes_first_as_a_share_of_its_limit():
    points = (selection("a", 100), selection("b", 100), selection("c", 100))
    several = [Sweep("x", points[:2], 2.0), Sweep("y", (points[0], points[2]), 1.25)]
    expected = [("c", "a", 2, 1, 2.0, 1.25), ("b", "a", 3, 1, 3.0, 2.0)]
    assert [(*each.values(),) for each in compared(several, {"a": 1, "b": 3, "c": 2})] == expected


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_table(device):
    table = [each for name in WITH_SWEEPS for each in SUITES[name].make(device)]
    points = [point for sweep in table for point in sweep.points]
    assert len({sweep.name for sweep in table}) == len(table)
    # Times of one version are compared with times of another.
    expected = {CPU: (507, 10_170_597_436), CUDA: (728, 36_925_952_036)}[device]
    assert (len(points), sum(point.bytes_moved for point in points)) == expected
    for sweep in table:
        assert {point.series for point in sweep.points} == {sweep.name}
        assert len({point.operator for point in sweep.points}) == 1
        assert all(point.name.startswith(f"{sweep.name}: ") for point in sweep.points)
        if sweep.has_steps:
            amounts = [point.bytes_moved for point in sweep.points]
            assert amounts == sorted(amounts)
        else:
            # The points differ in one property only, and visibly.
            assert sweep.points[0].bytes_moved > MIB / 2
            assert sweep.limit == LIMITS[sweep.name.rpartition(" by ")[2]]
