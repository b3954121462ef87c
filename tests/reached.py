"""A plugin of pytest for `tests.mutate`: it records what each test runs, or runs selected tests.

``MUTATE_RECORDS`` names a folder for records: lines of JSON with the functions that began in a test or in a
process that it started, and the kernels that it ran, on the processor or in the interpreter.
``MUTATE_SELECTION`` names a file with the tests to run, and the kernels that a change affects: all others are
taken from the cache.
"""

import ast
import functools
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

from tests import inside

ROOT = Path(__file__).parent.parent
TOOL = 4
# A test that takes longer has most likely compiled kernels, which later runs find.
MOST_TEST_S = 15
LEAST_TEST_S = 0.02  # to set up and to report
# Of the tests that a change concerns, so many seconds run at first, of few files; and of each kind so many.
FIRST_S, FIRST_FILES, MOST_S = 20, 8, 60
GPU_TESTS, GPU_RUN = "tests/gpu/", 2
# Changes in these may change every kernel of their package.
COMPILING = re.compile(r"compiler|jit|numba|runtime|linking|cached")
RECORDS, SELECTED = os.environ.get("MUTATE_RECORDS"), os.environ.get("MUTATE_SELECTION")
SELECTION = json.loads(Path(SELECTED).read_text(encoding="utf-8")) if SELECTED else {}
reached = set()


def _note_start(code, offset):
    """Note that a function begins; and of those that load a kernel to run it, which kernel that is."""
    path = code.co_filename
    if not path.startswith(str(ROOT)):
        return sys.monitoring.DISABLE
    path = path[len(str(ROOT)) + 1 :]
    reached.add(f"{path}:{code.co_firstlineno}")
    if (path, code.co_name) not in {
        ("dmlops/devices/cpu.py", "load"),
        ("kernels_cuda/runtime/launch.py", "load"),
        ("tests/interpreter/device.py", "load"),
    }:
        return sys.monitoring.DISABLE
    given = sys._getframe(1).f_locals
    reached.add(_name_of(given.get("kernel") or given.get("variant")))
    return None


def pytest_configure(config):
    """Begin to record, or take kernels from the cache that a change leaves as they are."""
    if RECORDS:
        sys.monitoring.use_tool_id(TOOL, "reached")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, _note_start)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.PY_START)
        config.add_cleanup(lambda: sys.monitoring.set_events(TOOL, 0))
        children = str(ROOT / "tests" / "children"), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, children))
    if "sources" in SELECTION:
        device = getattr(inside, SELECTION["device"])
        kernel_store = inside.kernel_store
        key, changed = device.key, kernel_store.source_digest(ROOT / f"kernels_{SELECTION['device']}")

        def old_key(kernel, *arguments):
            found = key(kernel, *arguments)
            if found.sources != changed or _source_of(_name_of(kernel)) in SELECTION["affected"]:
                return found
            return found._replace(sources=SELECTION["sources"])

        device.key = old_key


def pytest_runtest_logstart(nodeid):
    """Record the next test apart from the one before."""
    if RECORDS:
        reached.clear()
        sys.monitoring.restart_events()
        folder = Path(RECORDS, f"children-{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.environ["MUTATE_CHILDREN"] = str(folder)


def pytest_runtest_logreport(report):
    """Write what a test has run, in the process where it ran; or which one has failed."""
    if SELECTION and report.failed:
        with Path(SELECTED).with_name("failed").open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
    if RECORDS and report.when == "call" and not hasattr(report, "node"):
        for child in Path(os.environ["MUTATE_CHILDREN"]).iterdir():
            reached.update(child.read_text(encoding="utf-8").split())
        seconds = round(min(report.duration, MOST_TEST_S), 3)
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": seconds}
        with Path(RECORDS, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"reached": sorted(reached)}) + "\n")


def pytest_collection_modifyitems(items):
    """Select tests."""
    if SELECTION:
        items[:] = [item for item in items if item.nodeid in SELECTION["tests"]]


def _name_of(kernel):
    """Return the function that makes a kernel, and the kernel's own name: ``"module:function label"``."""
    return f"{getattr(kernel, 'source', None) or kernel.factory} {kernel.label}"


def _source_of(kernel):
    """Return the function that makes a kernel, by its name."""
    return kernel.partition(" ")[0]


@functools.cache
def parts_of(module):
    """Return the parts of a module: the names that each has, the names that it mentions, and its syntax."""
    parts = []
    for node in ast.parse((ROOT / module).read_bytes()).body:
        inside, members = [*ast.walk(node)], [node, *node.body] if isinstance(node, ast.ClassDef) else [node]
        names = {each.name for each in members if isinstance(each, (ast.ClassDef, ast.FunctionDef))}
        words = {getattr(each, "id", None) or getattr(each, "attr", None) for each in inside}
        if not names and not isinstance(node, (ast.Import, ast.ImportFrom)):
            stored = (each for each in inside if isinstance(getattr(each, "ctx", None), ast.Store))
            names = {each.id for each in stored if isinstance(each, ast.Name)}
        parts.append((module, names, words - {None}, node))
    return parts


