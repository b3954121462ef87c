"""Numba as a front end that infers types and writes LLVM IR; the only module that touches Numba's internals.

By itself, Numba optimises every function and generates its machine code before it turns to the functions that
call it. This takes most of the time of a compilation, for code that is thrown away: `compiler` optimises a
kernel together with everything that it calls. Other Numba functions can still call kernels, because they only
need the IR.
"""

import functools
from typing import Any

from numba.core import codegen, compiler
from numba.core.typed_passes import IRLegalization, NopythonRewrites
from numba.core.untyped_passes import InlineClosureLikes

# These look for closures and expressions of arrays, and mark where references to objects end. Kernels have
# none of these.
_NEEDLESS_PASSES = (InlineClosureLikes, NopythonRewrites, IRLegalization)


class Frontend(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's compiler, which stops at IR: a ``pipeline_class`` of `numba.njit`."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes, the last of which writes to a library of ours."""
        if self.state.library is None:
            self.state.library = _codegen().create_library("dmlops")
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

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing: an environment has the Python objects of a function, and kernels have none."""


@functools.cache
def _codegen() -> _Codegen:
    return _Codegen("dmlops")
