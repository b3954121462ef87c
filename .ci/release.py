"""Build a release in dist/, check what is in it, and use the wheel as a user would.

    python .ci/release.py
    DMLOPS_BUILD_KERNELS=all python .ci/release.py    # the wheel brings compiled kernels: docs/kernels.md

The release workflow runs this on every system and publishes what it leaves in dist/. RELEASE_TAG is its tag,
which has to name the version; and then GPU tests must have run on the kernels, by docs/reliability.md. This
needs git, and a Python with venv and pip.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
NOT_IN_SDIST = (".ci/", "bench/results/top_k_policy/")
PACKAGES = ("dmlops", "kernels_cpu", "kernels_cuda")
METADATA = {
    *("METADATA", "RECORD", "WHEEL", "entry_points.txt"),
    *("licenses/LICENSE", "licenses/dmlops/data/README.md"),
}
MAX_WHEEL_MB = 15
RUN_TARGETS = ("sm_90",)  # of the GPUs that the tests run on


def main() -> None:
    """Do it all; the first failure ends it."""
    if DIST.exists():
        shutil.rmtree(DIST)
    with tempfile.TemporaryDirectory(prefix="dmlops-release-") as folder:
        tools = environment(Path(folder, "tools"), "build", "twine", "numpy")
        # The wheel is built from the source distribution.
        run(tools, "-m", "build", "--outdir", str(DIST), str(ROOT))
        (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
        run(tools, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        version, tag = wheel.name.split("-")[1], os.environ.get("RELEASE_TAG", "")
        check_version(version, tag)
        check_sdist(sdist, version)
        kernels = check_wheel(wheel, version)
        check_runs(tools, wheel, kernels, tag)
        try_wheel(wheel, kernels, Path(folder, "user"))
    print("kernels for", " ".join(sorted(kernels)) or "no target")
    for path in (sdist, wheel):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def environment(folder: Path, *requirements: str) -> Path:
    """Create a virtual environment with these packages, and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def run(python: Path, *arguments: str, **options: object) -> None:
    """Run Python with these arguments."""
    print("$ python", *arguments, flush=True)
    subprocess.run([python, *arguments], check=True, **options)


def require(condition: object, message: str) -> None:
    """End with a message, unless the condition holds."""
    if not condition:
        sys.exit(f"release: {message}")


def check_version(version: str, tag: str) -> None:
    """Check that a tag names the version, and that the changelog has a section for it."""
    if tag:
        require(tag == f"v{version}", f"the tag is {tag}, but the version in dmlops/__init__.py is {version}")
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
        require(re.search(heading, changelog, re.MULTILINE), f"CHANGELOG.md has no dated section [{version}]")


def check_sdist(sdist: Path, version: str) -> None:
    """Check that the source distribution has the repository's files and no others."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {name for name in source_files() if not name.startswith(NOT_IN_SDIST)} | {"PKG-INFO"}
    check_names(f"dmlops-{version}.tar.gz", names, expected)


def check_wheel(wheel: Path, version: str) -> set[str]:
    """Check the files of the wheel and its size; return the targets that it has kernels for."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kernels = {Path(name).stem for name in names if re.fullmatch(r"dmlops/kernels/[^/]+\.kernels", name)}
    asked = set(os.environ.get("DMLOPS_BUILD_KERNELS", "").split())
    require(kernels == asked or (asked == {"all"} and kernels), f"asked for kernels {asked}, got {kernels}")
    expected = {name for name in source_files() if name.partition("/")[0] in PACKAGES}
    expected |= {f"dmlops/kernels/{target}.kernels" for target in kernels}
    expected |= {f"dmlops-{version}.dist-info/{name}" for name in METADATA}
    check_names(wheel.name, names, expected)
    require(wheel.stat().st_size <= MAX_WHEEL_MB * 1e6, f"{wheel.name} is larger than {MAX_WHEEL_MB} MB")
    return kernels


def check_runs(python: Path, wheel: Path, kernels: set[str], tag: str) -> None:
    """Check that the GPU tests have passed on the kernels that a tag publishes.

    Without a tag, this tells only whether they have: the kernels must be built before they can run.
    """
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    script = (
        "import sys, pathlib; from dmlops.store.kernel_archive import Archive\n"
        "archive = Archive(pathlib.Path(sys.argv[1]))\n"
        "print(archive.digest, archive.origin.compilers, sep='\\n')"
    )
    for target in kernels.intersection(RUN_TARGETS):
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
            path = files.extract(f"dmlops/kernels/{target}.kernels", folder)
            told = subprocess.check_output([python, "-c", script, path], cwd=DIST.parent, text=True)
        digest, compilers = told.splitlines()
        # A thousand tests or more: not a selection of them.
        line = rf"^\| {target} \| `{digest}` \|.*\| \d{{4,}} passed, \d+ skipped, 0 failed \|"
        has_passed = re.search(line, page, re.MULTILINE)
        told = f"{target}.kernels, {digest}, by {compilers}"
        require(has_passed or not tag, f"docs/reliability.md has no GPU tests that passed on {told}")
        print("GPU tests have passed on" if has_passed else "no GPU tests have passed yet on", told)


def source_files() -> set[str]:
    """Return the paths of the files in the repository, also of those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listing.splitlines() if (ROOT / name).exists()}


def check_names(where: str, names: set[str], expected: set[str]) -> None:
    """Check that an archive has the expected files and no others."""
    require(names == expected, f"{where} lacks {sorted(expected - names)} and has {sorted(names - expected)}")


def try_wheel(wheel: Path, kernels: set[str], folder: Path) -> None:
    """Install the wheel where nothing else is, and run the command line from elsewhere.

    If the wheel has kernels for this processor, they must do without a compiler and without a cache.
    """
    python = environment(folder, f"{wheel}[cli]")
    ours = ("DMLOPS_", "PYTHON")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    settings["DMLOPS_CACHE_DIR"] = str(folder / "cache")
    options = {"cwd": folder, "env": settings}
    if kernels:
        level = subprocess.check_output(
            [python, "-c", "from kernels_cpu import processor; print(processor.LEVEL)"], text=True, **options
        ).strip()
        if level in kernels:
            run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "numba")
            settings["DMLOPS_CACHE"] = "0"
    run(python, "-m", "dmlops", "info", **options)
    run(python, "-m", "dmlops", "demo", **options)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
