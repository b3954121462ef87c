"""The function `sample`."""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Unpack, overload

import numpy as np
from numpy import generic, ndarray

from dmlops.array_libraries.detect import compiling_framework
from dmlops.calls.binding import Binding, Spec
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, Kind
from dmlops.operators.sample import (
    INTEGER_PARAMETERS,
    MAX_ELEMENTS,
    PARAMETERS,
    SampleCall,
    batch_of_draws,
    infer_sample,
)
from dmlops.types import arguments
from dmlops.types.array_types import Array, IndexType, Listed, SampleOptions
from dmlops.types.data_types import index_data_type, index_range
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import error_text, refuse, shown
from dmlops.types.scalars import as_real, float_bits, float_format
from kernels_cpu.integers import signed
from kernels_cpu.problems import SHARD_SUMS, SHARD_TARGETS, SHARD_TOKENS, WHOLE_ROWS

# Bits of float64.
_INFINITY, _ONE, _SIGN = 0x7FF << 52, 0x3FF << 52, 1 << 63
_INT64, _UINT64 = (1 << 63) - 1, (1 << 64) - 1
_floats, _words = Struct("<d"), Struct("<Q")
_NUMBERS = frozenset((int, float, type(None), bool, str, bytes))
_NO_PARAMETERS = {"seeds": 0, "steps": 0, "temperature": 1.0, "k": None, "top_p": 1.0, "min_p": 0.0}
_OF_ARRAYS = "ndim", "__len__", "__dlpack__", "__cuda_array_interface__", "__array_interface__", "__array__"


@overload
def sample(logits: np.ndarray | Listed, /, seeds: object, **options: Unpack[SampleOptions]) -> np.ndarray: ...
@overload
def sample(logits: Array, /, seeds: object, **options: Unpack[SampleOptions]) -> Array: ...
@arguments.also_known_as(dtype="index_dtype", generator="seeds", seed="seeds", step="steps", top_k="k")
def sample(
    logits: object,
    /,
    seeds: object,
    *,
    steps: object = 0,
    temperature: object = 1.0,
    k: object = None,
    top_p: object = 1.0,
    min_p: object = 0.0,
    index_dtype: IndexType = None,
    out: object = None,
    stream: object = None,
    **unknown: object,
) -> object:
    """Return one token per row of logits, drawn by a seed: the same on every device and in every batch.

    Parameters
    ----------
    logits : array
        Floats of 16, 32 or 64 bits, of shape (..., n) with ``n <= 2**26``. All other arrays broadcast to the
        shape without the last dimension, and are on the same device. They are read there; the call never
        waits for them.
    seeds, steps : int or array of uint32, uint64, int32 or int64
        The seed of each row and the number of the draw, 64 bits each. The same two numbers give the same
        random word.
    temperature : float or array of floats
        Differences between logits are divided by it. At 0 or below, the first element in order is taken; in
        an array, at NaN as well.
    k : int or array of integers, optional
        Only the `k` largest elements take part. None, 0, negative numbers and those above n stand for all.
    top_p : float or array of floats
        Of what `k` and `min_p` leave, only the fewest largest elements take part whose weights make up this
        share of the sum. In an array, numbers outside of [0, 1] stand for the nearest one, and NaN for 1.
    min_p : float or array of floats
        Elements take part only if their weight is at least this share of the largest. In an array, numbers
        outside of [0, 1] stand for the nearest one, and NaN for 0.
    index_dtype : data type, optional
        The type of the tokens: uint32, uint64, int32 or int64. The default is that of `out`. Without `out` it
        is int64, or JAX's default integer for JAX.
    out : array, optional
        The array to write the tokens to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        The indices of the drawn elements, in the shape of `logits` without the last dimension. Elements are
        in the order of `top_k`: by value, ties by index, NaN last. A row in which no element has a weight,
        because it is empty or all are NaN or minus infinity, gives -1 (all bits set in an unsigned type).

    Raises
    ------
    InvalidDescriptorError
        If a number is out of range, a row is too long, or an array does not fit.
    TypeError
        If an argument is of an unsupported type.
    DeviceMismatchError
        If an array or `stream` is on another device.
    UnsupportedFeatureError
        At a feature level of DirectML, which has no such operator; or if the driver or the extra for CUDA
        arrays is missing.

    Notes
    -----
    Weights are integers within 2^-36 of the largest, and sums of integers, so that neither the device nor the
    batch changes a token (docs/operators/sample.md, which also says how often a row is read).

    References
    ----------
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox4x32-10.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.sample([[1.0, 3.0, 2.0], [0.0, 0.0, 9.0]], seeds=[1, 2], temperature=0.5)
    array([2, 2])
    """
    if unknown:
        arguments.refuse_unknown("sample", unknown)
    given = seeds, steps, temperature, k, top_p, min_p
    if type(logits) is not ndarray and (framework := compiling_framework()) is not None:
        return framework.run(SPEC, (logits,), out, stream, given, index_dtype)[0]
    names, arrays, values = split(given)
    inputs = (logits, *arrays)
    index_type = None if index_dtype is None else index_data_type(index_dtype, "sample.index_dtype")
    parameters = "sample", names, index_type, level_set()
    outs = () if out is None else (out,)
    results = KINDS.call(parameters, inputs, values, outs) if stream is None else None
    if results is None:
        others = given, index_type, names, values
        results = SPEC.with_arrays(names).run(parameters, values, inputs, out, stream, *others)
    return results[0] if out is None else out


