"""The cache of calls: two calls with one difference each get their own answer, however often they are made.

Each property that a plan or an answer depends on is changed alone, after enough repetitions to take the fast
path, and changed back; with new and given outputs, on arrays that own their memory and on views.
"""

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel, UnsupportedFeatureError
from tests.data import float_from_bits, unaligned
from tests.kept_calls import Call, needs_gil, place, settle
from tests.scripts import run_script

# Small calls run inside the native call, larger calls release the GIL, and some are only checked there.
SHAPES = {"small": (6, 8), "large": (150, 160)}
NAN, OTHER_NAN = float_from_bits([0x7FC00001, 0xFFC00000], "float32")
MEMORIES = ["own", "view"]
OUTPUTS = [False, True]


def numbers(shape, dtype="float32"):
    """Return numbers of both signs with many ties and zeros."""
    return np.random.default_rng(3).integers(-3, 4, shape).astype(dtype)


def tuples(shape, dtype="int64"):
    """Return indices of which some are out of the range of 6."""
    return np.random.default_rng(4).integers(-9, 9, shape).astype(dtype)


def read_only(array, memory):
    """Return a copy that may not be written to."""
    placed = place(array, memory)
    placed.flags.writeable = False
    return placed


def misaligned(array, memory):
    """Return a copy at an address that is no multiple of the element size."""
    return unaligned(array)


def backwards(array, memory):
    """Return a copy that runs backwards along the last dimension."""
    return place(array[..., ::-1], memory)[..., ::-1]


