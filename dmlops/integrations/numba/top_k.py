"""`dmlops.top_k` in compiled functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

import dmlops
from dmlops import TopKResult
from dmlops.functions.top_k import SPEC, plain_max_length
from dmlops.integrations.numba import building
from dmlops.integrations.numba.calls import Bindable, CallError, Request, index_type_of, operation
from dmlops.operators.top_k import Selection
from kernels_cpu.intrinsics.building import I64

_ALL = (1 << 63) - 1


def _bind(request: Request) -> Bindable:
    axis, largest, is_sorted, nan_last, has_longest, which, code = request.scalars
    k, longest = request.sizes
    names = ("lengths", "starts", "indices")
    beside = {name: True for i, name in enumerate(names) if which >> i & 1}
    selection = Selection(
        k,
        axis,
        bool(largest),
        bool(is_sorted),
        bool(nan_last),
        plain_max_length(longest if has_longest else None, beside),
        index_type_of(code, "top_k.index_dtype"),
        tuple(beside),
    )
    return SPEC.with_arrays(selection.given), len(request.arrays) - 2, (selection,)


SELECT = operation(0, _bind)


@intrinsic
def shape_of_rows(typing_context, shape, axis, size, lengths, starts):
    """Return the shape to which rows and their windows broadcast, with another size along the axis.

    Of the shapes of windows, one may be None. Sizes that are negative or overflow become 0 (`shape_with`).
    """
    windows = [kind for kind in (lengths, starts) if not building.is_none(kind)]
    rank = max([len(shape), *[len(kind) + 1 for kind in windows]])

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[ir.Value]) -> object:
        pairs = zip(signature.args, arguments, strict=True)
        of_x, [axis], [size], *others = (building.as_words(context, builder, *each) for each in pairs)
        one, added = I64(1), rank - len(of_x)
        # If there are more dimensions, the axis is the last one.
        axis = builder.select(builder.icmp_signed("<", axis, I64(0)), builder.add(axis, I64(len(of_x))), axis)
        axis = builder.add(axis, I64(added))
        sizes = []
        for d in range(rank):
            found = of_x[d - added] if d >= added else one
            is_behind = builder.icmp_signed("<", axis, I64(d))
            for other in others:
                at = d - (rank - 1 - len(other))
                here = other[at] if 0 <= at < len(other) else one
                before = other[at - 1] if 0 < at <= len(other) else one
                own = builder.select(is_behind, before, here)
                found = builder.select(builder.icmp_signed("==", found, one), own, found)
            found = builder.select(builder.icmp_signed("==", axis, I64(d)), size, found)
            sizes.append(found)
        return context.make_tuple(builder, signature.return_type, building.countable(builder, sizes, one))

    return types.UniTuple(types.int64, rank)(shape, axis, size, lengths, starts), generate


@building.function(dmlops.top_k)
def _top_k(
    x,
    k,
    axis=-1,
    largest=True,
    sorted=True,
    starts=None,
    lengths=None,
    max_length=None,
    indices=None,
    nan_last=False,
    index_dtype=None,
    out=None,
):
    arguments = {"k": k, "axis": axis, "largest": largest, "sorted": sorted, "max_length": max_length}
    windows = {"lengths": lengths, "starts": starts}
    # An integer is the window of all rows.
    integers = {name: kind for name, kind in windows.items() if building.is_integer(kind)}
    arrays = {name: kind for name, kind in windows.items() if name not in integers}
    building.check("top_k", arguments | {"nan_last": nan_last} | integers, x=x, indices=indices, **arrays)
    has_out, is_scalar = building.is_pair("top_k", out), x.ndim == 0
    dtype, code = building.named(index_dtype, "top_k.index_dtype", np.int64)
    has_lengths, has_starts, has_numbers = (not building.is_none(kind) for kind in (lengths, starts, indices))
    has_longest, is_plain = not building.is_none(max_length), not (has_lengths or has_starts)
    is_length, is_start = "lengths" in integers, "starts" in integers
    which = has_lengths | has_starts << 1 | has_numbers << 2
    dtype = building.dtype_of(indices, "top_k.indices") if has_numbers else dtype

    def call_top_k(
        x,
        k,
        axis=-1,
        largest=True,
        sorted=True,
        starts=None,
        lengths=None,
        max_length=None,
        indices=None,
        nan_last=False,
        index_dtype=None,
        out=None,
    ):
        given = (1,) if is_scalar else x.shape
        all_lengths = np.full((), lengths) if is_length else lengths
        all_starts = np.full((), starts) if is_start else starts
        of_lengths = all_lengths.shape if has_lengths else None
        of_starts = all_starts.shape if has_starts else None
        if is_plain and not has_numbers:
            shape = building.shape_with(given, axis, k, 1)
        else:
            shape = shape_of_rows(given, axis, k, of_lengths, of_starts)
        results = out if has_out else (np.empty(shape, x.dtype), np.empty(shape, dtype))
        scalars = axis, largest, sorted, nan_last, has_longest, which, code
        sizes = k, max_length if has_longest else _ALL
        arrays = x, all_lengths, all_starts, indices, results
        if building.call(SELECT, scalars, sizes, has_out, arrays) != 0:
            raise CallError
        return TopKResult(results[0], results[1])

    return call_top_k
