"""Numba as a front end that infers types and writes LLVM IR; the only module that touches Numba's internals.

By itself, Numba optimises every function and generates its machine code before it turns to the functions that
call it. This takes most of the time of a compilation, for code that is thrown away: `compiler` optimises a
kernel together with everything that it calls. Numba also imports all that it knows of arrays, strings and
linear algebra, SciPy's included, and tries ``+`` of these before ``+`` of integers. The target here knows
numbers and tuples. Functions of Numba's own target can still call kernels: they only need
the IR.
"""

import functools
from typing import Any

import numba
from numba.core import (
    codegen,
    compiler,
    compiler_lock,
    cpu,
    descriptors,
    registry,
    target_extension,
    typing,
)
from numba.core.typed_passes import IRLegalization, NopythonRewrites
from numba.core.untyped_passes import InlineClosureLikes
from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401 - all that kernels consist of

# These look for closures and expressions of arrays, and mark where references to objects end. Kernels have
# none of these.
_NEEDLESS_PASSES = (InlineClosureLikes, NopythonRewrites, IRLegalization)
_NAME = "dmlops"

COMPILER_LOCK: Any = compiler_lock.global_compiler_lock
"""Held by any thread while it compiles with Numba."""


class _Frontend(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's compiler without needless passes."""

    def define_pipelines(self) -> list[object]:
        manager = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes[:] = [step for step in manager.passes if step[0] not in _NEEDLESS_PASSES]
        return [manager]


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The IR of a function and, once it is finalized, of those that it calls."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = str(self.codegen.target_data)  # only modules of one layout can be linked

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_specific(self) -> None:
        pass

    def get_pointer_to_function(self, name: str) -> int:
        """Return the null pointer: there is no machine code."""
        self._ensure_finalized()
        return 0


class _Codegen(codegen.JITCPUCodegen):  # type: ignore[misc]
    """Makes libraries of IR."""

    _library_class = _Library

    def _add_module(self, module: Any) -> None:
        pass

    def set_env(self, env_name: str, env: object) -> None:
        """Do nothing: an environment has the Python objects of a function, and kernels have none."""


class _TypingContext(typing.Context):  # type: ignore[misc]
    """Infers types by the declarations of Numba's imported modules alone."""

    def refresh(self) -> None:
        # Some registrations ask for the current target.
        with target_extension.target_override(_NAME):
            super().refresh()

    def load_additional_registries(self) -> None:
        pass


class _TargetContext(cpu.CPUContext):  # type: ignore[misc]
    """Writes IR by the definitions of Numba's imported modules alone."""

    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = _Codegen(_NAME)

    def load_additional_registries(self) -> None:
        pass

    def insert_user_function(self, *description: object) -> None:
        """Let functions of Numba's own target call this one, too."""
        super().insert_user_function(*description)
        registry.cpu_target.target_context.insert_user_function(*description)

    def post_lowering(self, module: Any, library: Any) -> None:
        """Do nothing: kernels do not need Numba's runtime."""


class _Kind(target_extension.CPU):  # type: ignore[misc]
    """The target in Numba's hierarchy: implementations for any CPU serve it, too."""


# Another import of this module may have been first.
target_extension.target_registry.pop(_NAME, None)
target_extension.target_registry[_NAME] = _Kind


class _Target(descriptors.TargetDescriptor):  # type: ignore[misc]
    options = cpu.CPUTargetOptions
    typing_context = _TypingContext()
    target_context = _TargetContext(typing_context, _NAME)


class _Dispatcher(registry.CPUDispatcher):  # type: ignore[misc]
    targetdescr = _Target(_NAME)


target_extension.dispatcher_registry[_Kind] = _Dispatcher
compile_as: Any = functools.partial(
    numba.jit,
    _target=_NAME,
    pipeline_class=_Frontend,
    _nrt=False,  # nothing here has a reference count
    nogil=True,
    boundscheck=False,
    error_model="numpy",
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
)
"""`numba.jit` with the target here, and without checks."""
target_extension.jit_registry[_Kind] = compile_as
