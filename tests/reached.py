"""A plugin of pytest for `tests.mutate`: it records what each test runs, or runs selected tests.

``MUTATE_RECORDS`` names a folder for records: lines of JSON with the functions of the product that began in
a test or in a process that it started, and the modules of the kernels that it looked for.
``MUTATE_SELECTION`` names a file with the tests to run, and the modules whose kernels a change affects: all
other kernels are taken from the cache.
"""

import ast
import importlib
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOL = 4
# What takes longer has most likely compiled kernels, which later runs find.
MOST_TEST_S = 15
# Of the tests that a change concerns, so many seconds run at first, of few files, and so many in all.
FIRST_S, FIRST_FILES, MOST_S = 20, 6, 90
# Changes in these may change every kernel of their package.
COMPILING = re.compile(r"compiler|jit|numba|runtime|linking|cached")
RECORDS, SELECTED = os.environ.get("MUTATE_RECORDS"), os.environ.get("MUTATE_SELECTION")
SELECTION = json.loads(Path(SELECTED).read_text(encoding="utf-8")) if SELECTED else {}
reached = set()


def _note_start(code, offset):
    """Note that a function of the product begins; and of those that look for kernels, which module has it."""
    path = code.co_filename
    if not path.startswith(str(ROOT)):
        return sys.monitoring.DISABLE
    path = path[len(str(ROOT)) + 1 :]
    reached.add(f"{path}:{code.co_firstlineno}")
    if (path, code.co_name) not in {("dmlops/devices/cpu.py", "load"), ("dmlops/devices/cuda.py", "key")}:
        return sys.monitoring.DISABLE
    given = sys._getframe(1).f_locals
    reached.add(_module_of(given.get("kernel") or given.get("variant")))
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
        device = importlib.import_module(f"dmlops.devices.{SELECTION['device']}")
        kernel_store = importlib.import_module("dmlops.store.kernel_store")
        key, changed = device.key, kernel_store.source_digest(ROOT / f"kernels_{SELECTION['device']}")

        def old_key(kernel, *arguments):
            found = key(kernel, *arguments)
            if found.sources != changed or _module_of(kernel) in SELECTION["affected"]:
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
    """Select tests, and some that interpret kernels which a change affects."""
    if not SELECTION:
        return
    tests = set(SELECTION["tests"])
    if SELECTION["interprets"]:
        variants = importlib.import_module("tests.test_cuda_compile").VARIANTS
        affected = [
            label
            for label, variant in variants.items()
            if _module_of(variant) in SELECTION["affected"] or f"_{SELECTION['name']}_" in label
        ]
        changed = [name.replace(".", "_") for name in SELECTION["affected"]]
        for test, parameter, count in (("test_each_kernel", "label", 3), ("test_hard_rows", "name", 4)):
            found = [
                item.nodeid
                for item in items
                if getattr(item, "originalname", "") == test
                and any(f"{item.callspec.params[parameter]}_" in f"{name}_" for name in affected + changed)
            ]
            tests.update(random.Random(len(affected)).sample(found, min(count, len(found))))
    items[:] = [item for item in items if item.nodeid in tests]


def _module_of(kernel):
    """Return the module with the kernel that a back-end has named."""
    return (getattr(kernel, "source", None) or getattr(kernel, "factory", "")).partition(":")[0]


def imports_of(module):
    """Return the modules of the same packages that a module imports, at any place in it."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / module).read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


def users_of(module, known):
    """Return the names of all modules that a change of this one may change when they are compiled."""
    names = {name_of(each): each for each in known}
    importing = {name: imports_of(each) for name, each in names.items()}
    found, left = set(), [name_of(module)]
    while left:
        found.add(left[-1])
        used = left.pop()
        left += [name for name, imported in importing.items() if used in imported and name not in found]
    return found


def name_of(module):
    """Return the dotted name of a file."""
    return str(module).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def selection_of(mutant, records, known):
    """Return what concerns a change: runs of tests, the modules of kernels that it affects, and more."""
    module = Path(mutant["module"])
    package, stem = module.parts[0], module.parent.name if module.name == "__init__.py" else module.stem
    affected = set()
    if package.startswith("kernels"):
        same = [each for each in known if each.parts[0] == package]
        affected = set(map(name_of, same)) if COMPILING.search(str(module)) else users_of(module, same)
    begins = [each for each in records if f"{module}:{mutant['function']}" in each["reached"]]
    places = {str(module), *affected}
    reaching = begins or [
        each for each in records if any(name.partition(":")[0] in places for name in each["reached"])
    ]
    texts = {each["file"]: (ROOT / each["file"]).read_text(encoding="utf-8") for each in records}

    def rank(record):
        return stem not in record["file"], stem not in texts[record["file"]], record["seconds"]

    naming = [each for each in records if stem in each["file"] or stem in texts[each["file"]]]
    ranked = [each for part in (reaching, naming) for each in sorted(part, key=rank)]
    runs, files, seconds = [{}, {}], set(), 0
    for record in {each["test"]: each for each in ranked}.values():
        if seconds + record["seconds"] <= MOST_S:
            seconds += record["seconds"]
            is_first = seconds < FIRST_S and len(files | {record["file"]}) <= FIRST_FILES
            files |= {record["file"]} if is_first else set()
            runs[not is_first][record["test"]] = record
    selection = {"affected": sorted(affected), "name": stem.removesuffix("_launches")}
    if affected:
        device = package.partition("_")[2]
        kernel_store = importlib.import_module("dmlops.store.kernel_store")
        selection |= {"device": device, "sources": kernel_store.source_digest(ROOT / package)}
    return runs, selection, bool(reaching)
