"""Check dmlops' answer to a workload: every element is checked before anything is timed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import to_long, to_numpy
from bench.peers import Task, band_mask, index_key

SORTED_ELEMENTS = 1 << 28


def fault(task: Task, answer: Any) -> str | None:
    """Return the fault of an answer, or None; most torch tensors are checked on their own device."""
    results = answer if isinstance(answer, tuple) else (answer,)
    operator = task.workload.operator
    rows = task.workload.rows if operator == "top_k" else ""
    is_torch = all(libraries.is_torch(array) for array in (*task.inputs, *results))
    if not is_torch or rows or operator == "sample":
        task = Task(task.workload, tuple(map(to_numpy, task.inputs)))
        results = tuple(map(to_numpy, results))
    elif operator == "top_k":
        operator = "top_k by torch"
    return _CHECKS["top_k of rows" if rows else operator](task, *results)


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
    workload = task.workload
    x, values, indices = (np.moveaxis(array, workload.axis, -1) for array in (task.x, values, indices))
    keys = _keys(x)
    order = np.argsort(~keys if workload.largest else keys, axis=-1, kind="stable")[..., : workload.k]
    if not workload.is_sorted:
        order.sort(-1)
    wrong = _same(indices.astype(np.int64), order, "indices")
    return wrong or _same(values, np.take_along_axis(x, order, -1), "values")


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


def _torch_top_k(task: Task, values: Any, indices: Any) -> str | None:
    workload = task.workload
    size = workload.shape[workload.axis]
    arrays = ((task.x, size), (values, workload.k), (indices, workload.k))
    rows = [array.movedim(workload.axis, -1).reshape(-1, length) for array, length in arrays]
    # A stable sort needs several times the memory of what it sorts.
    for x, found, places in zip(*(each.split(max(1, SORTED_ELEMENTS // size)) for each in rows), strict=True):
        ordered = x.sort(dim=-1, descending=workload.largest, stable=True)
        expected, order = (array[:, : workload.k] for array in ordered)
        if not workload.is_sorted:
            order, by_index = order.sort(dim=-1)
            expected = expected.gather(-1, by_index)
        if wrong := _same(places.long(), order, "indices") or _same(found, expected, "values"):
            return wrong
    return None


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


def _diagonal_matrix(task: Task, output: Any) -> str | None:
    x, mask, value = task.x, band_mask(task), task.workload.value
    if libraries.is_torch(x):
        return _same(output, libraries.module("torch").where(mask, value, x), "elements")
    return _same(output, np.where(mask, x.dtype.type(value), x), "elements")


_CHECKS: dict[str, Callable[..., str | None]] = {
    "top_k": _top_k,
    "top_k by torch": _torch_top_k,
    "top_k of rows": _top_k_rows,
    "nonzero_coordinates": _nonzero_coordinates,
    "sample": _sample,
    "gather_nd": lambda task, output: _same(output, task.x[index_key(task)], "elements"),
    "diagonal_matrix": _diagonal_matrix,
}