def users_of(mutant, modules):
    """Yield what may change with a line, by module and name: what has the line, then all that name that, ...

    A name stands for all that have it: too much is found, rather than too little.
    """
    parts, found = [part for module in modules for part in parts_of(module)], {}
    left = [part for part in parts if str(part[0]) == mutant["module"]]
    left = [part for part in left if part[3].lineno <= mutant["line"] <= part[3].end_lineno]
    while left:
        changed = {(module, name): node for module, names, _, node in left for name in names}
        found |= changed
        yield changed
        words = {name for _, name in changed}
        left = [
            part
            for part in parts
            if part[2] & words and any((part[0], name) not in found for name in part[1])
        ]


def name_of(module):
    """Return the dotted name of a file."""
    return str(module).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def selection_of(mutant, records, known):
    """Return what concerns a change: runs of tests, the last on a GPU; and more for the plugin."""
    module = Path(mutant["module"])
    package = module.parts[0]
    users = [*users_of(mutant, [each for each in known if each.parts[0] == package])]
    kernels = {name for each in records for name in each["reached"] if name.startswith(f"{package}.")}
    names = {f"{name_of(path)}:{name}" for level in users for path, name in level}
    if not COMPILING.search(str(module)):
        kernels = {kernel for kernel in kernels if _source_of(kernel) in names}
    is_body = kernels and mutant["function"] and not COMPILING.search(str(module))
    # Unless the function begins itself, or is compiled, those that use it begin, the nearest first.
    places = [{f"{module}:{mutant['function']}"}]
    for level in () if is_body else users:
        places.append({each for (path, _), node in level.items() for each in beginnings_of(path, node)})
    # Nothing begins when a module is imported: then any of its functions.
    places.append({name for each in records for name in each["reached"] if name.startswith(f"{module}:")})
    words = {name for _, name in users[0]} if users and not is_body else set()
    runs = [{}, {}, {}]
    for on_gpu in (False, True):
        candidates = [each for each in records if each["file"].startswith(GPU_TESTS) == on_gpu]
        files, total = set(), 0
        for record in chosen_of(module, candidates, kernels, places, words):
            total += record["seconds"]
            is_first = total < FIRST_S and len(files | {record["file"]}) <= FIRST_FILES
            files |= {record["file"]} if is_first else set()
            runs[GPU_RUN if on_gpu else not is_first][record["test"]] = record
    selection = {"affected": sorted({_source_of(kernel) for kernel in kernels})}
    if package.startswith("kernels"):
        kernel_store = inside.kernel_store
        sources = kernel_store.source_digest(ROOT / package)
        selection |= {"device": package.partition("_")[2], "sources": sources}
    return runs, selection


def chosen_of(module, records, kernels, places, words):
    """Return the tests that reach a change, or whose files name what it is in; the best first."""
    stem = module.parent.name if module.name == "__init__.py" else module.stem
    found = ([each for each in records if each["reached"] & some] for some in places)
    beginning = by_turns(next(filter(None, found), []), lambda record: {record["file"]})
    running = [each for each in records if kernels & each["reached"]]
    naming = [each for each in records if words & words_of(each["file"])]
    chosen = {}
    for part in (
        sorted(beginning, key=lambda record: stem not in record["file"]),
        by_turns(running, lambda record: kernels & record["reached"]),
        by_turns(naming, lambda record: {record["file"]}),
    ):
        seconds = 0
        for record in part:
            if record["test"] not in chosen and seconds + record["seconds"] <= MOST_S:
                seconds += record["seconds"]
                chosen[record["test"]] = record
    return chosen.values()


@functools.cache
def words_of(file):
    """Return all words of a file."""
    return {*re.findall(r"\w+", (ROOT / file).read_text(encoding="utf-8"))}


def beginnings_of(path, node):
    """Return where the functions in a part of a module begin, as records name it."""
    functions = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef)]
    return {f"{path}:{min(part.lineno for part in (each, *each.decorator_list))}" for each in functions}


def by_turns(records, names_of):
    """Order tests: each name, such as a kernel that they run, has its turns; longer tests come less often."""
    counts, turns = Counter(), {}
    for record in sorted(records, key=lambda record: record["seconds"]):
        turns[record["test"]] = 1 + min(counts[name] for name in names_of(record))
        counts.update(names_of(record))
    return sorted(records, key=lambda record: turns[record["test"]] * (record["seconds"] + LEAST_TEST_S))
