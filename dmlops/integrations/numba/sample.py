"""`dmlops.sample` in compiled functions."""

import numpy as np
from numba import types

import dmlops
from dmlops.functions.sample import SPEC, split
from dmlops.integrations.numba.building import call, check, function, is_none, named, value_code
from dmlops.integrations.numba.calls import Bindable, CallError, Request, index_type_of, operation
from dmlops.operators.sample import INTEGER_PARAMETERS, PARAMETERS


def _bind(request: Request) -> Bindable:
    which, code = request.scalars
    named = tuple([name for i, name in enumerate(PARAMETERS) if which >> i & 1])
    _, _, values = split(request.sizes)
    return (
        SPEC.with_arrays(named),
        len(request.arrays) - 1,
        ((), index_type_of(code, "sample.index_dtype"), named, values),
    )


DRAW = operation(6, _bind, reads_bits=True)


@function(dmlops.sample)
def _sample(
    logits, seeds, steps=0, temperature=1.0, k=None, top_p=1.0, min_p=0.0, index_dtype=None, out=None
):
    kinds = dict(zip(PARAMETERS, (seeds, steps, temperature, k, top_p, min_p), strict=True))
    arrays = {name: kind for name, kind in kinds.items() if isinstance(kind, types.Array)}
    check("sample", {}, logits=logits, out=out, **arrays)
    for name, kind in kinds.items():
        if name in INTEGER_PARAMETERS and name not in arrays and not (name == "k" and is_none(kind)):
            check("sample", {name: kind})
        elif name not in arrays and name not in INTEGER_PARAMETERS:
            value_code(kind, f"sample.{name}")
    dtype, code = named(index_dtype, "sample.index_dtype", np.int64)
    has_out, has_k = not is_none(out), not is_none(k)
    are_arrays = tuple([name in arrays for name in PARAMETERS])
    of_seeds, of_steps, of_temperature, of_k, of_top_p, of_min_p = are_arrays
    which = sum(1 << i for i, is_array in enumerate(are_arrays) if is_array)

    def call_sample(
        logits, seeds, steps=0, temperature=1.0, k=None, top_p=1.0, min_p=0.0, index_dtype=None, out=None
    ):
        tokens = out if has_out else np.empty(logits.shape[:-1], dtype)
        sizes = (
            0 if of_seeds else seeds,
            0 if of_steps else steps,
            0.0 if of_temperature else np.float64(temperature),
            k if has_k and not of_k else 0,
            0.0 if of_top_p else np.float64(top_p),
            0.0 if of_min_p else np.float64(min_p),
        )
        given = (
            seeds if of_seeds else None,
            steps if of_steps else None,
            temperature if of_temperature else None,
            k if of_k else None,
            top_p if of_top_p else None,
            min_p if of_min_p else None,
        )
        if call(DRAW, (which, code), sizes, has_out, (logits, given, tokens)) != 0:
            raise CallError
        return tokens

    return call_sample
