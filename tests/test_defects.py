"""The lists of deliberate defects fit the current sources."""

from tests.defects.catalogue import load


def test_each_defect_has_its_place():
    defects = load()
    assert len(defects) >= 150
    assert not [problem for defect in defects if (problem := defect.problem())]
    names = [defect.name for defect in defects]
    assert len(set(names)) == len(names)
