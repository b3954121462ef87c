"""`dmlops.gather_nd` in compiled functions."""

import numpy as np

import dmlops
from dmlops.calls.call import BoundCall
from dmlops.functions.gather_nd import SPEC
from dmlops.integrations.numba.building import call, check, function, is_none, refuse, value_code
from dmlops.integrations.numba.calls import Bindable, CallError, Request, operation, value_of
from dmlops.operators.gather_nd import element_fill
from dmlops.types.errors import refuse as refuse_call
from kernels_cpu.gather_nd.problem_words import CHECKS

_MODES = ("raise", "clip", "fill")


def _bind(request: Request) -> Bindable:
    batch_dims, wraps, mode, code = request.scalars[:4]
    fill = element_fill(value_of(request, 4, len(request.scalars), code), _MODES[mode])
    return SPEC, 2, (batch_dims, _MODES[mode], fill, bool(wraps))


def _check_result(request: Request, bound: BoundCall) -> None:
    """Refuse a call with a new output of another number of dimensions than Numba allocates."""
    shape = bound.results[0].sizes
    if not request.has_out and shape != request.arrays[1].shape[:-1]:
        reason = f"the result has shape {shape}, and Numba has to know how many dimensions"
        refuse_call("gather_nd.out", None, reason, "pass an array of that shape")


GATHER = operation(2, _bind, check=_check_result)
# Comes before a gather to an output of the caller, which native code only writes to if all indices are in
# range.
CHECK = operation(3, _bind, changes={CHECKS: 1}, expected=-1)


@function(dmlops.gather_nd)
def _gather_nd(x, indices, batch_dims=0, mode="raise", fill_value=0, wrap_negative=True, out=None):
    integers = {"batch_dims": batch_dims, "wrap_negative": wrap_negative}
    check("gather_nd", integers, x=x, indices=indices, out=out)
    if is_none(indices):
        refuse("gather_nd.indices", indices, "it must be an array")
    name = getattr(mode, "literal_value", getattr(mode, "value", mode))
    if name not in _MODES:
        refuse("gather_nd.mode", mode, f"it must be a literal of {', '.join(_MODES)}")
    has_out = not is_none(out)
    described = _MODES.index(name), value_code(fill_value, "gather_nd.fill_value")
    checks_first = has_out and name == "raise"

    def call_gather(x, indices, batch_dims=0, mode="raise", fill_value=0, wrap_negative=True, out=None):
        result = out if has_out else np.empty(indices.shape[:-1], x.dtype)
        scalars = batch_dims, wrap_negative, described, fill_value
        if checks_first and call(CHECK, scalars, (), True, (x, indices, out)) != 0:
            raise CallError
        if call(GATHER, scalars, (), has_out, (x, indices, result)) != 0:
            raise CallError
        return result

    return call_gather
