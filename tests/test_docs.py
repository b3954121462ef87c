"""The examples in the README and the documentation are correct, and links have targets."""

import doctest
import re

import pytest

from tests.scripts import ROOT

pytestmark = pytest.mark.quick

PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_examples(page):
    text = re.sub(r"^```.*$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target
