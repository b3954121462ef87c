"""``torch.ops.dmlops.diagonal_matrix``."""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dmlops import functions
from dmlops.array_libraries.torch import check_kind
from dmlops.calls.binding import Spec
from dmlops.functions.diagonal_matrix import SPEC
from dmlops.integrations.torch.arguments import number, scalar, tensor, torch_dtype
from dmlops.integrations.torch.derivatives import is_known
from dmlops.integrations.torch.operators.registration import Symbols, operator
from dmlops.operators.diagonal_matrix import band_bounds, check_matrices, infer_diagonal_matrix, near_band
from dmlops.types import arguments
from dmlops.types.data_types import data_type_of
from dmlops.types.errors import error_text, shown
from dmlops.types.tensor import sizes_stand_in

# The bounds of a band are 64-bit integers. No element is on a diagonal so far out.
_FARTHEST_DIAGONAL = 2**62


class DiagonalCall(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    value: torch.types.Number
    begin: int
    end: int


def front(
    spec: Spec, inputs: Sequence[object], out: object, pattern: Any, value: Any, begin: object, end: object
) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """Return the tensors that a call of the function reads, and what computes its results.

    If `inputs` is empty, `pattern` has the arguments ``shape``, ``dtype`` and ``like``.
    """
    value = scalar(value, f"{spec.name}.value")
    begin, end = near_band(*band_bounds(spec.name, number(begin), number(end)), _FARTHEST_DIAGONAL)
    read = {}
    if inputs:
        where = spec.words.where("input_tensor")
        read[where] = x = tensor(inputs[0], where)
        check_matrices(where, tuple(x.shape))
    else:
        x = _zeros(spec, pattern, out)

    def fill() -> Tensor:
        # The difference is NaN for infinities and NaN.
        if torch.compiler.is_exporting() and x.is_floating_point() and is_known(value - value != 0):
            # AOTInductor passes the arguments of operators as JSON, which has no such numbers.
            return (torch.where(_band(x, begin, end), value, x),)
        return (DIAGONAL_MATRIX(x, value, begin, end),)

    return read, fill


def _zeros(spec: Spec, pattern: tuple[object, object, object], out: Any) -> Tensor:
    """Return zeros as the input of a diagonal matrix that has none."""
    where = spec.name
    shape, dtype, like = pattern
    pattern_field = f"{where}.like"
    if like is None and out is not None:
        like, pattern_field = out, f"{where}.out"
    if not isinstance(like, Tensor):
        reason = "the result would be a NumPy array, which torch does not trace"
        raise TypeError(error_text(pattern_field, shown(like), reason, "it must be a tensor"))
    check_kind(like, pattern_field)
    shape = out.shape if shape is None else shape
    if hasattr(shape, "__len__"):
        arguments.check_dimensions(spec.words.where("output_tensor", ".sizes"), len(shape))
    if not isinstance(shape, Iterable) or all(isinstance(size, int) for size in shape):
        shape = arguments.sizes(shape, f"{where}.shape")
        check_matrices(spec.words.where("output_tensor", ".sizes"), shape)
    result_type = like.dtype if dtype is None else torch_dtype(data_type_of(dtype, f"{where}.dtype"))
    return like.new_zeros((), dtype=result_type).expand(shape)


@sizes_stand_in()
def _fake(call: DiagonalCall) -> Tensor:
    symbols = Symbols()
    # The shape of the result depends neither on the bounds nor on a traced value.
    known = call.value if isinstance(call.value, (int, float, complex)) else 0
    data = symbols.describe(call.x, "diagonal_matrix.x")
    return symbols.empty(call.x, infer_diagonal_matrix(SPEC.words, data.data_type, data.sizes, known))


def _differentiate(call: DiagonalCall) -> Tensor:
    x = call.x
    if x.dim() < 2:
        return DIAGONAL_MATRIX(*call._replace(x=x.detach()))  # this refuses it
    fill = DIAGONAL_MATRIX(torch.zeros((1, 1), dtype=x.dtype, device=x.device), call.value, 0, 1)
    return torch.where(_band(x, call.begin, call.end), fill, x).contiguous()


def _band(x: Tensor, begin: int, end: int) -> Tensor:
    """Return a matrix that is True where `x` is filled."""
    nothing = torch.zeros((), dtype=torch.bool, device=x.device)
    band: Tensor = DIAGONAL_MATRIX(nothing.expand(x.shape[-2:]), 1, begin, end)
    return band


def to_onnx(onnx: ModuleType, call: Any) -> object:
    """Translate a call."""
    op, (x, value, begin, end) = onnx.op, call
    ones = op.Expand(onnx.ints([1]), op.Shape(x, start=-2))
    low, high = (max(min(bound, onnx.FAR), -onnx.FAR) for bound in sorted((begin, end)))
    upper = op.Trilu(ones, op.Constant(value_int=low), upper=1)
    band = op.Trilu(upper, op.Constant(value_int=high - 1), upper=0)
    value = onnx.constant(value)
    choice = (op.CastLike(value, x), x) if begin <= end else (x, op.CastLike(value, x))
    return op.Where(op.Cast(band, to=onnx.DataType.BOOL), *choice)


DIAGONAL_MATRIX = operator(
    "diagonal_matrix",
    DiagonalCall,
    functions.diagonal_matrix,
    _fake,
    differentiate=_differentiate,
    batch=SPEC.batch,
)
OPERATORS = {DIAGONAL_MATRIX: DiagonalCall}
