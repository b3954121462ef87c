"""The examples in the README and the documentation are correct, and links have targets."""

import doctest
import importlib
import inspect
import io
import json
import re
import runpy
import shlex
import statistics
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec

import pytest

import dmlops
from bench import tables
from bench.peers import library_of
from bench.records import CONTESTS, rows_of, standings
from tests.inside import precompile, processor
from tests.scripts import ROOT, blocks, plain_blocks, run_main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME = PROJECT["urls"]["Homepage"]
PAGES = [
    "README.md",
    "examples/README.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("dmlops", "kernels_cpu", "kernels_cuda", "bench")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
WITH_CODE = [page for page in [*PAGES, "CONTRIBUTING.md"] if blocks(page)]
# Blocks of plain Python that no test runs, and why.
NOT_RUN = {"docs/numba_cuda_mlir.md": "it needs another compiler, which replaces numba-cuda"}
# Programs that the pages call, whose arguments are not checked.
OTHER_PROGRAMS = {
    *(".ci/run", ".ci/run-aarch64", "cd", "compute-sanitizer", "git", "jupyter", "mkdocs", "pre-commit"),
    *("source", "sudo", "uv"),
}


def check_examples(*tests):
    """Run sessions of an interpreter, and compare what they print."""
    report = []
    # Not even with `pytest -v` shall it report what succeeds.
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    for test in tests:
        runner.run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", PAGES)
def test_examples(page):
    sessions = [code for language, code in blocks(page) if language == "python" and code.startswith(">>>")]
    check_examples(doctest.DocTestParser().get_doctest("\n".join(sessions), {}, page, page, 0))


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"unable to import module {name}: {error}")
    check_examples(*doctest.DocTestFinder().find(module))


@pytest.mark.quick
@pytest.mark.parametrize("page", WITH_CODE)
def test_each_block_has_a_test(page):
    languages = {language for language, _ in blocks(page)}
    assert languages <= {"python", "bash", "dockerfile", "toml", "text"}
    # Other files name the pages that they run.
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_docs.py"]
    has_test = any(re.search(f"[\"']{page}[\"']", path.read_text(encoding="utf-8")) for path in tests)
    assert bool(plain_blocks(page)) == (has_test or page in NOT_RUN)


def _commands(page):
    """Return the commands of a page as lists of words, without the variables that are set for them."""
    for language, code in blocks(page):
        lines = code.replace("\\\n", " ").splitlines()
        if language == "dockerfile":
            lines = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
        elif language != "bash":
            continue
        for line in lines:
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                command, words = words[:end], words[end + 1 :]
                while "=" in command[0]:
                    del command[0]
                yield command[0].removeprefix(".venv/bin/").removeprefix(".venv-lowest/bin/"), command[1:]


def _exists(path):
    assert (ROOT / path.partition("::")[0]).exists(), path


