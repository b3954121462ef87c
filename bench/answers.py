"""Check dmlops' answer to a workload: every element is checked before anything is timed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import to_long, to_numpy
from bench.peers import Task, band_mask, index_key

SORTED_ELEMENTS = 1 << 28
_BY_NUMPY = ("top_k_rows", "sample")


def fault(task: Task, answer: Any) -> str | None:
    """Return the fault of an answer, or None; most torch tensors are checked on their own device."""
    results = answer if isinstance(answer, tuple) else (answer,)
    operator, name = task.workload.operator, task.workload.operator
    is_torch = all(libraries.is_torch(array) for array in (*task.inputs, *results))
    if not is_torch or operator in _BY_NUMPY:
        task = Task(task.workload, tuple(map(to_numpy, task.inputs)), task.threads)
        results = tuple(map(to_numpy, results))
    elif operator == "top_k":
        name = "torch_top_k"
    return _CHECKS[name](task, *results)


def _same(actual: Any, expected: Any, what: str) -> str | None:
    if libraries.is_torch(actual):
        torch = libraries.module("torch")
        if actual.is_floating_point():
            integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
            actual, expected = actual.contiguous().view(integers), expected.contiguous().view(integers)
        same = torch.equal(actual, expected)
    else:
        same = actual.shape == expected.shape and actual.tobytes() == expected.tobytes()
    return None if same else f"{what} differ"


def _top_k(task: Task, values: Any, indices: Any) -> str | None:
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
    is_torch = libraries.is_torch(task.x)
    expected = libraries.module("torch").nonzero(task.x) if is_torch else np.argwhere(task.x)
    if int(count.reshape(-1)[0]) != len(expected):
        return "the count differs"
    return _same(to_long(coordinates), expected, "coordinates")


def _sample(task: Task, tokens: Any) -> str | None:
    """Check that k and top_p leave the tokens in; other tests check the draw."""
    x, k, top_p = task.x.astype(np.float64), task.workload.k or task.x.shape[-1], task.workload.top_p
    weights = np.exp(x - x.max(-1, keepdims=True))
    drawn = np.take_along_axis(weights, tokens.astype(np.int64)[:, None], -1)
    before = np.where(weights > drawn, weights, 0).sum(-1)
    of_first = np.partition(weights, -k, -1)[:, -k:].sum(-1)
    is_wrong = ((weights > drawn).sum(-1) >= k) | (before > (top_p + 1e-9) * of_first) | (drawn[:, 0] == 0)
    return "a token is one that k or top_p leaves out" if is_wrong.any() else None


def _gather_nd(task: Task, output: Any) -> str | None:
    return _same(output, task.x[index_key(task)], "elements")


def _diagonal_matrix(task: Task, output: Any) -> str | None:
    x, mask = task.x, band_mask(task)
    if libraries.is_torch(x):
        return _same(output, libraries.module("torch").where(mask, task.workload.value, x), "elements")
    return _same(output, np.where(mask, x.dtype.type(task.workload.value), x), "elements")


def _torch_top_k(task: Task, values: Any, indices: Any) -> str | None:
    size, k = task.workload.shape[task.workload.axis], task.workload.k
    rows = [
        array.movedim(task.workload.axis, -1).reshape(-1, length)
        for array, length in ((task.x, size), (values, k), (indices, k))
    ]
    # A stable sort needs several times the memory of what it sorts.
    parts = zip(*(array.split(max(1, SORTED_ELEMENTS // size)) for array in rows), strict=True)
    return next((wrong for part in parts if (wrong := _torch_rows(task.workload, *part))), None)


def _torch_rows(workload: Any, x: Any, values: Any, indices: Any) -> str | None:
    ordered = libraries.module("torch").sort(x, dim=-1, descending=workload.largest, stable=True)
    expected_values, expected = (array[:, : workload.k] for array in ordered)
    if not workload.is_sorted:
        expected, order = expected.sort(dim=-1)
        expected_values = expected_values.gather(-1, order)
    return _same(indices.long(), expected, "indices") or _same(values, expected_values, "values")


_CHECKS: dict[str, Callable[..., str | None]] = {
    "top_k": _top_k,
    "torch_top_k": _torch_top_k,
    "top_k_rows": _top_k_rows,
    "nonzero_coordinates": _nonzero_coordinates,
    "sample": _sample,
    "gather_nd": _gather_nd,
    "diagonal_matrix": _diagonal_matrix,
}
