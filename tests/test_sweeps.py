"""Sweeps: the coverage of the table, and the comparisons of points."""

from dataclasses import replace

import pytest

from bench.suites import SUITES
from bench.sweeps import LIMITS, beyond, compared
from bench.workloads import CPU, CUDA, TopK

MIB = 1 << 20
FIRST = TopK(name="first", series="a by data", shape=(1, 10_000), k=1)


@pytest.mark.parametrize(
    ("series", "kind", "seconds", "is_flagged"),
    [
        ("a by data", {"data": "constant"}, 1.14, False),
        ("a by data", {"data": "constant"}, 1.16, True),
        ("a by hostile data", {"data": "close"}, 1.49, False),
        ("a by hostile data", {"data": "close"}, 1.51, True),
        ("numbers of a", {"dtype": "float16"}, 0.99, False),
        ("numbers of a", {"dtype": "float16"}, 1.01, True),
        ("numbers of a", {"dtype": "float64"}, 3.9, False),
        # Points without a time are not compared, and neither are those of other sweeps.
        ("a by data", {"data": "constant"}, None, False),
        ("a by data", {"series": "b by data"}, 9, False),
    ],
)
def test_points_are_compared_with_the_first_one(series, kind, seconds, is_flagged):
    first = replace(FIRST, series=series)
    other = replace(first, name="other", **kind)
    times = {"first": 1} | ({"other": seconds} if seconds else {})
    found = [(each["point"], each["other"]) for each in beyond(compared([first, other], times))]
    assert found == ([("other", "first")] if is_flagged else [])


def test_the_worst_comes_first_as_a_share_of_its_limit():
    points = [
        replace(FIRST, name=name, series=series) for series in ("x numbers", "y by data") for name in "ab"
    ]
    points[3] = replace(points[3], name="c")
    expected = [("c", "a", 2, 1, 2.0, 1.15), ("b", "a", 3, 1, 3.0, 2.0)]
    assert [(*each.values(),) for each in compared(points, {"a": 1, "b": 3, "c": 2})] == expected


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_table(device):
    points = [point for name in ("data", "rows") for point in SUITES[name].workloads(device)]
    # Times of one version are compared with times of another.
    expected = {CPU: (203, 3_098_784_556), CUDA: (363, 8_873_095_980)}[device]
    assert (len(points), sum(point.bytes_moved for point in points)) == expected
    for point in points:
        assert point.name.startswith(f"{point.series}: ")
        assert any(words in point.series for words in LIMITS)
    firsts = {point.series: point for point in reversed(points)}
    for first in firsts.values():
        assert first.bytes_moved > MIB / 2
        assert (first.data, first.rows) in {("normal", ""), ("constant", ""), ("normal", "lengths")}