def sums_of_shard(x: Array, *, largest: Array, temperature: object, min_p: object) -> Array:
    """Return the sums of the weights of shards; `largest` has the largest element of each whole row."""
    return stage_of_shards(SHARD_SUMS, x, top_p=largest, temperature=temperature, min_p=min_p)


def targets_in_shard(sums: Array, *, shard: int, seeds: object, steps: object, temperature: object) -> Array:
    """Return what the running sum of a shard has to exceed at the token, or -1 if that is in another shard.

    The integers of the shards' sums are passed as the bits of floats.
    """
    return stage_of_shards(SHARD_TARGETS, sums, k=shard, seeds=seeds, steps=steps, temperature=temperature)


def tokens_of_shard(
    x: Array, *, largest: Array, targets: Array, start: int, temperature: object, min_p: object
) -> Array:
    """Return the tokens in a shard that begins at `start` of the whole rows, or -1."""
    given = {"k": targets, "seeds": start, "top_p": largest, "temperature": temperature, "min_p": min_p}
    return stage_of_shards(SHARD_TOKENS, x, **given)


def stage_of_shards(stage: int, x: Array, **given: object) -> Array:
    """Compute a stage, whose parameters have the names of those in their places (`problem_words`)."""
    parameters = tuple((_NO_PARAMETERS | given).values())
    names, arrays, values = split(parameters)
    inputs, index_type = (x, *arrays), TensorDataType.INT64
    kind = "sample", names, index_type, level_set(), stage
    results = KINDS.call(kind, inputs, values)
    if results is None:
        others = parameters, index_type, names, values, stage
        results = SPEC.with_arrays(names).run(kind, values, inputs, None, None, *others)
    return results[0]  # type: ignore[return-value]


def split(given: Sequence[object]) -> tuple[tuple[str, ...], list[object], tuple[int, ...]]:
    """Separate the parameters that are arrays, with a number for each row, from those that are numbers.

    Returns
    -------
    names, arrays : tuple of str, list of array
        The parameters that are arrays.
    values : tuple of int
        For each parameter its value as a signed 64-bit integer: a float by the bits of its float64; 0 stands
        for an array.
    """
    names, arrays, values = [], [], []
    for name, value in zip(PARAMETERS, given, strict=True):
        if is_array(value):
            names.append(name)
            arrays.append(arguments.integers(value) if name in INTEGER_PARAMETERS else value)
            values.append(0)
        else:
            values.append(signed(_integer(name, value) if name in INTEGER_PARAMETERS else _real(name, value)))
    return tuple(names), arrays, tuple(values)


def is_array(value: object) -> bool:
    """Return whether a parameter is an array, or what becomes one."""
    if type(value) in _NUMBERS or isinstance(value, generic):
        return False
    return any(hasattr(value, attribute) for attribute in _OF_ARRAYS)


def _integer(name: str, value: object) -> int:
    """Return a number of 64 bits."""
    if name == "k":
        number = 0 if value is None else arguments.integer(value, "sample.k")
        return min(max(number, 0), _INT64)
    number = arguments.integer(value, f"sample.{name}")
    if not ~_INT64 <= number <= _UINT64:
        allowed = f"{name} must be in [{~_INT64}, {_UINT64}]"
        refuse(f"sample.{name}", number, "it has more than 64 bits", allowed)
    return number


def _real(name: str, value: object) -> int:
    """Return the bits of a float64, which must be in range."""
    if type(value) is float:
        bits: int = _words.unpack(_floats.pack(value))[0]
    else:
        real = as_real(value)
        if real is None:
            allowed = f"{name} must be a real number"
            raise TypeError(error_text(f"sample.{name}", shown(value), "it is not a number", allowed))
        found = float_bits(real, float_format(TensorDataType.FLOAT64))
        bits = _INFINITY | (_SIGN if real < 0 else 0) if found is None else found
    magnitude = bits & _INT64
    if name == "temperature" and magnitude > _INFINITY:
        refuse("sample.temperature", shown(value), "differences are divided by it", "it must not be NaN")
    if name != "temperature" and (magnitude > _ONE or (bits != magnitude and magnitude)):
        refuse(f"sample.{name}", shown(value), "it is a share of the weights", "it must be in [0, 1]")
    return bits


def _bind(
    call: Binding,
    parameters: Sequence[object],
    index_type: TensorDataType | None,
    names: Sequence[str],
    values: tuple[int, ...],
    stage: int = WHOLE_ROWS,
) -> BoundCall:
    logits, *others = call.inputs
    given = dict(zip(names, others, strict=True))
    index_type = call.index_type(index_type, 0)
    (tokens,) = call.check_outputs(infer_sample(call.words, logits, index_type, given))
    form = KindForm("sample", Kind, values, (index_range(index_type)[0], MAX_ELEMENTS), _result_shapes)
    described = SampleCall.of_inferred(
        input_tensor=logits, output_tensor=tokens, values=values, given=given, stage=stage
    )
    return call.plan(described, form=form)


def _result_shapes(inputs: Sequence[Any], sizes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (inputs[0].shape[:-1],)


SPEC = Spec(
    "sample",
    _bind,
    inputs=("logits",),
    results={"tokens": "index_dtype"},
    fields={"input_tensor": "logits"},
    made={"output_tensor": "index_dtype"},
    has_derivative=False,
    batch=batch_of_draws,
)