def pairs(size):
    """Yield (name, call, the same call with one difference)."""
    rows, columns = SHAPES[size]
    x = numbers((rows, columns))
    changed_arrays = {
        "elements": x[::-1].copy(),
        "type": x.view("int32"),
        "unsigned": x.view("uint32"),
        "width": x.astype("float64"),
        "sizes": x.reshape(columns, rows),
        "more_dimensions": x.reshape(rows, 2, columns // 2),
        "strides": np.asfortranarray(x),
    }
    layouts = {"read_only": read_only, "misaligned": misaligned, "backwards": backwards}

    top_k = Call("top_k", (x,), 3)
    nonzero = Call("nonzero_coordinates", (x,), size=x.size + 12, fill_value=-1)
    listing = Call("nonzero_coordinates", (x,))
    gather = Call("gather_nd", (x, tuples((rows, 2))), mode="clip")
    checked = Call("gather_nd", (x, tuples((rows, 1)) % rows))
    band = Call("diagonal_matrix", (x,), value=0.0, begin=-1, end=2)
    for call in (top_k, nonzero, listing, gather, checked, band):
        name = "listing" if call is listing else "checked" if call is checked else call.operator
        for kind, array in changed_arrays.items():
            if call is gather and kind == "more_dimensions":
                continue  # changes nothing that a tuple of two sees
            yield f"{name}-{kind}", call, call.changed(arrays=(array, *call.arrays[1:]))
        for kind, prepare in layouts.items():
            yield f"{name}-{kind}", call, call.changed(prepare=prepare)

    yield "top_k-k", top_k, top_k.changed(4)
    yield "top_k-axis", top_k, top_k.changed(axis=0)
    yield "top_k-largest", top_k, top_k.changed(largest=False)
    for call in (top_k, nonzero, listing):
        filled = {"fill_value": 5} if call is nonzero else {}
        for dtype in ("uint32", "int32", "uint64"):
            typed = call.changed(**filled, index_dtype=dtype)
            yield f"{call.operator}-{dtype}", call.changed(**filled), typed
    yield "top_k-level", top_k, top_k.changed(level=FeatureLevel.DML_5_0)
    full = nonzero.changed(size=x.size)
    yield "nonzero-level", full.changed(fill_value=5), full.changed(fill_value=5, level=FeatureLevel.DML_5_0)
    yield "nonzero-size", nonzero, nonzero.changed(size=x.size + 11)
    yield "nonzero-all_rows", nonzero, full
    yield "nonzero-few_rows", nonzero, nonzero.changed(size=20)
    yield "nonzero-no_rows", nonzero, nonzero.changed(size=0)
    yield "nonzero-fill", nonzero, nonzero.changed(fill_value=-2)
    yield "nonzero-no_fill", nonzero, nonzero.changed(fill_value=None)
    yield "nonzero-trimmed", nonzero, nonzero.changed(size=None, fill_value=None)

    yield "gather-mode", gather, gather.changed(mode="fill")
    yield "gather-elements", gather, gather.changed(arrays=(x, gather.arrays[1][::-1].copy()))
    yield "gather-tuple_size", gather, gather.changed(arrays=(x, tuples((rows, 1))))
    yield "gather-tuples", gather, gather.changed(arrays=(x, tuples((rows - 1, 2))))
    yield "gather-tuple_shape", gather, gather.changed(arrays=(x, gather.arrays[1].reshape(2, -1, 2)))
    yield "gather-index_strides", gather, gather.changed(arrays=(x, np.asfortranarray(gather.arrays[1])))
    for dtype in ("int32", "uint32", "uint64"):
        yield f"gather-{dtype}", gather, gather.changed(arrays=(x, gather.arrays[1].astype(dtype)))
    batched = gather.changed(arrays=(x, tuples((rows, 1))))
    yield "gather-batch_dims", batched, batched.changed(batch_dims=1)

    yield "diagonal-negative_zero", band, band.changed(value=-0.0)
    yield "diagonal-value", band.changed(value=1), band.changed(value=2)
    yield "diagonal-nan", band.changed(value=NAN), band.changed(value=OTHER_NAN)
    yield "diagonal-begin", band, band.changed(begin=0)
    yield "diagonal-end", band, band.changed(end=3)
    yield "diagonal-inverted", band, band.changed(begin=2, end=-1)
    built = Call("diagonal_matrix", (), shape=(rows, columns), dtype="float32", value=-0.0)
    yield "built-value", built, built.changed(value=0.0)
    yield "built-shape", built, built.changed(shape=(columns, rows))
    yield "built-type", built.changed(value=1), built.changed(value=1, dtype="int32")
    yield "built-begin", built.changed(value=1), built.changed(value=1, begin=-1)


PAIRS = {f"{size}-{name}": pair for size in SHAPES for name, *pair in pairs(size)}


@pytest.mark.parametrize("given", OUTPUTS)
@pytest.mark.parametrize("name", PAIRS)
def test_calls_that_differ_in_one_thing(name, given):
    for memory in MEMORIES:
        pair = [call.made(memory, given=given) for call in PAIRS[name]]
        for first, second in (pair[::-1], pair) if given else (pair, pair[::-1]):
            settle(first)
            second()
            settle(second)
            first()


KINDS = {
    "top_k": lambda x: Call("top_k", (x,), 3),
    "nonzero_coordinates": lambda x: Call("nonzero_coordinates", (x,)),
    "gather_nd": lambda x: Call("gather_nd", (x, tuples((9, 1)) % 6)),
    "diagonal_matrix": lambda x: Call("diagonal_matrix", (x,), value=0),
}


@needs_gil
@pytest.mark.parametrize("given", OUTPUTS)
@pytest.mark.parametrize("shape", [(7, 9), (151, 161)], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_repeated_calls_take_a_shorter_way(name, shape, given):
    """Repeated calls take the fast path, on owning arrays and views; otherwise these tests prove nothing."""
    call = KINDS[name](numbers(shape))
    own, view = [settle(call.made(memory, given=given)) for memory in MEMORIES]
    assert own[-1] == view[-1] < own[1] // 2 < own[0]


def test_another_number_of_threads():
    """A call that was kept when fewer threads were allowed is planned anew, and starts what it lacks."""
    code = """
    import threading
    import numpy as np
    import dmlops

    x = (np.arange(600 * 20_000) % 1009).astype("float32").reshape(600, 20_000)
    table, picks = x[:, :64].copy(), np.arange(60_000).reshape(-1, 1) % 600
    calls = [
        lambda **out: dmlops.top_k(x, 3, **out),
        lambda **out: dmlops.nonzero_coordinates(x[:30], **out or {"size": 600_000}),
        lambda **out: dmlops.gather_nd(table, picks, mode="clip", **out),
        lambda **out: dmlops.diagonal_matrix(x[:200], value=0, **out),
    ]
    allowed = 1
    for call in calls:
        results = call()
        for out in ({}, {"out": results}):
            dmlops.set_num_threads(allowed)
            for _ in range(4):
                call(**out)
            before = threading.active_count()
            allowed += 1
            dmlops.set_num_threads(allowed)
            call(**out)
            print(threading.active_count() - before, end=" ")
    """
    assert run_script(code, DMLOPS_NUM_THREADS="1").split() == ["1"] * 8


@pytest.mark.parametrize("given", OUTPUTS)
@pytest.mark.parametrize("name", KINDS)
def test_levels_that_do_not_take_the_call(name, given):
    for dtype, level in (("float32", FeatureLevel.DML_1_0), ("bool", FeatureLevel.DML_6_4)):
        x = numbers((6, 8)).astype(dtype)
        good = KINDS[name](x)
        settle(good.made("own", given=given))
        with pytest.raises(UnsupportedFeatureError):
            good.changed(level=level).made("own", given=given)()
        good.made("own", given=given)()


@needs_gil
def test_the_newest_calls_are_kept(monkeypatch):
    """Two alternating calls stay in the cache and take the fast path, whatever other entries leave."""
    x = numbers((2, 3))
    for value in range(2200):
        for _ in range(2):
            dmlops.diagonal_matrix(x, value=value)
    calls = [Call("diagonal_matrix", (x,), value=value).made("own", given=False) for value in (-1, -2, 2199)]
    for call in calls:
        call()
    monkeypatch.setattr("dmlops.devices.backend.plan", lambda *_: pytest.fail("planned again"))
    counts = [settle(call)[-1] for call in calls]
    assert [call() for call in calls] == counts == [min(counts)] * 3
