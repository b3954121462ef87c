"""The script that builds releases refuses wrong ones, and the workflows cover the promised platforms."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dmlops
from tests.gpu import on_archive
from tests.inside import Archive, Origin, write
from tests.scripts import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="source distributions lack .ci")
WORKFLOWS = ROOT / ".github" / "workflows"
INFO = f"dmlops-{dmlops.__version__}.dist-info"


@pytest.fixture
def release(monkeypatch):
    """Serve the script as a module; no environment variable asks it for anything."""
    monkeypatch.delenv("DMLOPS_BUILD_KERNELS", raising=False)
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_wheel(release, tmp_path):
    """Write a wheel with all files that it must have, and others."""

    def make(*others, size=0):
        path = tmp_path / f"dmlops-{dmlops.__version__}-py3-none-any.whl"
        sources = {name for name in release.source_files() if name.partition("/")[0] in release.PACKAGES}
        with zipfile.ZipFile(path, "w") as archive:
            for name in {*sources, *(f"{INFO}/{name}" for name in release.METADATA), *others}:
                archive.writestr(name, bytes(size) if name in others else b"")
        return path

    return make


def test_a_wheel_has_all_files_and_no_others(release, make_wheel):
    assert release.check_wheel(make_wheel(), dmlops.__version__) == set()
    with pytest.raises(SystemExit, match=r"lacks \[\] and has \['tests/__init__.py'\]"):
        release.check_wheel(make_wheel("tests/__init__.py"), dmlops.__version__)
    wheel = make_wheel()
    release.METADATA.add("entry")
    with pytest.raises(SystemExit, match=rf"lacks \['{INFO}/entry'\] and has \[\]"):
        release.check_wheel(wheel, dmlops.__version__)


def test_a_wheel_has_the_kernels_that_were_asked_for(release, make_wheel, monkeypatch):
    archive = "dmlops/kernels/sm_90.kernels"
    with pytest.raises(SystemExit, match=r"asked for kernels set\(\), got {'sm_90'}"):
        release.check_wheel(make_wheel(archive), dmlops.__version__)
    for asked in ("sm_90", "all"):
        monkeypatch.setenv("DMLOPS_BUILD_KERNELS", asked)
        assert release.check_wheel(make_wheel(archive), dmlops.__version__) == {"sm_90"}
        with pytest.raises(SystemExit, match="asked for kernels"):
            release.check_wheel(make_wheel(), dmlops.__version__)


def test_a_wheel_is_not_too_large(release, make_wheel, monkeypatch):
    monkeypatch.setenv("DMLOPS_BUILD_KERNELS", "sm_90")
    wheel = make_wheel("dmlops/kernels/sm_90.kernels", size=1 + 15_000_000)
    with pytest.raises(SystemExit, match="larger than 15 MB"):
        release.check_wheel(wheel, dmlops.__version__)


@pytest.fixture
def make_archive(release, tmp_path, monkeypatch):
    """Write a wheel with an archive of one kernel, and a page with these lines; return the archive."""

    def make(code, *lines, target="sm_90"):
        root = tmp_path / "root"
        (root / "docs").mkdir(parents=True, exist_ok=True)
        (root / "docs" / "reliability.md").write_text("\n".join(["# Page", *lines]))
        monkeypatch.setattr(release, "ROOT", root)
        path = tmp_path / f"{target}.kernels"
        write(path, Origin("cuda", target, "1234", "nvcc 1"), {"kernel": code})
        with zipfile.ZipFile(tmp_path / "dmlops.whl", "w") as wheel:
            wheel.write(path, f"dmlops/kernels/{target}.kernels")
        return Archive(path)

    return make


PASSED = {"passed": 6000, "skipped": 20, "failed": 0, "error": 0}


def test_a_tag_publishes_kernels_that_ran(release, make_archive, tmp_path, monkeypatch, capsys):
    wheel = tmp_path / "dmlops.whl"

    def line(code, **counts):
        return on_archive.line_of(make_archive(code), "GPU", "pytest tests/gpu", PASSED | counts)

    make_archive(b"code", line(b"other"), line(b"code"))
    release.check_runs(sys.executable, wheel, {"sm_90"}, "v1.0.0")
    release.check_runs(sys.executable, wheel, {"sm_90"}, "")
    assert capsys.readouterr().out.count("have passed on") == 2

    def read_here(command, **options):
        archive = Archive(Path(command[-1]))
        return f"{archive.digest}\n{archive.origin.compilers}\n"

    monkeypatch.setattr(release.subprocess, "check_output", read_here)  # a process each would take long
    for lines in (
        [],
        [line(b"other")],
        [line(b"code", failed=1)],
        [line(b"code", error=1)],
        [line(b"code", passed=999)],
        [line(b"code").replace("sm_90", "sm_80")],
    ):
        archive = make_archive(b"code", *lines)
        with pytest.raises(
            SystemExit, match=f"no GPU tests that passed on sm_90.kernels, {archive.digest}, by nvcc 1"
        ):
            release.check_runs(sys.executable, wheel, {"sm_90"}, "v1.0.0")
        release.check_runs(sys.executable, wheel, {"sm_90"}, "")
        assert "no GPU tests have passed yet" in capsys.readouterr().out


def test_kernels_that_no_gpu_here_runs_are_published(release, make_archive, tmp_path):
    make_archive(b"code", target="sm_75")
    release.check_runs(sys.executable, tmp_path / "dmlops.whl", {"sm_75", "x86-64-v3"}, "v1.0.0")


def test_the_page_tells_which_kernels_ran():
    """A line that a release would not understand is a line that nobody checks."""
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| Kernels | Digest |")
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        target, digest, *_, date, result = line.strip("| ").split(" | ")
        assert target.startswith("sm_")
        assert re.fullmatch("`[0-9a-f]{64}`", digest)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert re.fullmatch(r"\d+ passed, \d+ skipped, \d+ failed", result)


def test_a_source_distribution_has_all_files_and_no_others(release, tmp_path):
    path, folder = tmp_path / "dmlops-0.tar.gz", "dmlops-0"
    with tarfile.open(path, "w:gz") as archive:
        for name in release.source_files():
            if not name.startswith(release.NOT_IN_SDIST) and name != "README.md":
                archive.add(ROOT / name, f"{folder}/{name}")
        archive.add(ROOT / "LICENSE", f"{folder}/PKG-INFO")
    with pytest.raises(SystemExit, match=r"lacks \['README.md'\] and has \[\]"):
        release.check_sdist(path, "0")


def test_a_tag_names_the_version_and_the_changelog_has_it(release, tmp_path, monkeypatch):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n## [0.1.0]\n"
    )
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.check_version("0.2.0", "v0.2.0")
    release.check_version("0.3.0", "")
    with pytest.raises(SystemExit, match=r"the tag is v0\.2\.0, but the version .* is 0\.2\.1"):
        release.check_version("0.2.1", "v0.2.0")
    for version in ("0.1.0", "0.3.0"):
        with pytest.raises(SystemExit, match=rf"no dated section \[{re.escape(version)}\]"):
            release.check_version(version, f"v{version}")


def test_workflows_test_every_python_that_the_metadata_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (tested,) = re.findall(r"^ +python: \[(.*)\]$", (WORKFLOWS / "tests.yml").read_text(), re.MULTILINE)
    assert re.findall(r"3\.\d+", tested) == named
    assert project["requires-python"] == f">={named[0]}"


def test_hooks_have_a_linter_that_the_metadata_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (lowest,) = re.findall(r"ruff>=([\d.]+)", " ".join(project["optional-dependencies"]["test"]))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (version,) = re.findall(r"/ruff-pre-commit\n +rev: v([\d.]+)$", hooks, re.MULTILINE)
    assert [*map(int, version.split("."))] >= [*map(int, lowest.split("."))]


def test_actions_are_those_that_were_reviewed():
    """A tag can be moved; a commit cannot."""
    for path in WORKFLOWS.glob("*.yml"):
        for action in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action), (path, action)


@pytest.fixture
def ci(tmp_path):
    """Run `.ci/run` where there is but a stand-in for Python, whose environments have stand-ins of programs.

    Returns the exit status, the programs that ran and what was printed on standard error.
    """
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    log, programs = tmp_path / "log", tmp_path / "programs"
    programs.mkdir()
    # As `python3 -m venv FOLDER`, it makes an environment of links to itself.
    (programs / "python3").write_text(
        f"""#!/bin/sh
