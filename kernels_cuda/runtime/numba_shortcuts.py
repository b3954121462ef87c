"""Work that Numba does for code unlike ours, left out while it compiles our kernels.

A block of top-k is some forty functions, and Numba takes seconds for it. What is replaced here saves a
quarter of them, and half of what the largest kernels of `sample` take; the PTX of all stays as it was.
"""

import copy
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba.cuda import codegen, target, utils
from numba.cuda.core import inline_closurecall, postproc, transforms
from numba.cuda.core.compiler_machinery import PassManager

# Passes for what our kernels do not have: closures, context managers, exceptions, `literal_unroll`, functions
# with ``@overload(inline=...)``.
_SUPERFLUOUS_PASSES = {
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "RewriteDynamicRaises",
    "WithLifting",
}


@contextmanager
def numba_shortcuts() -> Iterator[None]:
    """Take the shortcuts; the caller holds Numba's compiler lock, so that nobody else's code is compiled."""
    worker, library = inline_closurecall.InlineWorker, codegen.CUDACodeLibrary
    replacements: list[tuple[Any, str, Any]] = [
        (PassManager, "add_pass", _add_pass(PassManager.add_pass)),
        (postproc.PostProcessor, "run", _post_process),
        (utils, "pysignature", functools.cache(inspect.signature)),
        (worker, "run_untyped_passes", _once_per_function(worker.run_untyped_passes)),
        (inline_closurecall, "copy", SimpleNamespace(deepcopy=_copied)),
        *(
            (context, "load_additional_registries", _once_per_object(context.load_additional_registries))
            for context in (target.CUDATypingContext, target.CUDATargetContext)
        ),
        (library, "llvm_strs", property(_linked_modules)),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _add_pass(as_numba_does: Callable[..., None]) -> Callable[..., None]:
    def add_pass(manager: Any, kind: type, description: str = "") -> None:
        if kind.__name__ not in _SUPERFLUOUS_PASSES:
            as_numba_does(manager, kind, description)

    return add_pass


def _post_process(processor: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """Do what Numba does for a function that is no generator.

    Only generators need to know which variables live where a block begins.
    """
    function = processor.func_ir
    function.blocks = transforms.canonicalize_cfg(function.blocks)
    function.variable_lifetime = postproc.VariableLifetime(function.blocks)
    function.generator_info = None
    if emit_dels:
        processor._insert_var_dels(extend_lifetimes=extend_lifetimes)


def _once_per_function(as_numba_does: Callable[..., Any]) -> Callable[..., Any]:
    """Translate a function that is inlined several times only once; whoever inlines it makes a copy."""
    translated: dict[Any, Any] = {}

    def run_untyped_passes(worker: Any, function: Any, enable_ssa: bool = False) -> Any:
        if function not in translated:
            translated[function] = as_numba_does(worker, function, enable_ssa)
        worker.flags.enable_ssa = enable_ssa
        return translated[function]

    return run_untyped_passes


def _copied(block: Any) -> Any:
    """Copy a block of a function that is inlined.

    Each variable refers to the scope, and the scope to all variables of the function: a deep copy of a block
    would copy them all.
    """
    scope = copy.copy(block.scope)
    scope.localvars = copy.copy(scope.localvars)
    scope.localvars._con = dict(scope.localvars._con)
    scope.redefined = scope.redefined.copy()
    scope.var_redefinitions = defaultdict(
        set, {name: set(versions) for name, versions in scope.var_redefinitions.items()}
    )
    return copy.deepcopy(block, {id(block.scope): scope})


def _once_per_object(as_numba_does: Callable[[Any], None]) -> Callable[[Any], None]:
    """Look only once, not for each function, whether there are new extensions of Numba."""
    loaded: set[Any] = set()

    def load_additional_registries(context: Any) -> None:
        if context not in loaded:
            loaded.add(context)
            as_numba_does(context)

    return load_additional_registries


def _linked_modules(library: Any) -> list[str]:
    """Return the LLVM IR of a library and of all that it links, each once, in the order of the first calls.

    Numba would repeat what several functions call for each of them, in an order that differs from process to
    process.
    """
    modules: dict[Any, str] = {}

    def add(library: Any) -> None:
        if library not in modules:
            modules[library] = text = str(library._module)
            called = {linked: text.find(_defined_by(linked)) for linked in library._linking_libraries}
            for linked in sorted(called, key=called.__getitem__):
                add(linked)

    add(library)
    return list(modules.values())


def _defined_by(library: Any) -> str:
    name: str = next(function.name for function in library._module.functions if not function.is_declaration)
    return name
