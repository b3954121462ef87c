"""Check dmlops' answer to a workload: every element is checked before anything is timed."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import to_numpy
from bench.peers import Task, band_mask, index_key

SORTED_ELEMENTS = 1 << 28


def fault(task: Task, answer: Any) -> str | None:
    """Return the fault of an answer, or None; torch tensors are checked on their own device."""
    results = answer if isinstance(answer, tuple) else (answer,)
    operator = task.workload.operator
    if operator in _TORCH and all(libraries.is_torch(array) for array in (*task.inputs, *results)):
        return _TORCH[operator](task, *results)
    host = Task(task.workload, tuple(map(to_numpy, task.inputs)), task.threads)
    return _NUMPY[operator](host, *map(to_numpy, results))


def _same(actual: Any, expected: Any, what: str) -> str | None:
    same = actual.shape == expected.shape and actual.tobytes() == expected.tobytes()
    return None if same else f"{what} differ"


def _top_k(task: Task, values: Any, indices: Any) -> str | None:
    if task.workload.lengths:
        return _top_k_of_lengths(task, values, indices)
    axis = task.workload.axis
    x, values, indices = (np.moveaxis(array, axis, -1) for array in (task.x, values, indices))
    indices = indices.astype(np.int64)
    if indices.size and not 0 <= indices.min() <= indices.max() < x.shape[-1]:
        return "indices are out of range"
    if wrong := _same(values, np.take_along_axis(x, indices, -1), "values and indices"):
        return wrong
    keys = _keys(x) if task.workload.largest else ~_keys(x)
    found = np.take_along_axis(keys, indices, -1)
    if not task.workload.is_sorted:
        if (indices[..., :-1] >= indices[..., 1:]).any():
            return "not by ascending index"
        order = np.argsort(~found, axis=-1, kind="stable")
        found, indices = (np.take_along_axis(array, order, -1) for array in (found, indices))
    before, after = found[..., :-1], found[..., 1:]
    in_order = (before > after) | ((before == after) & (indices[..., :-1] < indices[..., 1:]))
    if not in_order.all():
        return "not sorted with ties by ascending index"
    # All elements up to the last one found, in the order of the result, must have been found.
    last_key, last_index = found[..., -1:], indices[..., -1:]
    positions = np.arange(x.shape[-1])
    selected = (keys > last_key) | ((keys == last_key) & (positions <= last_index))
    return None if (selected.sum(-1) == indices.shape[-1]).all() else "not the first k of the order"


def _top_k_rows(task: Task, values: Any, indices: Any) -> str | None:
    x, *others = task.inputs
    numbers = dict(zip(task.workload.names, others, strict=True)).get("indices")
    k = task.workload.k
    expected = np.full(values.shape, -np.inf).astype(values.dtype), np.full_like(indices, -1)
    for row, (start, length) in enumerate(zip(*task.workload.windows, strict=True)):
        part = (x[row] if x.ndim > 1 else x)[start : start + length]
        given = np.arange(start, start + length) if numbers is None else numbers[row]
        order = np.lexsort((given, ~_keys(part)))[:k]
        if not task.workload.is_sorted:
            order = order[np.argsort(given[order], kind="stable")]
        expected[0][row, : len(order)], expected[1][row, : len(order)] = part[order], given[order]
    return _same(values, expected[0], "values") or _same(indices, expected[1], "indices")


def _top_k_of_lengths(task: Task, values: Any, indices: Any) -> str | None:
    (x, lengths), k = task.inputs, task.workload.k
    padding = -np.inf if task.workload.largest else np.inf
    for row, length in enumerate(lengths):
        count = min(int(length), k)
        shape = (1, int(length))
        workload = replace(task.workload, shape=shape, k=count, lengths="")
        found = [array[row : row + 1, :count] for array in (values, indices)]
        if wrong := _top_k(Task(workload, (x[row : row + 1, :length],), 1), *found):
            return wrong
        if (values[row, count:] != padding).any() or (indices[row, count:].astype(np.int32) != -1).any():
            return "the padding differs"
    return None


def _keys(x: Any) -> Any:
    """Return unsigned integers in the order that top_k defines."""
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    if x.dtype.kind == "u":
        return bits
    sign = bits.dtype.type(1 << (8 * x.itemsize - 1))
    if x.dtype.kind == "i":
        return bits ^ sign
    bits = np.where(bits == sign, bits.dtype.type(0), bits)
    keys = np.where(bits & sign, ~bits, bits | sign)
    keys[np.isnan(x)] = ~bits.dtype.type(0)
    return keys


def _nonzero_coordinates(task: Task, coordinates: Any, count: Any) -> str | None:
    (x,) = task.inputs
    expected = np.flatnonzero(x)
    if int(count.reshape(-1)[0]) != len(expected) or len(coordinates) != len(expected):
        return "the count differs"
    flat: Any = 0
    for size, column in zip(x.shape, coordinates.T, strict=True):
        if column.size and column.max() >= size:
            return "a coordinate is out of range"
        flat = flat * size + column.astype(np.int64)
    return None if np.array_equal(flat, expected) else "coordinates differ"


def _sample(task: Task, tokens: Any) -> str | None:
    """Check that k and top_p leave the tokens in; other tests check the draw."""
    x, k, top_p = task.x.astype(np.float64), task.workload.k or task.x.shape[-1], task.workload.top_p
    weights = np.exp(x - x.max(-1, keepdims=True))
    drawn = np.take_along_axis(weights, tokens.astype(np.int64)[:, None], -1)
    before = np.where(weights > drawn, weights, 0).sum(-1)
    of_first = np.sort(weights, -1)[:, -k:].sum(-1)
    is_wrong = ((weights > drawn).sum(-1) >= k) | (before > (top_p + 1e-9) * of_first) | (drawn[:, 0] == 0)
    return "a token is one that k or top_p leaves out" if is_wrong.any() else None


def _torch_sample(task: Task, tokens: Any) -> str | None:
    x, k, top_p = task.x.double(), task.workload.k or task.x.shape[-1], task.workload.top_p
    weights = (x - x.amax(-1, keepdim=True)).exp()
    drawn = weights.gather(-1, tokens.long().reshape(-1, 1))
    before = weights.where(weights > drawn, 0).sum(-1)
    of_first = weights.topk(k, -1).values.sum(-1)
    is_wrong = ((weights > drawn).sum(-1) >= k) | (before > (top_p + 1e-9) * of_first) | (drawn[:, 0] == 0)
    return "a token is one that k or top_p leaves out" if is_wrong.any() else None


def _gather_nd(task: Task, output: Any) -> str | None:
    return _same(output, task.x[index_key(task)], "elements")


def _diagonal_matrix(task: Task, output: Any) -> str | None:
    x = task.x
    return _same(output, np.where(band_mask(task), x.dtype.type(task.workload.value), x), "elements")


def _torch_same(actual: Any, expected: Any, what: str) -> str | None:
    torch = libraries.module("torch")
    if actual.is_floating_point():
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
        actual, expected = actual.contiguous().view(integers), expected.contiguous().view(integers)
    return None if torch.equal(actual, expected) else f"{what} differ from torch's"


def _torch_top_k(task: Task, values: Any, indices: Any) -> str | None:
    size, k = task.workload.shape[task.workload.axis], task.workload.k
    rows = [
        array.movedim(task.workload.axis, -1).reshape(-1, length)
        for array, length in ((task.x, size), (values, k), (indices, k))
    ]
    rows += task.inputs[1:]
    # A stable sort needs several times the memory of what it sorts.
    parts = zip(*(array.split(max(1, SORTED_ELEMENTS // size)) for array in rows), strict=True)
    return next((wrong for part in parts if (wrong := _torch_rows(task.workload, *part))), None)


def _torch_rows(workload: Any, x: Any, values: Any, indices: Any, lengths: Any = None) -> str | None:
    torch, k = libraries.module("torch"), workload.k
    padding = -math.inf if workload.largest else math.inf
    if lengths is not None:
        is_past = torch.arange(x.shape[-1], device=x.device) >= lengths[:, None]
        x = x.masked_fill(is_past, padding)
    ordered = torch.sort(x, dim=-1, descending=workload.largest, stable=True)
    expected_values, expected = (array[:, :k] for array in ordered)
    if not workload.is_sorted:
        expected, order = expected.sort(dim=-1)
        expected_values = expected_values.gather(-1, order)
    if lengths is not None:
        # No element of a row is as small as the padding, and the sort is stable: elements come first.
        expected = expected.masked_fill(is_past[:, :k], -1)
    return _torch_same(indices.long(), expected, "indices") or _torch_same(values, expected_values, "values")


def _torch_nonzero_coordinates(task: Task, coordinates: Any, count: Any) -> str | None:
    expected = libraries.module("torch").nonzero(task.x)
    if int(count.reshape(-1)[0]) != len(expected):
        return "the count differs"
    return _torch_same(coordinates.long(), expected, "coordinates")


def _torch_gather_nd(task: Task, output: Any) -> str | None:
    return _torch_same(output, task.x[index_key(task)], "elements")


def _torch_diagonal_matrix(task: Task, output: Any) -> str | None:
    expected = libraries.module("torch").where(band_mask(task), task.workload.value, task.x)
    return _torch_same(output, expected, "elements")


_NUMPY: dict[str, Callable[..., str | None]] = {
    "top_k": _top_k,
    "top_k_rows": _top_k_rows,
    "nonzero_coordinates": _nonzero_coordinates,
    "sample": _sample,
    "gather_nd": _gather_nd,
    "diagonal_matrix": _diagonal_matrix,
}
_TORCH: dict[str, Callable[..., str | None]] = {
    "top_k": _torch_top_k,
    "nonzero_coordinates": _torch_nonzero_coordinates,
    "sample": _torch_sample,
    "gather_nd": _torch_gather_nd,
    "diagonal_matrix": _torch_diagonal_matrix,
}