echo "${{0##*/}}" >>"{log}"
[ "$2" != venv ] || {{
    mkdir -p "$3/bin"
    for name in python pip uv pytest ruff mypy mkdocs; do ln -sf "{programs}/python3" "$3/bin/$name"; done
}}
""",
        encoding="utf-8",
    )
    (programs / "python3").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    environment.pop("DMLOPS_CI_SCRATCH", None)

    def run(*tasks):
        command = ["bash", tmp_path / ".ci" / "run", *tasks]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        ran = log.read_text(encoding="utf-8").split() if log.exists() else []
        return done.returncode, ran, done.stderr

    return run


@pytest.mark.skipif(os.name == "nt", reason="the script is for bash")
class TestContinuousIntegration:
    @pytest.mark.parametrize("task", ["check", "release", "lowest", "exhaustive"])
    def test_a_task_makes_what_it_needs(self, ci, task):
        status, ran, printed = ci(task)
        assert (status, printed, ran[0]) == (0, "", "python3")
        assert len(ran) > 2

    def test_its_example(self, ci):
        status, ran, _ = ci("check", "release")
        assert status == 0
        assert ran.count("python3") == 1
        assert ran[2:] == ["ruff", "ruff", "mypy", "mkdocs", "python", "python"]

    @pytest.mark.parametrize(
        "tasks", [["lint"], ["check", "relase"], [""], ["environment_with"], ["check release"]]
    )
    def test_an_unknown_task_is_told_before_anything_runs(self, ci, tasks):
        status, ran, printed = ci(*tasks)
        assert (status, ran) == (2, [])
        told = f".ci/run: got {tasks[-1]!r}, but there is no such task; the tasks are compilers, newcomer, "
        assert printed.startswith(told)
        assert printed.count("\n") == 1
