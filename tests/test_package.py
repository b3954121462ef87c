"""The package: the cost of importing it, which module may import which, and the contents of the wheel."""

import ast
import builtins
import compileall
import graphlib
import os
import re
import shutil

import pytest

import dmlops
from tests.marks import exhaustive, nightly
from tests.scripts import ROOT, run_script

PACKAGES = ("dmlops", "kernels_cpu", "kernels_cuda")


@pytest.mark.libraries
def test_import_is_light():
    script = """
        import sys, dmlops
        heavy = {"numba", "llvmlite", "cuda", "numba_cuda", "torch", "cupy", "jax", "onnx", "dask", "typer"}
        print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
        print("importlib.metadata" in sys.modules)  # as slow as all of dmlops
    """
    assert run_script(script).split() == ["[]", "False"]


@pytest.mark.libraries
def test_first_calls_that_find_their_kernels_import_neither_a_compiler_nor_cuda():
    script = """
        import sys, dmlops
        dmlops.top_k([1.0, 2.0], 1)
        dmlops.nonzero_coordinates([1.0, 2.0])
        dmlops.gather_nd([1.0, 2.0], [[1]])
        dmlops.diagonal_matrix(shape=(2, 2), dtype="float32")
        dmlops.sample([1.0, 2.0], 1)
        slow = ("numba", "scipy", "importlib.metadata", "kernels_cpu.compiler", "kernels_cpu.jit")
        slow += "cuda", "kernels_cuda"
        print([name for name in slow if name in sys.modules])
    """
    run_script(script)  # compiles what no test before has needed
    assert run_script(script).strip() == "[]"


FOR_GPUS = "cuda cuda.core cuda.bindings cuda.bindings.driver numba_cuda numba.cuda"
LIBRARIES = "torch jax jaxlib dask dask.array onnx onnxruntime matplotlib bottleneck"


@pytest.mark.parametrize(
    "missing", [exhaustive(f"{FOR_GPUS} {LIBRARIES}"), *map(nightly, (FOR_GPUS, *LIBRARIES.split()))]
)
def test_the_tests_need_the_extra_test_alone(missing):
    """A module whose library is missing is skipped, and fails no run of the others."""
    path = os.pathsep.join([str(ROOT / "tests" / "without"), str(ROOT)])
    script = f"""
        import os, sys, pytest
        os.chdir({str(ROOT)!r})
        sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-m", ""]))
    """
    run_script(script, PYTHONPATH=path, DMLOPS_WITHOUT=missing)


def test_a_star_leaves_built_in_functions_alone():
    names = {}
    exec("from dmlops import *", names)
    assert names["top_k"] is dmlops.top_k
    assert not (names.keys() - {"__builtins__"}) & vars(builtins).keys()


