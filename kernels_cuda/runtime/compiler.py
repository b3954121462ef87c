"""From a Python function to a cubin; only this module and `numba_shortcuts` touch the insides of numba-cuda.

Nothing here needs a GPU or a driver. Numba compiles a kernel to PTX for a compute capability, and nvJitLink
makes a cubin of it.
"""

import functools
import operator
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from kernels_cuda.runtime.variant import Variant, capability_of, is_ptx

with warnings.catch_warnings():
    # Its NumPy deprecations are not ours to answer, and must not stop users who make errors of them.
    warnings.simplefilter("ignore")
    from llvmlite import ir
    from numba import cuda, types
    from numba.core import typing
    from numba.cuda.core import compiler_lock, targetconfig

    from kernels_cuda.runtime.numba_shortcuts import numba_shortcuts

_STATE = threading.local()
# Functions of kernels, and what each was compiled to for other capabilities than the last.
_FUNCTIONS: list[tuple[Any, dict[tuple[int, int], dict[Any, Any]]]] = []
_compiled_for: tuple[int, int] | None = None
# PTX changes at these compute capabilities only: kernels ask for 8.0 and 9.0 (`ptx`, `short_rows`), and
# NVVM has another code generator from 10.0 on.
_CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0))
_LAST_ASKED_FOR = (9, 0)
_ENTRY = re.compile(r"\.entry\s+([^\s(]+)")
# Functions and variables of Numba's, whose names count what the process compiled before.
_COUNTED_NAME = re.compile(r"\b_(?:ZN|cudapy_smem_)[\w$]+")
_DYNAMIC_ARRAY = re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)")
# Toolkits begin dynamic shared memory at a multiple of this many bytes, and up to 13.0 of no more, whatever a
# kernel asks for.
_DYNAMIC_ALIGNMENT = 16

_SHIFTS = {operator.lshift, operator.rshift, operator.ilshift, operator.irshift}
_COMPARISONS = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}
_UNSIGNED_OPERATORS = {
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
    *(operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod),
    *(operator.and_, operator.or_, operator.xor, operator.iand, operator.ior, operator.ixor),
    *(operator.invert, operator.neg),
    *_SHIFTS,
    *_COMPARISONS,
}
_UNSIGNED_TYPES = (types.uint32, types.uint64)
_SCALARS = (types.Integer, types.Boolean)
# Signatures of functions of integers, and what generates their code, by the function's key and types.
_TYPED: dict[tuple[Any, tuple[Any, ...]], tuple[Any, Any]] = {}

# Spellings that numba-cuda still looks up while its modules are imported, and NumPy has dropped.
_DROPPED_BY_NUMPY = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}


def _of_each_capability(dispatcher: Any) -> Any:
    """Have a function compiled anew for each capability: Numba keeps its code whatever the architecture."""
    _FUNCTIONS.append((dispatcher, {}))
    return dispatcher


def device_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels, each of which takes it in whole.

    Numba inlines most of them, and compiles the others as it does linked functions.
    """
    return _of_each_capability(cuda.jit(device=True, inline="always")(function))


def linked_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels, and have it compiled once for all of them.

    The assembler inlines it all the same. For functions of some size: Numba takes a time that grows faster
    than the size of what it compiles in one piece.
    """
    return _of_each_capability(cuda.jit(device=True, forceinline=True)(function))


def called_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels, which may call it: for long functions that run once per row."""
    return _of_each_capability(cuda.jit(device=True)(function))


@device_function
def dynamic_shared_array(dtype):
    """Return the dynamic shared memory of a block as an array: the same memory, whatever the type."""
    return cuda.shared.array(0, dtype, _DYNAMIC_ALIGNMENT)


def target_capability() -> tuple[int, int]:
    """Return the compute capability that the running compilation is for.

    It is one of `_CAPABILITIES`: code that is to differ at others needs them to be named there.
    """
    capability: tuple[int, int] = _STATE.capability
    return capability


@contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    # Numba compiles a linked function for the current device, which need not be there, and keeps it.
    from numba.cuda import dispatcher  # noqa: PLC0415

    global _compiled_for  # noqa: PLW0603
    if _compiled_for != capability:
        for function, kept in _FUNCTIONS:
            if _compiled_for is not None:
                kept[_compiled_for] = dict(function.overloads)
            function.overloads.clear()
            function.overloads.update(kept.get(capability, {}))
    _compiled_for = _STATE.capability = capability
    current_device = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = current_device


def _unsigned_signature(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the signature of an operator of unsigned integers and constants, as C has it, or None.

    Numba would go on with 64 bits, or with a sign, or with floats.
    """
    unsigned = [argument for argument in arguments if argument in _UNSIGNED_TYPES]
    others = [argument for argument in arguments if argument not in _UNSIGNED_TYPES]
    are_constants = all(
        isinstance(other, types.IntegerLiteral) and other.literal_value >= 0 for other in others
    )
    if function not in _UNSIGNED_OPERATORS or not unsigned or not are_constants:
        return None
    kind = unsigned[0] if function in _SHIFTS else max(unsigned, key=lambda argument: argument.bitwidth)
    return typing.signature(types.boolean if function in _COMPARISONS else kind, *(kind for _ in arguments))


