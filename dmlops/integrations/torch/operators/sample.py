"""``torch.ops.dmlops.sample``."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dmlops import functions
from dmlops.calls.binding import Spec, check_device
from dmlops.functions.sample import SPEC, is_array, stage_of_shards
from dmlops.integrations.torch.arguments import as_tensor, integer, real, tensor
from dmlops.integrations.torch.arguments import index_dtype as dtype_of
from dmlops.integrations.torch.operators.registration import Symbols, broadcast, operator
from dmlops.operators.sample import INTEGER_PARAMETERS, PARAMETERS, infer_sample
from dmlops.types.data_types import index_data_type
from dmlops.types.tensor import TensorDesc, sizes_stand_in
from kernels_cpu.problems import WHOLE_ROWS


class SampleCall(NamedTuple):
    """The arguments of the operator: of each parameter a tensor, or a number."""

    logits: Tensor
    tensors: Sequence[Tensor]
    which: int
    """The parameters that `tensors` are, in order: bit i stands for ``PARAMETERS[i]``."""
    seed: int
    step: int
    temperature: float
    k: int
    top_p: float
    min_p: float
    index_dtype: torch.dtype | None = None
    stage: int = WHOLE_ROWS
    """What is computed (`kernels_cpu.problems`)."""

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the function, by name."""
        numbers = self.seed, self.step, self.temperature, self.k, self.top_p, self.min_p
        return dict(zip(PARAMETERS, numbers, strict=True)) | self.arrays()

    def arrays(self) -> dict[str, Tensor]:
        """Return the parameters that are tensors, by name."""
        names = [name for i, name in enumerate(PARAMETERS) if self.which >> i & 1]
        return dict(zip(names, self.tensors, strict=True))


def front(
    spec: Spec,
    inputs: Sequence[object],
    out: object,
    given: Sequence[object],
    index_dtype: object,
    _names: object = (),
    _values: object = (),
    stage: int = WHOLE_ROWS,
) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """Return the tensors that a call of the function reads, and what computes its results."""
    logits = tensor(inputs[0], "sample.logits")
    read = {"sample.logits": logits}
    numbers, which = [], 0
    for i, (name, value) in enumerate(zip(PARAMETERS, given, strict=True)):
        where = f"sample.{name}"
        number: float = 0
        if is_array(value):
            read[where] = as_tensor(value, where)
            which |= 1 << i
        elif name not in INTEGER_PARAMETERS:
            number = real(value, where)
        elif value is not None or name != "k":
            number = integer(value, where)
        numbers.append(number)
    tensors = [*read.values()][1:]

    def draw() -> Tensor:
        dtype = dtype_of(index_dtype, None if out is None else (out, out), "sample")
        return (SAMPLE(logits, tensors, which, *numbers, dtype, stage),)

    return read, draw


@sizes_stand_in()
def _fake(call: SampleCall) -> Tensor:
    symbols, logits, dtype = Symbols(), call.logits, call.index_dtype
    data, arrays = symbols.describe(logits, "sample.logits"), {}
    for name, array in call.arrays().items():
        where = f"sample.{name}"
        check_device(where, array.device, logits.device)
        desc = symbols.describe(array, where)
        rows, shape = [*data.sizes[:-1]], [*logits.shape[:-1]]
        arrays[name] = broadcast(where, desc, array.shape, rows, shape, "logits")
    is_sized = all(isinstance(size, int) for size in logits.shape[-1:])
    index_type = index_data_type((dtype if is_sized else None) or torch.int64, "sample.index_dtype")
    if not is_sized:
        data = TensorDesc(data.data_type, (*data.sizes[:-1], 1))
    tokens = infer_sample(SPEC.words, data, index_type, arrays)
    return symbols.empty(logits, tokens).to(dtype or torch.int64)


def _run(logits: Tensor, /, **arguments: Any) -> Any:
    call = SampleCall(logits, **arguments)
    if call.stage != WHOLE_ROWS:
        return stage_of_shards(call.stage, logits, **call.parameters())
    return functions.sample(logits, **call.parameters(), index_dtype=call.index_dtype)


SAMPLE = operator("sample", SampleCall, _run, _fake, batch=SPEC.batch)
OPERATORS = {SAMPLE: SampleCall}
