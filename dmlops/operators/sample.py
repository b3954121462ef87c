"""Sampling: a token per row of logits, drawn by a seed. DirectML has no such operator."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NoReturn

from dmlops.operators.batching import BATCH, Batched, Layout
from dmlops.operators.descriptor import Descriptor, check_holds, check_index_type, result
from dmlops.operators.layout import merge
from dmlops.operators.problem import Operator, Options
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import UnsupportedFeatureError, Words, argument_of, error_text, refuse
from dmlops.types.opaque_types import ElementType, type_name
from dmlops.types.scalars import float_format
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import WHOLE_ROWS, SampleProblem

MAX_ELEMENTS = 1 << 26
"""Elements of a row whose weights can be added up in 64 bits."""
INTEGER_PARAMETERS = ("seeds", "steps", "k")
PARAMETERS = ("seeds", "steps", "temperature", "k", "top_p", "min_p")
"""In the order in which kernels take them."""
_FLOATS = frozenset(
    {TensorDataType.FLOAT16, TensorDataType.BFLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64}
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class SampleCall(Descriptor):
    """A call of `sample`, which only the feature level EXTENDED has."""

    input_tensor: TensorDesc
    """The logits."""
    output_tensor: TensorDesc
    """The tokens."""
    values: Sequence[int]
    """For each parameter its value as a signed 64-bit integer: a float by the bits of its float64; 0 stands
    for an array."""
    given: Mapping[str, TensorDesc]
    """The parameters that are arrays."""
    stage: int = WHOLE_ROWS
    """What is computed (`kernels_cpu.problems`)."""

    def in_form_of(self, level: FeatureLevel, words: Words | None = None) -> NoReturn:
        """Refuse a level of DirectML, which has no such operator."""
        where, reason = (words or self.words).where("feature_level"), "DirectML has no such operator"
        remedy = f"the lowest level that supports it is {FeatureLevel.EXTENDED.name}"
        raise UnsupportedFeatureError(error_text(where, level.name, reason, remedy))


def infer_sample(
    words: Words, logits: TensorDesc, index_type: TensorDataType, given: Mapping[str, TensorDesc]
) -> TensorDesc:
    """Return the tokens of a call; `given` has the parameters that are arrays."""
    where = words.where("input_tensor")
    check_is_float(where, logits.data_type)
    if not logits.sizes:
        refuse(where, "0 dimensions", "the last dimension holds a row", "it must have at least 1")
    *rows, n = logits.sizes
    if n > MAX_ELEMENTS:
        reason = f"it has rows of {n} elements, whose weights do not fit into 64 bits together"
        refuse(where, f"shape {logits.sizes}", reason, f"rows have at most {MAX_ELEMENTS} elements")
    for name, desc in given.items():
        place = f"sample.{name}"
        if name in INTEGER_PARAMETERS:
            check_index_type(place, desc.data_type)
        else:
            check_is_float(place, desc.data_type)
        missing = len(rows) - desc.dimension_count
        sizes = (1,) * max(missing, 0) + desc.sizes
        if missing < 0 or any(size not in (1, row) for size, row in zip(sizes, rows, strict=True)):
            reason = f"logits without the last dimension have shape {tuple(rows)}"
            refuse(place, f"shape {desc.sizes}", reason, "it must broadcast to that")
    tokens = words.where("output_tensor", ".data_type")
    check_holds(tokens, index_type, max(n - 1, 0), "a token")
    return result(words.where("output_tensor", ".sizes"), index_type, tuple(rows))


def batch_of_draws(shapes: Mapping[str, Sequence[int]], batched: Set[str], arguments: object) -> Batched:
    """Return the one call for a batch; see `dmlops.operators.batching`."""
    n_rows_dims = len(shapes["logits"]) - 1
    layouts: dict[str, Layout] = {"logits": (BATCH, *range(n_rows_dims + 1))}
    for name in batched - {"logits"}:  # the others broadcast
        rank = len(shapes[name])
        layouts[name] = (BATCH, *(None,) * (n_rows_dims - rank), *range(rank))
    return Batched(layouts)


def check_is_float(where: str, data_type: ElementType) -> None:
    """Refuse types other than floats of 16 to 64 bits."""
    if data_type not in _FLOATS:
        allowed = f"{argument_of(where)} must be float16, bfloat16, float32 or float64"
        raise TypeError(error_text(where, type_name(data_type), "it is not a float type", allowed))


def _format_of(data_type: ElementType) -> int:
    if data_type.is_float:
        return float_format(data_type).mantissa
    return 2 * data_type.bytes + data_type.is_signed


def _strides_in(desc: TensorDesc | None, n_rows_dims: int) -> tuple[int, ...]:
    """Return the strides of a parameter along the dimensions of rows, to which it is broadcast."""
    if desc is None:
        return (0,) * n_rows_dims
    steps = zip(desc.sizes, desc.effective_strides, strict=True)
    strides = [stride if size > 1 else 0 for size, stride in steps]
    return (*(0,) * (n_rows_dims - len(strides)), *strides)


def sample_problem(call: SampleCall, options: Options) -> SampleProblem:
    """Return the problem of a call."""
    x, tokens = call.input_tensor, call.output_tensor
    *row_strides, step = x.effective_strides
    given = [call.given.get(name) for name in PARAMETERS]
    strides = [_strides_in(desc, len(row_strides)) for desc in given]
    return SampleProblem(
        element_size=x.data_type.bytes,
        mantissa=float_format(x.data_type).mantissa,
        index_size=tokens.data_type.bytes,
        axis_size=x.sizes[-1],
        x_step=step,
        formats=tuple([0 if desc is None else _format_of(desc.data_type) for desc in given]),
        values=tuple(call.values),
        rows=merge(x.sizes[:-1], row_strides, tokens.effective_strides, *strides),
        stage=call.stage,
    )


OPERATOR = Operator("sample", (SampleCall,), sample_problem, ())
