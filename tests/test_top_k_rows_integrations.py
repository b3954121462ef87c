"""Windows, numbers and `nan_last` of `top_k` in torch, JAX and compiled callers, also differentiated."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, random

# Importing torch's and JAX's transformations warns, by version.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.*")


def _cases():
    rng = random("rows in libraries")
    x = np.float32(rng.standard_normal((4, 30)))
    tied = np.round(x)
    with_nan = np.where(rng.random(x.shape) < 0.3, np.float32(np.nan), x)
    numbers = rng.integers(-1, 9, x.shape)
    columns = np.array([[0], [7], [25]])
    segments = {"starts": np.array([0, 5, 9, 29, 30]), "lengths": np.array([5, 4, 20, 9, 1])}
    return {
        "windows": (x, 5, {"starts": np.array([-3, 4, 20, 29]), "lengths": np.array([10, 3, 30, 1])}),
        "broadcast": (x, 5, {"starts": columns, "lengths": np.array(6)}),
        "segments": (x[0].copy(), 5, {**segments, "max_length": 11}),
        "beyond": (x[:, :3].copy(), 5, {"starts": np.array([0, 1, 2, 3])}),
        "along": (x, 5, {"indices": rng.permutation(30)}),
        "ties": (tied, 5, {"indices": numbers.astype("int32")}),
        "unsorted": (tied, 5, {"indices": np.abs(numbers).astype("uint64"), "sorted": False}),
        "one_number": (tied, 5, {"indices": numbers[:, :1], "starts": np.array([0, 2, 9, 27])}),
        "segments_with_numbers": (tied[0], 5, {"indices": numbers[0], **segments}),
        "columns": (x, 3, {"indices": rng.permutation(4), "axis": 0}),
        "nan_last": (with_nan, 20, {"nan_last": True}),
        "zero_dimensions": (x[0, 0], 1, {"starts": np.array([0, 1, -1])}),
        "zero_dimensions_with_number": (x[0, 0], 1, {"indices": np.array([3])}),
    }


CASES = _cases()
BY_NAME = pytest.mark.parametrize(("x", "k", "options"), CASES.values(), ids=CASES)


def positions(x, k, options):
    """Return the positions of the selected elements, and -1 after them; numbers of elements are in order."""
    numbers, axis, x = options.get("indices"), options.get("axis", -1), np.atleast_1d(x)
    if numbers is None:
        return reference.top_k(x, k, **options)[1]
    if numbers.ndim == 1:
        numbers = numbers.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
    numbers = np.broadcast_to(numbers, x.shape)
    order = np.argsort(numbers, axis=axis, kind="stable")
    ranks = np.where(numbers == np.array(-1).astype(numbers.dtype), -1, np.argsort(order, axis=axis))
    found = np.moveaxis(reference.top_k(x, k, **options | {"indices": ranks})[1], axis, -1)
    order = np.broadcast_to(np.moveaxis(order, axis, -1), (*found.shape[:-1], x.shape[axis]))
    places = np.take_along_axis(order, np.maximum(found, 0), -1)
    return np.moveaxis(np.where(found < 0, -1, places), -1, axis)


def change_of_values(change, k, x, options):
    """Return the derivative of the values along a change of `x`, and its transpose for a gradient."""
    axis, places = options.get("axis", -1), positions(x, k, options)
    rows = np.moveaxis(np.atleast_1d(change), axis, -1)
    found = np.moveaxis(places, axis, -1)
    numbers = np.arange(rows.size).reshape(rows.shape)
    numbers = np.broadcast_to(numbers, (*found.shape[:-1], rows.shape[-1]))
    taken = np.take_along_axis(numbers, np.maximum(found, 0), -1)
    moved = np.where(found < 0, 0, rows.ravel()[taken])

    def gradient(weights):
        weights = np.where(found < 0, 0, np.moveaxis(weights, axis, -1))
        summed = np.bincount(taken.ravel(), weights.ravel(), rows.size).reshape(rows.shape)
        return np.moveaxis(summed, -1, axis).reshape(np.shape(change))

    return np.moveaxis(moved, -1, axis), gradient


def assert_same_pair(got, expected, to_numpy):
    for result, answer in zip(got, expected, strict=True):
        assert_same(np.ascontiguousarray(to_numpy(result)), np.ascontiguousarray(answer))


def arrays_of(options):
    return [name for name, value in options.items() if isinstance(value, np.ndarray)]


@BY_NAME
def test_torch(x, k, options):
    torch = pytest.importorskip("torch")
    expected, rng = reference.top_k(x, k, **options), random("torch")
    given = {name: torch.from_numpy(options[name]) for name in arrays_of(options)}
    tensor = torch.from_numpy(np.array(x))

    def select(x, *others):
        return dmlops.top_k(x, k, **options | given | dict(zip(given, others, strict=False)))

    def same(results):
        assert_same_pair(results, expected, lambda result: result.detach().numpy())

    for _ in range(2):
        same(select(tensor))
    change, weights = (np.float32(rng.standard_normal(shape)) for shape in (x.shape, expected[0].shape))
    moved, gradient = change_of_values(change, k, x, options)
    tracked = torch.from_numpy(np.array(x)).requires_grad_()
    results = select(tracked)
    same(results)
    results.values.backward(torch.from_numpy(weights))
    np.testing.assert_allclose(tracked.grad.numpy(), gradient(weights), rtol=1e-5, atol=1e-6)
    _, tangent = torch.func.jvp(lambda x: select(x).values, (tensor,), (torch.from_numpy(np.array(change)),))
    np.testing.assert_array_equal(tangent.numpy(), moved)
    same([result[1] for result in torch.func.vmap(select)(torch.stack([tensor, tensor]))])
    if given:
        pairs = [torch.stack([each, each], -1) for each in given.values()]
        batched = torch.func.vmap(select, in_dims=(None, *[-1] * len(pairs)))(tensor, *pairs)
        same([result[1] for result in batched])


@BY_NAME
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile(x, k, options, dynamic):
    torch = pytest.importorskip("torch")
    given = {name: torch.from_numpy(options[name]) for name in arrays_of(options)}
    tensor = torch.from_numpy(np.array(x))
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x, given: dmlops.top_k(x, k, **options | given),
        backend="aot_eager",
        fullgraph=True,
        dynamic=dynamic,
    )
    expected = reference.top_k(x, k, **options)
    assert_same_pair(compiled(tensor, given), expected, lambda result: result.numpy())
    out = tuple(torch.from_numpy(np.empty_like(array)) for array in expected)
    into = torch.compile(
        lambda x, given: dmlops.top_k(x, k, out=out, **options | given), backend="aot_eager", fullgraph=True
    )
    into(tensor, given)
    assert_same_pair(out, expected, lambda result: result.numpy())


@BY_NAME
def test_jax(x, k, options):
    jax = pytest.importorskip("jax")
    top_k = pytest.importorskip("dmlops.integrations.jax").top_k
    expected, rng = reference.top_k(x, k, **options), random("jax")
    with jax.enable_x64(True):
        given = {name: jax.numpy.asarray(options[name]) for name in arrays_of(options)}
        array = jax.numpy.asarray(x)

        def select(x, *others):
            return top_k(x, k, **options | given | dict(zip(given, others, strict=False)))

        for results in (select(array), jax.jit(select)(array), dmlops.top_k(array, k, **options | given)):
            assert_same_pair(results, expected, np.asarray)
        change, weights = (np.float32(rng.standard_normal(shape)) for shape in (x.shape, expected[0].shape))
        moved, gradient = change_of_values(change, k, x, options)
        results, (tangent, _) = jax.jvp(select, (array,), (jax.numpy.asarray(change),))
        assert_same_pair(results, expected, np.asarray)
        np.testing.assert_array_equal(np.asarray(tangent), moved)
        _, transpose = jax.vjp(lambda x: select(x).values, array)
        np.testing.assert_allclose(transpose(weights)[0], gradient(weights), rtol=1e-5, atol=1e-6)
        batched = jax.vmap(select)(jax.numpy.stack([array, array]))
        assert_same_pair([result[1] for result in batched], expected, np.asarray)
        if given:
            pairs = [jax.numpy.stack([each, each], -1) for each in given.values()]
            batched = jax.vmap(select, in_axes=(None, *[-1] * len(pairs)))(array, *pairs)
            assert_same_pair([result[1] for result in batched], expected, np.asarray)


def compiled_caller(options, *, has_out=False):
    """Return a function that Numba compiles, of x, k, the arrays among the options, and outputs."""
    numba = pytest.importorskip("numba")
    names = arrays_of(options)
    plain = [f"{name}={value!r}" for name, value in options.items() if name not in names]
    passed = [*(f"{name}={name}" for name in names), *plain, *(["out=(values, found)"] if has_out else [])]
    parameters = ["x", "k", *names, *(["values", "found"] if has_out else [])]
    scope = {"dmlops": dmlops}
    code = f"def call({', '.join(parameters)}):\n    return dmlops.top_k(x, k, {', '.join(passed)})\n"
    exec(code, scope)
    return numba.njit(scope["call"])


@BY_NAME
def test_compiled_callers(x, k, options):
    expected, x = reference.top_k(x, k, **options), np.array(x)
    given = [options[name] for name in arrays_of(options)]
    call, into = compiled_caller(options), compiled_caller(options, has_out=True)
    for _ in range(3):
        assert_same_pair(call(x, k, *given), expected, np.asarray)
        out = [np.empty_like(array) for array in expected]
        into(x, k, *given, *out)
        assert_same_pair(out, expected, np.asarray)


def test_compiled_callers_are_refused_in_the_same_words():
    numba = pytest.importorskip("numba")
    x, of_two, of_four = np.zeros((3, 4)), np.zeros(2, int), np.zeros(4, int)
    refused = [
        (lambda x, s: dmlops.top_k(x, 3, starts=s), of_two, "top_k.starts: got shape"),
        (
            lambda x, s: dmlops.top_k(x, 3, indices=s, index_dtype=np.int32),
            of_four,
            "top_k.index_dtype: got int32",
        ),
        (lambda x, s: dmlops.top_k(x, s.size, max_length=3), of_two, "top_k.max_length: got 3"),
        (lambda x, s: dmlops.top_k(x, -1, starts=s), of_four[:3], "top_k.k: got -1"),
        (lambda x, s: dmlops.top_k(x, 2**60, starts=s), of_four[:3], "."),
    ]
    for call, other, text in refused:
        compiled = numba.njit(call)
        for _ in range(2):
            with pytest.raises((dmlops.DmlError, MemoryError, ValueError), match=text):
                compiled(x, other)


def test_compiled_callers_take_integers_as_windows():
    numba = pytest.importorskip("numba")
    x = np.float32(random("integers in njit").standard_normal((3, 9)))
    both = numba.njit(lambda x, s, n: dmlops.top_k(x, 4, starts=s, lengths=n))
    one = numba.njit(lambda x, s: dmlops.top_k(x, 4, starts=s, lengths=np.array([2, 5, 9])))
    fixed = numba.njit(lambda x: dmlops.top_k(x, 4, lengths=3))
    for start, length in ((2, 6), (np.int32(-1), np.uint64(2**64 - 1)), (np.uint32(8), -5)):
        for _ in range(2):
            options = {"starts": np.array(start), "lengths": np.array(length)}
            assert_same_pair(both(x, start, length), reference.top_k(x, 4, **options), np.asarray)
            options["lengths"] = np.array([2, 5, 9])
            assert_same_pair(one(x, start), reference.top_k(x, 4, **options), np.asarray)
            assert_same_pair(fixed(x), reference.top_k(x, 4, lengths=np.array(3)), np.asarray)
    with pytest.raises(numba.TypingError, match=r"top_k\.starts: got float64"):
        both(x, 1.5, 2)


def test_integers_are_windows_with_a_derivative_and_in_graphs():
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(2, 6).requires_grad_()
    expected = reference.top_k(x.detach().numpy(), 2, starts=np.array(1), lengths=np.array(3))
    compiled = torch.compile(lambda x, n: dmlops.top_k(x, 2, starts=1, lengths=n), backend="eager")
    for select in (lambda x, n: dmlops.top_k(x, 2, starts=1, lengths=n), compiled):
        found = select(x, 3)
        assert_same_pair(found, expected, lambda result: result.detach().numpy())
        (gradient,) = torch.autograd.grad(found.values.sum(), x)
        assert gradient.tolist() == [[0, 0, 1, 1, 0, 0]] * 2


def test_lists_of_numbers_beside_arrays_of_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray([3.0, 1.0, 2.0])
    for _ in range(2):
        found = dmlops.top_k(x, 2, indices=[5, 6, 7])
        assert (found.indices.tolist(), found.indices.dtype) == ([5, 7], jax.numpy.asarray([1]).dtype)
    if not jax.config.jax_enable_x64:
        for numbers in ([2**40, 1, 2], np.array([5, 6, 7])):
            with pytest.raises(TypeError, match=r"top_k\.indices: got int64, but jax_enable_x64 is off"):
                dmlops.top_k(x, 2, indices=numbers)
