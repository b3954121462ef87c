"""The notebooks in examples/ run, and print what they show."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.scripts import ROOT

NEEDS = {
    "attention_masks.ipynb": "matplotlib",
    "retrieval.ipynb": "numpy",
    "sampling_and_gating.ipynb": "torch",
    "voxels.ipynb": "matplotlib",
}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("name", NEEDS)
def test_notebook(name, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pytest.importorskip(NEEDS[name])
    notebook = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with redirect_stdout(StringIO()) as printed:
                exec("".join(cell["source"]), names)
            shown = [
                "".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"
            ]
            assert printed.getvalue() == "".join(shown)


@pytest.mark.quick
def test_all_notebooks_are_run():
    assert NEEDS.keys() == {path.name for path in (ROOT / "examples").glob("*.ipynb")}
