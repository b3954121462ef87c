"""Change the product at random, and report which changes no test notices.

``python -m tests.mutate --seed 1 --samples 300`` takes modules of all packages in proportion to their lines;
``--module dmlops/calls/call_cache.py`` names one, and ``--tests`` what to run for each change. Every change
is made in a copy of the checkout, on which the quick tests run and then all test files that name the module.
What lives is printed as a line of the source before and after: it becomes a test, unless both mean the same.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("dmlops", "kernels_cpu", "kernels_cuda", "bench")
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATIONS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
TYPES = {
    "int32": "int64",
    "int64": "int32",
    "uint32": "uint64",
    "uint64": "uint32",
    "u32": "i64",
    "i64": "u32",
}
# A change may make a program run forever.
TIMEOUT_S = 900


def changes_of(node):
    """Yield what may be done to a node: a word for it, and a function that changes the node in place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", lambda node: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATIONS:
        yield "operation", lambda node: setattr(node, "op", OPERATIONS[type(node.op)]())
    if isinstance(node, ast.BoolOp):
        yield (
            "condition",
            lambda node: setattr(node, "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or()),
        )
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "negation", lambda node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for step in (-1, 1):
            yield f"{step:+d}", lambda node, step=step: setattr(node, "value", node.value + step)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "truth", lambda node: setattr(node, "value", not node.value)
    if isinstance(node, (ast.Name, ast.Attribute)) and _name_of(node) in TYPES:
        field = "id" if isinstance(node, ast.Name) else "attr"
        yield "type", lambda node: setattr(node, field, TYPES[_name_of(node)])
    if isinstance(node, ast.Call) and len(node.args) > 1 and not any(map(_is_starred, node.args)):
        yield "arguments", lambda node: node.args.__setitem__(slice(0, 2), node.args[1::-1])
    for name in ("body", "orelse"):
        statements = getattr(node, name, None)
        if isinstance(statements, list):
            for place, statement in enumerate(statements):
                if _can_be_dropped(statement):
                    yield (
                        "dropped statement",
                        lambda node, name=name, place=place: getattr(node, name).__setitem__(
                            place, ast.Pass()
                        ),
                    )


def _name_of(node):
    return node.id if isinstance(node, ast.Name) else node.attr


def _is_starred(argument):
    return isinstance(argument, ast.Starred)


def _can_be_dropped(statement):
    """Tell whether a program remains valid without a statement, and not the same."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    if isinstance(statement, ast.If):
        return any(
            isinstance(each, (ast.Raise, ast.Return, ast.Continue, ast.Expr)) for each in statement.body
        )
    return isinstance(statement, (ast.AugAssign, ast.Delete))


def sites_of(tree):
    """Return all changes of a module as (number of the node, word, change); annotations stay."""
    skipped = set()
    for node in ast.walk(tree):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in filter(None, annotations):
            skipped.update(map(id, ast.walk(annotation)))
    return [
        (number, word, change)
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in skipped
        for word, change in changes_of(node)
    ]


def mutant_of(source, rng):
    """Return the source with one change, a word for it, and the changed line; None if nothing can change."""
    tree = ast.parse(source)
    sites = sites_of(tree)
    if not sites:
        return None
    number, word, change = rng.choice(sites)
    changed = copy.deepcopy(tree)
    node = [*ast.walk(changed)][number]
    change(node)
    before, after = (ast.unparse(ast.fix_missing_locations(each)).splitlines() for each in (tree, changed))
    if len(before) == len(after):
        differing = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    else:
        differing = [(f"{getattr(node, 'lineno', '?')}: {ast.unparse(node)[:200]}", "-")]
    return "\n".join(after) + "\n", word, differing[:1]


def modules():
    """Return all modules of the product, and their lines."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found[path.relative_to(ROOT)] = len(path.read_text(encoding="utf-8").splitlines())
    return found


def tests_of(module):
    """Return the arguments of pytest for each run: the quick tests, and the files that name a module."""
    name = module.parent.name if module.name == "__init__.py" else module.stem
    files = sorted((ROOT / "tests").glob("test_*.py"))
    naming = [str(path.relative_to(ROOT)) for path in files if name in path.read_text(encoding="utf-8")]
    return [["-m", "quick", "-n", "auto", "tests"], *([naming] if naming else [])]


def failure(folder, arguments):
    """Run tests in a copy of the checkout until one fails; return its name, or None."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it ran too long"
    if result.returncode in (0, 5):  # 5: no test was selected
        return None
    failures = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].split(" - ")[0] if failures else f"exit status {result.returncode}"


def noticed(folder, module, text, runs, broken):
    """Return the test that fails with a changed module, or None; those in `broken` fail without it."""
    source = (folder / module).read_text(encoding="utf-8")
    for arguments in runs:
        while True:
            left_out = [f"--deselect={name}" for name in broken]
            (folder / module).write_text(text, encoding="utf-8")
            found = failure(folder, [*arguments, *left_out])
            (folder / module).write_text(source, encoding="utf-8")
            name = (found or "").partition(" ")[2]
            if "::" not in name or failure(folder, [name]) is None:
                break
            broken.append(name)
        if found:
            return found
    return None


def main():
    """Try as many changes as asked for; return 1 if more than one of 20 lived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--module", action="append", help="a file such as dmlops/calls/call_cache.py")
    parser.add_argument("--tests", nargs="+", help="arguments of pytest, in place of the tests of the module")
    arguments = parser.parse_args()
    rng, known = random.Random(arguments.seed), modules()
    chosen = {Path(name): known[Path(name)] for name in arguments.module or ()} or known
    lived, n_tried, broken = 0, 0, []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=ignored)
        while n_tried < arguments.samples:
            (module,) = rng.choices([*chosen], [*chosen.values()])
            source = (ROOT / module).read_text(encoding="utf-8")
            mutant = mutant_of(source, rng)
            if mutant is None:
                continue
            text, word, lines = mutant
            runs = [arguments.tests] if arguments.tests else tests_of(module)
            found = noticed(folder, module, text, runs, broken)
            n_tried, lived = n_tried + 1, lived + (found is None)
            print(f"{'noticed' if found else 'LIVED'} {module} {word}: {found or ''}", flush=True)
            for old, new in lines:
                print(f"    - {old.strip()}\n    + {new.strip()}", flush=True)
    print(f"{n_tried - lived} of {n_tried} changes were noticed")
    if broken:
        print("these tests fail without a change, and were left out:", *broken)
    return int(20 * lived > n_tried)


if __name__ == "__main__":
    sys.exit(main())