@contextmanager
def _typing_as_in_c() -> Iterator[None]:
    """Type operators of unsigned integers as C does, and what was typed before at once.

    The caller holds Numba's compiler lock, so that nobody else's functions are typed meanwhile.
    """
    as_numba_does = types.functions.BaseFunction.get_call_type

    def get_call_type(function: Any, context: Any, arguments: Any, keywords: Any) -> Any:
        if keywords or not all(isinstance(argument, _SCALARS) for argument in arguments):
            return as_numba_does(function, context, arguments, keywords)
        if function.typing_key is types.NamedTupleClass:  # all of them have the same key
            return as_numba_does(function, context, arguments, keywords)
        # Numba makes a new function of every conversion such as ``u32(i)``; they have the same key, too.
        key = function.typing_key, tuple(arguments)
        if key not in _TYPED:
            signature = _unsigned_signature(*key)
            if signature is None:
                signature = as_numba_does(function, context, arguments, keywords)
                _TYPED[key] = signature, function.get_impl_key(signature)
            else:
                _TYPED[key] = signature, function.typing_key
        signature, function._impl_keys[signature.args] = _TYPED[key]
        return signature

    types.functions.BaseFunction.get_call_type = get_call_type
    try:
        yield
    finally:
        types.functions.BaseFunction.get_call_type = as_numba_does


@contextmanager
def _lent_numpy_names() -> Iterator[None]:
    lent = {old: new for old, new in _DROPPED_BY_NUMPY.items() if not hasattr(np, old)}
    for old, new in lent.items():
        setattr(np, old, getattr(np, new))
    try:
        yield
    finally:
        for old in lent:
            delattr(np, old)


@functools.cache
def import_numba_registries() -> None:
    """Import what Numba imports on its first compilation: only then does it look up those names."""
    with _lent_numpy_names():
        import numba.cuda.np.arraymath  # noqa: PLC0415
        import numba.cuda.np.arrayobj  # noqa: F401, PLC0415