def _imports(path):
    """Return the modules, and what else, that a source file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


# Modules import from their own layer and from lower ones. The longest matching name gives a module's layer.
LAYERS = (
    ("dmlops.types.errors",),
    ("dmlops.store.once",),
    # Kernels of all devices are found by their keys.
    ("dmlops.store.kernel_archive", "dmlops.store.kernel_cache", "dmlops.store.kernel_store"),
    ("dmlops.types",),
    ("dmlops.operators",),
    ("dmlops.devices.cuda_driver", "dmlops.devices.memory", "dmlops.store.compilers"),
    ("dmlops.array_libraries",),
    ("dmlops.devices", "dmlops.store"),
    ("dmlops.calls",),
    ("dmlops.functions",),
    ("dmlops",),
    ("dmlops.integrations",),
    ("dmlops.__main__", "dmlops.cli"),
)
# Some of them know nothing of these either.
FORBIDDEN = {
    "kernels_cpu": ("dmlops", "kernels_cuda", "cuda", "numba.cuda"),
    "kernels_cuda": ("dmlops", "kernels_cpu"),
    "dmlops.operators": ("numpy", *PACKAGES[1:]),
    "dmlops.array_libraries": ("numba", "kernels_cuda"),
    **dict.fromkeys(LAYERS[1], ("numpy", "numba", "llvmlite", "cuda", *PACKAGES[1:])),
}
# Plans are words, and so are their problems: plans for both devices, and compiled host code, agree on them.
# Problems are the seam: those who make them share their classes with those who plan them.
# `cached` is about Python alone. `foreign` names integers on the stack, which plans that call others need.
SHARED = {
    "dmlops.operators": ("kernels_cpu.problems.",),
    "kernels_cuda": (
        "kernels_cpu.integers.",
        "kernels_cpu.kernel.",
        "kernels_cpu.plan_words.",
        "kernels_cpu.problems.",
        "kernels_cpu.diagonal_matrix.problem_words.",
        "kernels_cpu.gather_nd.problem_words.",
        "kernels_cpu.nonzero_coordinates.problem_words.",
        "kernels_cpu.sample.problem_words.",
        "kernels_cpu.top_k.problem_words.",
        "kernels_cpu.plan.",
        "kernels_cpu.exact.",
        "kernels_cpu.cached.",
        "kernels_cpu.foreign.",
    ),
}


def _is_in(module, package):
    return f"{module}.".startswith(f"{package}.")


@pytest.fixture(scope="module")
def imports():
    """Serve what each module imports."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = _imports(path)
    return found


def test_imports_go_down_and_in_no_circles(imports):
    def layer(module):
        fits = [
            (package, i) for i, layer in enumerate(LAYERS) for package in layer if _is_in(module, package)
        ]
        return max(fits, key=lambda each: len(each[0]))[1]

    def module_of(name):
        return name if name in imports else name.rpartition(".")[0]

    graph = {}
    for module, names in imports.items():
        graph[module] = {module_of(name) for name in names if module_of(name) in imports} - {module}
        if _is_in(module, "dmlops"):
            own = {name for name in graph[module] if _is_in(name, "dmlops")}
            assert {name for name in own if layer(name) > layer(module)} == set(), module
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises an error that names a circle


def test_what_takes_calls_over_is_offered_from_above():
    """No module below names an integration, not even as text: `dmlops` offers them."""
    for path in (ROOT / "dmlops").rglob("*.py"):
        folder = path.relative_to(ROOT / "dmlops").parts[0]
        if folder not in ("integrations", "cli", "__init__.py"):
            texts = [
                node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
            ]
            assert not [text for text in texts if str(text).startswith("dmlops.integrations.")], path


# These list what users import from them, or replace `torch.topk` and ONNX's own operators.
LIST_OPERATORS = (
    "calls/dispatch.py",
    "integrations/dask/__init__.py",
    "integrations/jax/__init__.py",
    "integrations/onnx/__init__.py",
    "integrations/torch/__init__.py",
    "integrations/torch/topk_mode.py",
)


def test_general_modules_name_no_operator():
    """So a new one needs no edit there: what they do with operators, they do with each `Spec`."""
    operators = set(dmlops.functions.SPECS)
    for folder in ("array_libraries", "calls", "devices", "integrations", "store"):
        for path in (ROOT / "dmlops" / folder).rglob("*.py"):
            name = path.relative_to(ROOT / "dmlops").as_posix()
            if path.stem in operators or name in LIST_OPERATORS:
                continue
            nodes = list(ast.walk(ast.parse(path.read_text())))
            found = {node.value for node in nodes if isinstance(node, ast.Constant)}
            found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            found |= {node.id for node in nodes if isinstance(node, ast.Name)}
            assert not found & operators, name


@pytest.mark.parametrize(
    "operator", ["diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k"]
)
def test_plans_for_gpus_need_neither_a_compiler_nor_cuda(operator):
    """So they can be compiled, and answer, where none of these is installed."""
    script = f"""
        import sys, kernels_cuda.{operator}.plan
        print([name for name in ("numba", "llvmlite", "cuda") if name in sys.modules])
    """
    assert run_script(script).strip() == "[]"


