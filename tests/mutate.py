"""Change the product at random, and report which changes no test notices.

``python -m tests.mutate --seed 1 --samples 300`` takes modules of all packages in proportion to their lines;
``--module dmlops/calls`` names a file or a folder. The tests of `.ci/run`, and all that interpret kernels,
run once, while `tests.reached` records which functions and kernels each of them runs (``--map`` keeps that
for the next time); with ``--gpu`` also those of tests/gpu, which try what the others let live. Each change is
made in a copy of the checkout, in which those tests run that reach the changed function. A test that fails
must pass without the change, or nothing is known ("unsure"). ``--results`` gets a line of JSON for each
change. What lives becomes a test, unless both programs mean the same. Python must be 3.12 or later.
"""

import argparse
import ast
import copy
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.reached import GPU_RUN, GPU_TESTS, ROOT, selection_of

PACKAGES = ("dmlops", "kernels_cpu", "kernels_cuda", "bench")
COMPARISONS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
]
OPERATIONS = [(ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr)]
SWAPPED = {old: new for pair in COMPARISONS + OPERATIONS for old, new in (pair, pair[::-1])}
# A wider type holds the same numbers: hardly anything but a wider register comes of it.
TYPES = {"int64": "int32", "uint64": "uint32", "i64": "u32"}
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
# A run may take so much longer than when its tests were recorded: kernels are compiled, programs do not end.
PATIENCE_S = 150


def changes_of(node):
    """Yield what may be done to a node: a word for it, the node to replace, and the text that replaces it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        changed = copy.deepcopy(node)
        changed.ops[0] = SWAPPED[type(node.ops[0])]()
        yield "comparison", node, f"({ast.unparse(changed)})"
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in SWAPPED:
        changed = copy.deepcopy(node)
        changed.op = SWAPPED[type(node.op)]()
        text = ast.unparse(changed)
        yield "operation", node, f"({text})" if isinstance(node, ast.BinOp) else text
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "condition", node, f"({ast.unparse(changed)})"
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "negation", node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for step in (-1, 1):
            yield f"{step:+d}", node, f"({node.value + step})"
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "truth", node, str(not node.value)
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in TYPES:
            yield "type", node, ast.unparse(node).removesuffix(name) + TYPES[name]
    if isinstance(node, ast.Call) and len(node.args) > 1 and ast.unparse(node.func) not in ("max", "min"):
        changed = copy.deepcopy(node)
        changed.args[:2] = changed.args[1::-1]
        if not any(isinstance(argument, ast.Starred) for argument in node.args):
            yield "arguments", node, ast.unparse(changed)
    if _can_be_dropped(node):
        yield "dropped statement", node, "pass"


def _can_be_dropped(node):
    """Tell whether a program remains valid without a statement, and not the same."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.If):
        return any(isinstance(each, (ast.Raise, ast.Return, ast.Continue, ast.Expr)) for each in node.body)
    return isinstance(node, (ast.AugAssign, ast.Delete))


def mutant_of(module, rng):
    """Return a change of a module as a dictionary, or None if nothing can change."""
    source = (ROOT / module).read_bytes()
    tree, sites = ast.parse(source), []
    skipped = {id(part) for node in ast.walk(tree) for each in _unchanged(node) for part in ast.walk(each)}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    for node in ast.walk(tree):
        if id(node) not in skipped:
            sites += changes_of(node)
    if not sites:
        return None
    word, node, text = rng.choice(sites)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    changed = source[:begin] + text.encode() + source[end:]
    try:
        compile(changed, str(module), "exec")
    except SyntaxError:
        return mutant_of(module, rng)
    around = [each for each in functions if each.lineno <= node.lineno and node.end_lineno <= each.end_lineno]
    inner = max(around, key=lambda each: (each.lineno, -each.end_lineno), default=None)
    first = (
        min([inner.lineno, *(each.lineno for each in getattr(inner, "decorator_list", ()))]) if inner else 0
    )
    return {
        "module": str(module),
        "line": node.lineno,
        "function": first,
        "change": word,
        "before": source[begin:end].decode()[:300],
        "after": text[:300],
        "in": lines[node.lineno - 1].decode().strip(),
        "source": changed,
    }


def _unchanged(node):
    """Yield the parts of a node that mean nothing when the program runs, or have no place of their own."""
    yield from filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None)))
    if isinstance(node, (ast.JoinedStr, ast.Assert)) or getattr(node, "arg", None) == "strict":
        yield node  # `zip` with `strict` is an assertion
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield node


