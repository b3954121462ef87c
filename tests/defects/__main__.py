"""Apply each deliberate defect to a copy of the project, and run the tests that should detect it.

    python -m tests.defects                              all that this machine can run
    python -m tests.defects kernels_cpu dmlops/cli       those of some folders
    python -m tests.defects --only nonzero-last-block
    python -m tests.defects --sample 20 --seed 7

A defect counts as detected only if a test fails; a crash, an error during collection and a time-out are
listed separately. The exit status is 0 if all defects were detected.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dmlops import cuda
from tests.defects.catalogue import KERNEL_PACKAGES, ROOT, load


def copy_project(folder):
    """Copy what the tests need; hidden folders, environments and caches stay behind."""
    for path in ROOT.iterdir():
        if path.name.startswith((".", "venv")) or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, folder)


def run_tests(folder, tests, cache, limit):
    """Run tests in a copy of the project; return how they ended, and the first failure's text."""
    report = folder / "report.xml"
    environment = os.environ | {"PYTHONPATH": str(folder), "DMLOPS_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider"]
    try:
        code = subprocess.run(
            [*command, f"--junitxml={report}", *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timed out", f"after {limit} s"
    if code.returncode == 0:
        passed = "passed" in code.stdout.splitlines()[-1]
        return ("lived", "") if passed else ("skipped", code.stdout.splitlines()[-1])
    failures = list(ElementTree.parse(report).iter("failure")) if report.is_file() else []
    if code.returncode == 1 and failures:
        lines = (failures[0].get("message") or "").splitlines() or [""]
        return "died", lines[0][:200]
    return "crashed", (code.stdout + code.stderr)[-400:]


def try_defect(defect, cache, limit):
    """Return a line of the results for one defect."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dmlops-defect-") as name:
        folder = Path(name)
        copy_project(folder)
        defect.apply(folder)
        if defect.file.split("/")[0] in KERNEL_PACKAGES:
            cache = folder / "store"
        verdict, detail = run_tests(folder, defect.tests, cache, limit)
    seconds = round(time.monotonic() - start, 1)
    print(f"{verdict:9} {seconds:6.1f} s  {defect.name}: {detail}", flush=True)
    return {"name": defect.name, "package": defect.package, "verdict": verdict, "seconds": seconds} | (
        {"detail": detail} if detail else {}
    )


def selected(defects, given):
    """Return the defects that the command line asks for."""
    chosen = [
        defect
        for defect in defects
        if (not given.folders or any(defect.file.startswith(folder) for folder in given.folders))
        and (not given.only or defect.name in given.only)
        and (cuda.device_count() > 0 or not defect.needs_gpu)
    ]
    if given.sample and given.sample < len(chosen):
        chosen = random.Random(given.seed).sample(chosen, given.sample)
    return chosen


def check_untouched(defects, cache, limit):
    """Check that all the tests pass on the sources as they are: else they would notice anything."""
    tests = sorted({test for defect in defects for test in defect.tests})
    with tempfile.TemporaryDirectory(prefix="dmlops-defect-") as name:
        copy_project(Path(name))
        verdict, detail = run_tests(Path(name), tests, cache, limit)
    if verdict != "lived":
        sys.exit(f"without any defect the tests {verdict}: {detail}")


def main():
    """Try the defects and print how many were noticed, by folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="only defects of files below these")
    parser.add_argument("--only", nargs="+", help="only the defects of these names")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--limit", type=int, default=900, help="seconds that the tests of one may take")
    parser.add_argument("--cache", type=Path, help="a store of kernels for defects outside the kernels")
    parser.add_argument("--skip-untouched", action="store_true", help="trust that the tests pass")
    parser.add_argument("--results", type=Path, help="write the results here, as JSON")
    given = parser.parse_args()

    defects = selected(load(), given)
    problems = [problem for defect in defects if (problem := defect.problem())]
    if problems:
        sys.exit("\n".join(problems))
    tried = [defect for defect in defects if not defect.equivalent]
    with tempfile.TemporaryDirectory(prefix="dmlops-store-") as temporary:
        cache = (given.cache or Path(temporary)).absolute()
        if not given.skip_untouched:
            check_untouched(tried, cache, limit=len(tried) * given.limit)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(lambda defect: try_defect(defect, cache, given.limit), tried))
    results += [
        {"name": defect.name, "package": defect.package, "verdict": "equivalent", "detail": defect.equivalent}
        for defect in defects
        if defect.equivalent
    ]

    for package in sorted({result["package"] for result in results}):
        counts = Counter(result["verdict"] for result in results if result["package"] == package)
        print(f"{package}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts)))
    if given.results:
        given.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(result["verdict"] not in ("died", "equivalent") for result in results))


if __name__ == "__main__":
    sys.exit(main())