@pytest.mark.parametrize("package", FORBIDDEN)
def test_what_packages_know_nothing_of(package, imports):
    modules = [module for module in imports if _is_in(module, package)]
    assert modules
    for module in modules:
        names = [name for name in imports[module] if not f"{name}.".startswith(SHARED.get(package, "-"))]
        known = [(name, other) for name in names for other in FORBIDDEN[package] if _is_in(name, other)]
        assert not known, module


# Numba's and numba-cuda's documented interfaces for extensions; all else is their inside.
EXTENSION_API = ("numba.cuda.extending.", "numba.core.cgutils.", "numba.core.datamodel.", "numba.core.types.")


# The next version of Numba may change what these use.
# Below these names, tests know the packages by `tests.inside` alone. This file states how they are divided.
PUBLIC = {
    "dmlops",
    "dmlops.device",
    "dmlops.functions",
    "dmlops.integrations",
    "dmlops.integrations.torch.onnx",
}
PUBLIC |= {f"dmlops.integrations.{path.name}" for path in (ROOT / "dmlops" / "integrations").iterdir()}
KNOWS_PLACES = {ROOT / "tests" / name for name in ("inside.py", "test_package.py")}


@pytest.mark.quick
def test_tests_go_through_public_names():
    """A module that moves changes one line of the tests."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    for path in {*(ROOT / "tests").rglob("*.py")} - KNOWS_PLACES:
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+", text))
        for module, imported in re.findall(r"from ([\w.]+) import (\([^)]+|[^\n(]+)", text):
            names |= {f"{module}.{name}" for name in re.findall(r"\w+", imported)}
        for name in names:
            *above, last = name.split(".")
            parts = above if last in dmlops.__all__ else [*above, last]
            places = {".".join(parts[: n + 1]) for n in range(len(parts))} & modules
            assert places <= PUBLIC, (path.name, name)


USE_INSIDES = {
    "kernels_cpu/numba_frontend.py",
    "kernels_cuda/runtime/compiler.py",
    "kernels_cuda/runtime/numba_shortcuts.py",
}


def test_few_files_touch_the_insides_of_numba():
    for device in ("kernels_cpu", "kernels_cuda"):
        for path in set((ROOT / device).rglob("*.py")) - {ROOT / name for name in USE_INSIDES}:
            modules = {name for name in _imports(path) if name.startswith(("numba.core.", "numba.cuda."))}
            assert all(f"{name}.".startswith(EXTENSION_API) for name in modules), (path, modules)


@pytest.mark.libraries
def test_numba_is_imported_by_compilers_and_kernels_only():
    """Modules that plans and calls import must not import Numba, the slowest part of a first call."""
    script = """
        import importlib, sys
        for device in ("kernels_cpu", "kernels_cuda"):
            for name in ("diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k"):
                importlib.import_module(f"{device}.{name}")
        for name in ("calls.compiled", "calls.kinds", "devices.backend", "devices.cuda", "functions"):
            importlib.import_module(f"dmlops.{name}")
        print("numba" in sys.modules)
    """
    pytest.importorskip("cuda.bindings")
    assert run_script(script).strip() == "False"


def test_an_installation_of_bytecode_alone_makes_the_same_calls(tmp_path):
    for package in ("dmlops", "kernels_cpu"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(tmp_path, quiet=1, legacy=True)
    for path in tmp_path.rglob("*.py"):
        path.unlink()
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import dmlops, numba, numpy as np
        print(dmlops.__file__.endswith(".pyc"))
        x = np.arange(9, dtype=np.int32)
        compiled = numba.njit(lambda x, k: dmlops.top_k(x, k).indices)
        for k in (1, 2, 2):
            print(dmlops.top_k(x, k).indices, compiled(x, k))
    """
    assert run_script(script).splitlines() == ["True", "[8] [8]", "[8 7] [8 7]", "[8 7] [8 7]"]
