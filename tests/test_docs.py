"""The examples in the README and the documentation are correct, and links have targets."""

import doctest
import re
import tomllib

import pytest

from tests.scripts import ROOT

URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
HOME = URLS["Homepage"]
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_examples(page):
    text = re.sub(r"^```.*$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    report = []
    # Not even with `pytest -v` shall it report what succeeds.
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=report.append)
    assert not report, "".join(report)


def _targets(page):
    """Return where the links of a page lead, without the fragments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    inline = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return inline + re.findall(r"^\[[^]]+\]: ([^#\s]+)", text, flags=re.MULTILINE)


@pytest.mark.quick
@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(page):
    for target in _targets(page):
        if in_repository := re.match(rf"{HOME}/(?:blob|tree)/main/", target):
            assert (ROOT / target[in_repository.end() :]).exists(), target
        elif not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.quick
def test_links_of_the_readme_work_on_an_index_page():
    """Package indexes show the README without the repository around it."""
    targets = _targets("README.md")
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.quick
def test_the_project_has_one_address():
    forms = [str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")]
    for file in ("pyproject.toml", "README.md", "CITATION.cff", *forms):
        text = (ROOT / file).read_text(encoding="utf-8")
        for url in re.findall(r"https://github\.com/[\w-]+/dmlops\b[\w./-]*", text):
            assert f"{url}/".startswith(f"{HOME}/"), (file, url)
