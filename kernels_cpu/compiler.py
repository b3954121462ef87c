"""Compile a Python function to object code.

Numba writes a kernel and everything that it calls as one LLVM module (`numba_frontend`), and `plan_compiler`
writes a plan; it is optimised here. The object code has an entry with one fixed C interface; everything else
in it is internal, and it refers to no outside symbols but C's memory functions.
"""

from types import FunctionType
from typing import Any

import llvmlite.binding as llvm

from kernels_cpu import processor
from kernels_cpu.foreign import DEFINITIONS, SYMBOLS
from kernels_cpu.kernel import INTEGER, Kernel, imported
from kernels_cpu.linking import ENTRY
from kernels_cpu.plan_compiler import POINTER, plan_ir

_C_IMPORTS = {"memcpy", "memmove", "memset"}


def _imports_of(kernel: Kernel) -> set[str]:
    """Return the outside functions that a kernel may call."""
    of_python = set(SYMBOLS.values()) - set(DEFINITIONS) if kernel.uses_python else set()
    return _C_IMPORTS | of_python


def compile_kernel(kernel: Kernel) -> bytes:
    """Return the object code of a kernel for this processor."""
    if kernel.is_plan:
        return _compile_plan(_source_of(kernel), kernel)
    from kernels_cpu.numba_frontend import COMPILER_LOCK  # noqa: PLC0415

    # Taken before any import that may wait for it: another thread with this lock may be in that import.
    with COMPILER_LOCK:
        return _compile(kernel)


def _source_of(kernel: Kernel) -> Any:
    """Return the function that is compiled, or Numba's dispatcher of it."""
    found = imported(kernel.source)
    return found(*kernel.parameters) if kernel.parameters else found


def _compile_plan(plan: FunctionType, kernel: Kernel) -> bytes:
    """Return the object code of a plain function of integers and words; Numba is not needed for it."""
    machine = _target_machine()
    kinds = [INTEGER if kind == INTEGER else POINTER for kind in kernel.signature]
    fit = imported(kernel.fit) if kernel.fit else None
    module = llvm.parse_assembly(plan_ir(plan, kinds, ENTRY, is_direct=kernel.uses_python, fit=fit))
    module.data_layout, module.triple = str(machine.target_data), machine.triple
    # A plan runs once per call: more optimisation would take longer than it could save.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = False
    _reduce_to_entry(module, _imports_of(kernel), options)
    _rename_by_position(module)
    return bytes(machine.emit_object(module))


def _compile(kernel: Kernel) -> bytes:
    from kernels_cpu.intrinsics.pointers import type_of  # noqa: PLC0415

    dispatcher = _source_of(kernel)
    if isinstance(dispatcher, FunctionType):
        return _compile_plan(dispatcher, kernel)
    types = tuple(type_of(name) for name in kernel.signature)
    dispatcher.compile(types)
    overload = dispatcher.overloads[types]
    module = llvm.parse_assembly(dispatcher.inspect_llvm(types))
    module.link_in(llvm.parse_assembly(_entry_ir(module, overload.fndesc.mangled_name)))
    _reduce_to_entry(module, _C_IMPORTS, llvm.create_pipeline_tuning_options(speed_level=3))
    _rename_by_position(module)
    return bytes(_target_machine().emit_object(module))


def _entry_ir(module: llvm.ModuleRef, name: str) -> str:
    """Return the entry: it loads each argument from its word and calls the kernel as Numba does.

    Numba's functions return a status, and take addresses for the result and for an exception before their
    own arguments. Kernels raise nothing.
    """
    kinds = [str(argument.type) for argument in module.get_function(name).arguments]
    lines, arguments = [], ["ptr %result", "ptr %error"]
    for i, kind in enumerate(kinds[2:]):
        lines.append(f"%address{i} = getelementptr i64, ptr %words, i64 {i}")
        lines.append(f"%word{i} = load i64, ptr %address{i}, align 1")
        conversion = "inttoptr i64 %word{} to ptr" if kind == "ptr" else "add i64 %word{}, 0"
        lines.append(f"%argument{i} = {conversion.format(i)}")
        arguments.append(f"{kind} %argument{i}")
    body = "\n  ".join(lines)
    return f"""
target datalayout = "{module.data_layout}"
target triple = "{module.triple}"
declare i32 @"{name}"({", ".join(kinds)})
define i64 @{ENTRY}(ptr %words) {{
  %result = alloca i64
  %error = alloca ptr
  store i64 0, ptr %result
  {body}
  %status = call i32 @"{name}"({", ".join(arguments)})
  %value = load i64, ptr %result
  ret i64 %value
}}
"""


def _reduce_to_entry(module: llvm.ModuleRef, allowed: set[str], options: llvm.PipelineTuningOptions) -> None:
    """Make all but the entry internal, optimise, and drop what the entry does not need."""
    for definition in (*module.functions, *module.global_variables):
        if not definition.is_declaration and definition.name != ENTRY:
            definition.linkage = llvm.Linkage.internal
    builder = llvm.create_pass_builder(_target_machine(), options)
    passes = builder.getModulePassManager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
    symbols = (*module.functions, *module.global_variables)
    declared = {symbol.name for symbol in symbols if symbol.is_declaration}
    unknown = sorted(name for name in declared - allowed if not name.startswith("llvm."))
    if unknown:
        msg = f"compiled code must not depend on {', '.join(unknown)}"
        raise RuntimeError(msg)


def _rename_by_position(module: llvm.ModuleRef) -> None:
    """Rename internal functions, so that object code does not depend on the order of compilations.

    Numba's names have a number that counts all functions of the process.
    """
    definitions = (*module.functions, *module.global_variables)
    internal = [each for each in definitions if not each.is_declaration and each.name != ENTRY]
    for i, definition in enumerate(internal):
        definition.name = f"internal_{i}"


def _target_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=processor.NAME, features=processor.FEATURES, opt=3, reloc="pic"
    )