def _check_arguments(program, arguments):
    """Check that what a command refers to exists; running all of them would take hours."""
    if program == "dmlops" or arguments[:2] == ["-m", "bench"]:
        module, given = ("dmlops", arguments) if program == "dmlops" else ("bench", arguments[2:])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as told:
            code = run_main(module, *given, "--help")
        assert code == 0, (arguments, told.getvalue())
    elif program == "pip":
        for extras in re.findall(r"(?<!\S)[./]\S*\[([\w,-]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), extras
        from_index = [argument for argument in arguments if argument.startswith("dmlops")]
        assert not from_index, "the package index does not have this version"
    elif program in {"python", "python3"}:
        if arguments[0] == "-m":
            assert find_spec(arguments[1]) is not None, arguments
        else:
            _exists(arguments[0])
    elif program in {"pytest", "bash"}:
        for argument in arguments:
            if "/" in argument:
                _exists(argument)
    else:
        assert program in OTHER_PROGRAMS, program


@pytest.mark.parametrize("page", WITH_CODE)
def test_commands(page):
    for program, arguments in _commands(page):
        _check_arguments(program, arguments)


def _targets(page):
    """Return where the links of a page lead, without the fragments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return inline + re.findall(r"^\[[^]]+\]: ([^#\s]+)", text, flags=re.MULTILINE)


@pytest.mark.quick
def test_contributing_names_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:dmlops/)?(\w+(?:\.py|/))`", text))
    folder = ROOT / "dmlops"
    modules = {path.name for path in folder.glob("[!_]*.py")}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert modules | packages <= named


@pytest.mark.quick
@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(page):
    raw = HOME.replace("github.com", "raw.githubusercontent.com")
    for target in _targets(page):
        path = re.sub(rf"^({HOME}/(blob|tree)|{raw})/main/", f"{ROOT.as_posix()}/", target)
        assert path.startswith("http") or (ROOT / page).parent.joinpath(path).exists(), target


@pytest.mark.quick
def test_the_changelog_says_nothing_twice():
    """A merge may keep both forms of what two branches have changed."""
    lines = re.findall(r"^.{40,}$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [line for line in lines if lines.count(line) > 1] == []


def test_scripts_hide_no_module_of_python():
    """Python looks for modules beside a script first."""
    assert not {path.stem for path in (ROOT / "bench").glob("*.py")} & sys.stdlib_module_names


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_continuous_integration_types_the_commands_of_the_pages(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    (command,) = re.findall(r"^python3 -m venv .*pytest.*$", text, re.MULTILINE)
    assert f"    {command}\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")


PROBLEM = re.compile(r"(?:\w[\w ]*? )?(\d+ x \d+ \w+, k \d+(?:, by index)?)")
RUNS = [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "bench/results").glob("*.json"))]


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_figures_of_the_pages_were_recorded(page):
    """The tables are as the script writes them, and each row has times that some results have."""
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text
    taken = {}
    for row in (row for run in RUNS for row in run["workloads"]):
        for outcome in row["outcomes"]:
            times = taken.setdefault((_problem(row["name"]), outcome["contender"]), [])
            times += [float(f"{seconds:.3g}") for seconds in [outcome["seconds"]] if seconds]
    for rows, unit in _tables_of_times(text):
        for name, ours, peer, theirs, ratio in rows:
            assert float(f"{float(ours) * unit:.3g}") in taken[_problem(name), "dmlops"], name
            assert float(f"{float(theirs) * unit:.3g}") in taken[_problem(name), peer], name
            assert float(ratio) == pytest.approx(float(theirs) / float(ours), rel=0.02), name


def _problem(name):
    """Return a problem of top-k without the name of its application, and others as they are."""
    found = PROBLEM.fullmatch(name)
    return found[1] if found else name


def _tables_of_times(text):
    """Yield the rows of each table of times, and the unit of the times in seconds."""
    table = r"^\| Workload \| dmlops, (us|ms) .*\n.*\n((?:\|.*\n)+)"
    for unit, rows in re.findall(table, text, flags=re.MULTILINE):
        found = re.findall(r"^\| (.+) \| ([\d.]+) \| (.+) ([\d.]+) \| ([\d.]+) \|$", rows, re.MULTILINE)
        assert len(found) == rows.count("\n")
        yield found, {"us": 1e-6, "ms": 1e-3}[unit]


def test_what_dmlops_loses_is_shown_too():
    readme, benchmarks = ([*_tables_of_times(page.read_text("utf-8"))] for page in tables.PAGES[:2])
    assert [float(row[-1]) < 1 for rows, _ in readme for row in rows[-2:]] == [True] * 4
    assert len(benchmarks) == 5
    for rows, _ in benchmarks:
        ratios = [float(row[-1]) for row in rows]
        assert ratios == sorted(ratios)
    rows = [row for _, rows in tables.chart() for row in rows]
    assert len(rows) == 10
    assert sum(row.ratio < 1 for row in rows) >= 2


def _fastest_peer(machine, name):
    """Return the seconds of the fastest peer that any file of a machine has for a problem."""
    found = [
        outcome["seconds"]
        for run in RUNS
        if machine in (run["machine"].get("gpu") or f"{run['threads']} cores of an {run['machine']['cpu']}")
        for row in run["workloads"]
        if _problem(row["name"]) == _problem(name)
        for outcome in row["outcomes"]
        if outcome["seconds"] and outcome["contender"] != "dmlops" and not outcome.get("is_spared")
    ]
    return min(found)


def test_the_fastest_peer_is_that_of_all_files():
    """A file may have asked one library alone; another one has others for the same problem."""
    rows = [(machine.partition(",")[0], row) for machine, rows in tables.chart() for row in rows]
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        for machine, table in re.findall(r"^(.+), [\d-]+:\n\n((?:\|.*\n)+)", text, re.MULTILINE):
            if "| Workload |" in table:
                timed = [row for found, unit in _tables_of_times(table) for row in _timed(found, unit)]
                rows += [(machine, row) for row in timed]
    assert len(rows) > 30
    for machine, row in rows:
        assert row.peer_seconds == pytest.approx(_fastest_peer(machine, row.name), rel=0.01), row.name


def _timed(found, unit):
    for name, ours, peer, theirs, _ in found:
        yield tables.Timed(name, float(ours) * unit, peer, float(theirs) * unit)


def test_libraries_that_were_not_asked_are_named():
    """Beside a bar and below a table, if another file of such a machine has their times of that operator."""
    asked = {}
    for run in (run for run in RUNS if "H100" in run["machine"].get("gpu", "")):
        for row in run["workloads"]:
            timed = {library_of(each["contender"]) for each in row["outcomes"] if each["seconds"]}
            asked.setdefault(row["name"], set()).update(timed)
    picture = (ROOT / "docs/pictures/speed.svg").read_text(encoding="utf-8")
    shown = 0
    for machine, rows in tables.chart():
        for row in rows:
            if "H100" in machine and PROBLEM.fullmatch(row.name):
                others = {"torch", "jax", "flashinfer", "cub", "sglang"} - asked[row.name]
                assert set(row.not_asked) == others, row.name
                assert not others or f"not asked: {', '.join(sorted(others))}<" in picture
                shown += bool(others)
    assert shown == 2
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Not asked for top_k 256 x 50257 float32, k 50: cub, flashinfer, sglang.\n" in readme


def test_contests_of_the_benchmarks_page_were_recorded():
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    number = r" \| ([\d.]+)"
    row = rf"^\| (NVIDIA .+), ([\d-]+) \| (.+) \| (\d+) \| (\d+){3 * number} \|$"
    rows = re.findall(row, text, flags=re.MULTILINE)
    assert len(rows) == 5
    for gpu, date, contest, n_problems, n_ahead, *extent in rows:
        (run,) = (
            run
            for run in RUNS
            if run["date"].startswith(date) and gpu in run["machine"].get("gpu", "")
            if any(row["name"].startswith("indexer") for row in run["workloads"])
        )
        (contract,) = (contract for contract, name in CONTESTS.items() if name == contest)
        ratios = [each.ratio for each in standings(rows_of(run, RUNS), contract)]
        assert (int(n_problems), int(n_ahead)) == (len(ratios), sum(ratio >= 1 for ratio in ratios))
        amounts = min(ratios), statistics.median(ratios), max(ratios)
        assert [*map(float, extent)] == pytest.approx(amounts, rel=0.03)


PUBLIC_FUNCTIONS = [name for name in dmlops.__all__ if inspect.isfunction(getattr(dmlops, name))]
WITH_PAGES = [path.stem for path in sorted((ROOT / "docs" / "operators").glob("*.md"))]


def _signature_of(function):
    """Return the signature of a function as pages have it: without types."""
    parameters = inspect.signature(function).parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return re.sub(r"<class '(\w+)'>", r"\1", str(inspect.Signature(plain))).replace("'", '"')


@pytest.mark.quick
def test_signatures_of_the_pages():
    """Each operator's page has a whole signature, and whole signatures equal the functions' own."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, arguments in re.findall(r"`dmlops\.(\w+)(\([^`]*(?:\*,|/,|/\))[^`]*\))`", text):
            assert re.sub(r"\s+", " ", arguments) == _signature_of(getattr(dmlops, name)), page
            found.append((name, page))
    assert {(name, f"docs/operators/{name}.md") for name in WITH_PAGES} <= {*found}


@pytest.mark.quick
@pytest.mark.parametrize("name", WITH_PAGES)
def test_the_page_of_an_operator_names_each_parameter(name):
    text = (ROOT / "docs" / "operators" / f"{name}.md").read_text(encoding="utf-8")
    _, _, text = text.split("\n\n", 2)  # the signature is above
    parameters = inspect.signature(getattr(dmlops, name)).parameters
    assert [each for each in parameters if not re.search(rf"`{each}\b", text)] == []


@pytest.mark.quick
@pytest.mark.parametrize("name", PUBLIC_FUNCTIONS)
def test_a_docstring_names_each_parameter(name):
    """In the order of the signature; several may share a line."""
    function = getattr(dmlops, name)
    _, _, section = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")
    section, _, _ = section.partition("\n\n")
    lines = re.findall(r"^(\w[\w, ]*)(?: :.*)?$", section, re.MULTILINE)
    assert [each for line in lines for each in line.split(", ")] == [*inspect.signature(function).parameters]


OPERATOR_NAMES = [path.stem for path in (ROOT / "docs/operators").glob("*.md")]
KERNELS_PAGE = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")


def _numbers_of_kernels():
    """Yield each target of the page about kernels with its number, in the example and then in the table."""
    _, _, example = KERNELS_PAGE.partition("Kernels in the wheel\n")
    example, _, _ = example.partition("\nCache of")
    for target, number in re.findall(r"^ ([\w-]+) +(\d+) kernels, ", example, re.MULTILINE):
        yield target, int(number)
    row = r"^\| (`.+`) \| (\d+) (?:cubins|as PTX|of object code)"
    for targets, number in re.findall(row, KERNELS_PAGE, re.MULTILINE):
        for target in re.findall(r"[\w-]+", targets):
            yield target, int(number)


def test_numbers_of_cpu_kernels():
    found = [number for target, number in _numbers_of_kernels() if target in processor.LEVELS]
    assert len(found) == 1 + len(processor.LEVELS)
    assert set(found) == {len(precompile.cpu_tasks(OPERATOR_NAMES))}


def test_numbers_and_labels_of_cuda_kernels():
    pytest.importorskip("cuda.bindings")
    found = [(target, number) for target, number in _numbers_of_kernels() if target not in processor.LEVELS]
    assert len(found) == 1 + 8
    for target, number in found:
        assert number == len(precompile.cuda_tasks(OPERATOR_NAMES, [target])), target
    labels = {task.label for task in precompile.cuda_tasks(OPERATOR_NAMES, ["sm_87"])}
    named = re.findall(r"^compil(?:ing|ed) (\w+) for sm_87", KERNELS_PAGE, re.MULTILINE)
    assert named
    assert set(named) <= labels


def test_reference_lists_what_is_public():
    """The functions and classes, and the members of enumerations with their values."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: dmlops\.(\w+)$", text, re.MULTILINE)) == {*dmlops.__all__, "compile"}
    for name, table in re.findall(
        r"^::: dmlops\.(\w+)\n(?:    .*\n)+\n\| Member \|.*\n.*\n((?:\|.*\n)+)", text, re.MULTILINE
    ):
        members = re.findall(r"^\| `(\w+)` \| (\w+) \|$", table, re.MULTILINE)
        assert {member: int(value, 0) for member, value in members} == dict(getattr(dmlops, name).__members__)


def test_pictures_show_the_answers_of_dmlops():
    pictures = runpy.run_path(str(ROOT / "docs/pictures/draw.py"))["PICTURES"]
    for name, draw in pictures.items():
        assert draw().svg() == (ROOT / "docs/pictures" / name).read_text(encoding="utf-8"), name


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