def modules():
    """Return all modules of the product, and their lines."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}


def run(folder, arguments, limit, on_gpu=False, **environment):
    """Run pytest in a copy of the checkout; return its exit status (None: it ran too long) and output."""
    hidden, path = {} if on_gpu else WITHOUT_GPU, (str(folder), os.environ.get("PYTHONPATH"))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.reached", *arguments],
        cwd=folder,
        env={**os.environ, **hidden, "PYTHONPATH": os.pathsep.join(filter(None, path)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=max(limit, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
        return process.returncode, printed


def try_change(mutant, place, records, known, deadline):
    """Run the tests that concern a change in a copy of the checkout; return what happened."""
    begin, folder, changed = time.monotonic(), place / "checkout", place / "checkout" / mutant["module"]
    runs, selection = selection_of(mutant, records, known)
    shutil.rmtree(place / "cache", ignore_errors=True)
    shutil.copytree(place.parent / "cache", place / "cache", copy_function=os.link)
    environment = {
        "DMLOPS_CACHE_DIR": str(place / "cache"),
        "MUTATE_SELECTION": str(place / "selection.json"),
    }
    outcome, failed, failures, source = "lived", [], place / "failed", changed.read_bytes()
    failures.unlink(missing_ok=True)
    write(changed, mutant.pop("source"))
    for number, chosen in enumerate(runs):
        on_gpu, files = number == GPU_RUN, {each["file"] for each in chosen.values()}
        if files:
            (place / "selection.json").write_text(json.dumps(selection | {"tests": [*chosen]}))
            limit = PATIENCE_S + 3 * sum(each["seconds"] for each in chosen.values())
            left = deadline - time.monotonic()
            status, printed = run(
                folder, ["-x", "-m", "", *sorted(files)], min(limit, left), on_gpu, **environment
            )
            if status is None:
                outcome = "unfinished" if left <= limit else "unsure" if on_gpu else "timeout"
            elif status not in (0, 5):  # 5: no test was selected
                lines = printed.splitlines()
                failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
                outcome, failed = "noticed", failed or lines[-3:]
        if outcome != "lived":
            break
    write(changed, source)
    if outcome == "noticed":
        tests = failures.read_text(encoding="utf-8").splitlines() if failures.exists() else []
        (place / "selection.json").write_text(json.dumps(selection | {"tests": tests}))
        status, _ = run(folder, ["-m", "", *sorted(files)], PATIENCE_S, on_gpu, **environment)
        outcome = outcome if status in (0, 5) else "unsure"
    return mutant | {
        "outcome": outcome,
        "on_gpu": on_gpu,
        "tests": sum(map(len, runs)),
        "failed": failed[:3],
        "seconds": round(time.monotonic() - begin, 1),
    }


def write(path, source):
    """Write a module, and remove its bytecode, which Python tells from another's by size and second alone."""
    path.write_bytes(source)
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def copied(place):
    """Copy the checkout into a folder, and return that."""
    ignored = shutil.ignore_patterns(".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, place / "checkout", ignore=ignored)
    return place


def recorded(scratch, folder, n_processes, limit, with_gpu):
    """Return what the tests that pass have run, by a record in a folder or a new one."""
    records, cache = folder / "records", folder / "cache"
    if not records.exists():
        records.mkdir(parents=True)
        place = copied(scratch / "ordinary")
        environment = {"MUTATE_RECORDS": str(records), "DMLOPS_CACHE_DIR": str(cache)}
        on_gpu = ["not two_gpus", GPU_TESTS, f"--ignore={GPU_TESTS}test_large.py"]
        selections = [["not nightly"], ["nightly", "tests/test_kernels_interpreted.py"], on_gpu]
        for number, chosen in enumerate(selections[: GPU_RUN + with_gpu]):
            arguments = ["-n", str(n_processes), "-m", *chosen]
            _, printed = run(place / "checkout", arguments, limit, number == GPU_RUN, **environment)
            print(printed[-500:], flush=True)
    if cache != scratch / "cache":
        shutil.copytree(cache, scratch / "cache", dirs_exist_ok=True)
    found = {}
    for path in sorted(records.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            record |= {"file": record["test"].partition("::")[0], "reached": frozenset(record["reached"])}
            found[record["test"]] = record
    return [record for record in found.values() if record["outcome"] == "passed"]


def main():
    """Try as many changes as asked for; return 1 if more than one of 20 lived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--module", action="append", help="a file or folder such as dmlops/calls")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--gpu", action="store_true", help="also run the tests that need one")
    parser.add_argument("--minutes", type=float, default=300, help="after which it reports what it has")
    parser.add_argument("--map", type=Path, help="a folder that keeps what tests run, and the kernels")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    rng, known = random.Random(arguments.seed), modules()
    for module in arguments.module or ():
        if not any(str(each).startswith(module) for each in known):
            parser.error(f"--module {module}: there is no module of that name in {', '.join(PACKAGES)}")
    chosen = {each: known[each] for each in known if str(each).startswith(tuple(arguments.module or [""]))}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.processes) as pool:
        scratch = Path(temporary)
        limit = 60 * arguments.minutes / 2
        folder = (arguments.map or scratch).absolute()
        records = recorded(scratch, folder, arguments.processes, limit, arguments.gpu)
        mutants = [
            mutant_of(each, rng) for each in rng.choices([*chosen], [*chosen.values()], k=arguments.samples)
        ]
        places = queue.SimpleQueue()
        for number in range(arguments.processes):
            places.put(copied(scratch / str(number)))

        def work(mutant):
            place = places.get()
            try:
                in_time = time.monotonic() < deadline
                return try_change(mutant, place, records, known, deadline) if in_time else None
            finally:
                places.put(place)

        counts = Counter()
        for future in as_completed([pool.submit(work, mutant) for mutant in mutants if mutant]):
            result = future.result()
            if result is None:
                continue
            counts[result["outcome"]] += 1
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print("{outcome} {module}:{line} {before!r} -> {after!r} {failed}".format(**result), flush=True)
    print(dict(counts))
    return int(19 * counts["lived"] > counts["noticed"] + counts["timeout"])


if __name__ == "__main__":
    sys.exit(main())