@contextmanager
def _compilation(capability: tuple[int, int]) -> Iterator[None]:
    """Compile for a capability, with our typing, and without Numba's warnings."""
    with compiler_lock.global_compiler_lock:
        import_numba_registries()
        with (
            # All later architectures share the functions that kernels call.
            _compiling_for(min(capability, _LAST_ASKED_FOR)),
            _typing_as_in_c(),
            numba_shortcuts(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield


def call_linked(function: Any, context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
    """Generate a call of a linked function, compiled as our kernels are, in a kernel that Numba compiles."""
    flags = targetconfig.ConfigStack.top_or_none()
    capability = flags.compute_capability or cuda.get_current_device().compute_capability
    with _compilation(tuple(capability)):
        compiled = function.compile_device(sig.args)
    for variable in compiled.library._module.global_values:
        if variable.type.addrspace == 3:  # Numba repeats shared arrays for each function that leads to them
            variable.linkage = "internal"
    context.active_code_library.add_linking_library(compiled.library)
    return context.call_internal(builder, compiled.fndesc, sig, arguments)


# Where arrays of Numba have the address of their elements: after two objects, the count and the element size.
_ADDRESS_FIELD = 4


def local_lengths(builder: Any, array: Any) -> set[int]:
    """Return the lengths of the local arrays that a value may be, as far as the instructions before it tell.

    Numba's types do not have lengths. A variable holds what was stored there, and that holds the address of
    stack memory, whose type has its length. Arrays that come from elsewhere have none here.
    """
    instructions = [each for block in builder.function.blocks for each in block.instructions]
    stored: dict[int, list[Any]] = {}
    addresses: dict[int, list[int]] = {}
    for each in instructions:
        if isinstance(each, ir.instructions.StoreInstr):
            value, place = each.operands
            stored.setdefault(id(place), []).append(value)
        elif isinstance(each, ir.instructions.GEPInstr):
            indices = [getattr(index, "constant", None) for index in each.indices]
            if indices == [0, _ADDRESS_FIELD]:
                addresses.setdefault(id(each.pointer), []).append(id(each))
    lengths, seen, waiting = set(), set(), [array]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, ir.instructions.LoadInstr):
            continue
        seen.add(id(value))
        place = id(value.operands[0])
        waiting += stored.get(place, [])
        for address in addresses.get(place, []):
            for pointer in stored.get(address, []):
                memory = pointer.operands[0] if isinstance(pointer, ir.instructions.CastInstr) else pointer
                if isinstance(memory, ir.instructions.AllocaInstr):
                    lengths.add(memory.type.pointee.count)
    return lengths


def parameter_type(annotation: Any) -> Any:
    """Return the Numba type of a kernel's parameter.

    A parameter is an int64, unless its annotation is a Numba type, a tuple such as ``tuple[int, int]``, or a
    NamedTuple class: then it is a tuple of such parameters, which a launch passes one by one, in order.
    """
    if isinstance(annotation, types.Type):
        return annotation
    fields = getattr(annotation, "_fields", None)
    if fields is not None:
        hints = get_type_hints(annotation)
        return types.BaseTuple.from_types([parameter_type(hints[field]) for field in fields], annotation)
    return integers(len(get_args(annotation))) if get_origin(annotation) is tuple else types.int64


def integers(count: int) -> Any:
    """Return the type of a parameter that is a tuple of int64."""
    return types.UniTuple(types.int64, count)


def parameter_types(kernel: Any) -> dict[str, Any]:
    """Return the names and the types of a kernel's parameters."""
    return {
        name: parameter_type(parameter.annotation)
        for name, parameter in signature(kernel.py_func).parameters.items()
    }


def _signature(kernel: Any) -> Any:
    return types.void(*parameter_types(kernel).values())


def make_kernel(variant: Variant, capability: tuple[int, int]) -> Any:
    """Return the ``@cuda.jit`` function of a variant, as it is for a compute capability."""
    with compiler_lock.global_compiler_lock:
        _STATE.capability = capability
        return resolve_name(variant.factory)(*variant.parameters)


def max_registers(kernel: Any) -> int | None:
    """Return the limit on the registers of a thread that a kernel was declared with."""
    limit: int | None = kernel.targetoptions.get("max_registers")
    return limit


def ptx_capability(capability: tuple[int, int]) -> tuple[int, int]:
    """Return the compute capability whose PTX is the best for another one: the toolkit may be older."""
    from numba.cuda.cudadrv.nvrtc import get_supported_ccs  # noqa: PLC0415

    known = {*get_supported_ccs()} & {*_CAPABILITIES}
    return max((each for each in known if each <= capability), default=capability)


def compile_ptx(kernel: Any, name: str, capability: tuple[int, int]) -> str:
    """Compile a kernel to PTX whose only entry is `name`.

    Parameters
    ----------
    kernel : numba.cuda dispatcher
        A function decorated with ``@cuda.jit``.
    name : str
        Name of the entry in the PTX and in profilers: letters, digits and underscores.
    capability : tuple of two ints
        Compute capability, for example ``(9, 0)``, that NVVM knows (`ptx_capability`).

    Raises
    ------
    RuntimeError
        If dynamic shared memory is declared otherwise than by `dynamic_shared_array`.
    """
    with _compilation(capability):
        ptx: str
        ptx, _ = cuda.compile_ptx(kernel.py_func, _signature(kernel), cc=capability)
    mangled = _ENTRY.search(ptx)
    if mangled is None:
        msg = f"{name}: the PTX has no entry"
        raise RuntimeError(msg)
    for alignment in map(int, _DYNAMIC_ARRAY.findall(ptx)):
        if alignment != _DYNAMIC_ALIGNMENT:
            msg = f"{name}: dynamic shared memory is aligned to {_DYNAMIC_ALIGNMENT} bytes, not {alignment}"
            raise RuntimeError(msg)
    return _renamed_by_position(ptx.replace(mangled[1], name))


def _renamed_by_position(ptx: str) -> str:
    """Return PTX that is the same in whichever order kernels are compiled."""
    names: dict[str, str] = {}
    return _COUNTED_NAME.sub(lambda found: names.setdefault(found[0], f"internal_{len(names)}"), ptx)


def compile_cubin(ptx: str, arch: str, max_registers: int | None = None) -> bytes:
    """Assemble PTX for an architecture such as ``"sm_90"``."""
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415

    program = Program(ptx, "ptx", ProgramOptions(arch=arch, max_register_count=max_registers))
    try:
        return bytes(program.compile("cubin").code)
    finally:
        program.close()


def compile_variant(variant: Variant, arch: str) -> bytes:
    """Return the code of a variant: a cubin for ``"sm_90"``, PTX for ``"compute_90"``.

    Architectures in a row share what is the same for them.
    """
    ptx, limit = _ptx_and_limit(variant, ptx_capability(capability_of(arch)))
    return _limited(ptx, limit).encode() if is_ptx(arch) else compile_cubin(ptx, arch, limit)


@functools.lru_cache(len(_CAPABILITIES))
def _ptx_and_limit(variant: Variant, capability: tuple[int, int]) -> tuple[str, int | None]:
    kernel = make_kernel(variant, capability)
    return compile_ptx(kernel, variant.label, capability), max_registers(kernel)


def _limited(ptx: str, max_registers: int | None) -> str:
    """Return PTX that tells the driver the limit on registers, without which large blocks may not start."""
    if max_registers is None:
        return ptx
    # The directive stands between the parameters and the body.
    return re.sub(r"(\.entry[^)]*\))", rf"\1\n.maxnreg {max_registers}", ptx, count=1)
