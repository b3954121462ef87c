"""Outputs that begin at any position of a cache line, written through the cache and past it."""

import itertools

import numpy as np
import pytest

import dmlops
from dmlops import DiagonalMatrix1, NonzeroCoordinates, TensorDesc
from tests import reference
from tests.compiled import gather_of
from tests.data import assert_same, random
from tests.inside import processor
from tests.marks import exhaustive
from tests.plans import Fenced, launch

# Elements before the first one of an operand; of 4 bytes each, they are all places in a line.
LEADS = range(16)


@pytest.fixture(params=[False, True], ids=["through", "past"])
def streams(request, monkeypatch):
    """Have outputs of any size written past the cache, or none."""
    monkeypatch.setattr(processor, "streaming_bytes", lambda: 1 if request.param else 1 << 60)
    return request.param


@pytest.fixture(autouse=True)
def one_thread():
    dmlops.set_num_threads(1)
    yield
    dmlops.set_num_threads(None)


def tensor(array):
    return TensorDesc(array.dtype.name.upper(), array.shape)


def run(descriptor, operands, answers, lead, options=None):
    """Launch a descriptor on operands by field, and check all of them; return the plan.

    Each is between fences, and begins `lead` elements after a line does, or some more than that.
    """
    fenced = {
        field: Fenced(array, (lead + 5 * place) % 16 * array.itemsize)
        for place, (field, array) in enumerate(operands.items())
    }
    plan = launch(descriptor, {field: memory.array for field, memory in fenced.items()}, options)
    for field, memory in fenced.items():
        assert_same(memory.array, answers.get(field, operands[field]))
        memory.check()
    return plan


@pytest.mark.parametrize("dtype", ["float32", exhaustive("uint8")])
def test_gather(dtype, streams):
    for lead, n_bytes in itertools.product(LEADS, (256, 280, 1028, 1200)):
        n_slice = n_bytes // np.dtype(dtype).itemsize
        x = random(n_slice).integers(1, 100, (20, n_slice)).astype(dtype)
        for mode in ("clip", "fill"):
            picks = random(("picks", mode)).integers(-30, 30, (17, 1))
            expected = reference.gather_nd(x, picks, mode=mode)
            operands = {
                "input_tensor": x,
                "indices_tensor": picks,
                "output_tensor": np.full_like(expected, 77),
            }
            descriptor = gather_of(tensor(x), tensor(picks))
            plan = run(descriptor, operands, {"output_tensor": expected}, lead, {"mode": mode})
            if processor.WIDTH:
                assert plan.variant.startswith("streamed" if streams else "long")


@pytest.mark.parametrize("dtype", ["float32", exhaustive("uint8")])
@pytest.mark.parametrize("kind", ["contiguous", "strided", "absent"])
def test_diagonal(kind, dtype, streams):
    for lead, shape in itertools.product(LEADS, ((3, 7, 5), (2, 9, 70), (2, 5, 301))):
        x = random(shape).integers(1, 100, shape).astype(dtype)
        x_desc, memory = tensor(x), x
        if kind == "strided":
            memory = np.ascontiguousarray(x.swapaxes(1, 2))
            strides = (shape[1] * shape[2], 1, shape[1])
            x_desc = TensorDesc(dtype.upper(), shape, strides)
        for begin, end in ((-2, 3), (40, -1), (-9, 300), (1, 1)):
            inputs = {} if kind == "absent" else {"input_tensor": memory}
            expected = reference.diagonal_matrix(
                np.zeros_like(x) if kind == "absent" else x, value=9, begin=begin, end=end
            )
            descriptor = DiagonalMatrix1(
                input_tensor=None if kind == "absent" else x_desc,
                output_tensor=tensor(x),
                value=9,
                diagonal_fill_begin=begin,
                diagonal_fill_end=end,
            )
            operands = inputs | {"output_tensor": np.full_like(x, 77)}
            plan = run(descriptor, operands, {"output_tensor": expected}, lead)
            assert ("streamed" in plan.variant) == (streams and processor.WIDTH > 0)


@pytest.mark.parametrize("density", [0.02, 0.6, 1])
@pytest.mark.parametrize("shape", [(1300,), (9, 131), (5, 4, 70), (2, 3, 5, 64)])
def test_nonzero(shape, density, streams):
    x = (random((shape, density)).random(shape) < density).astype("float32")
    expected, count = reference.nonzero_coordinates(x)
    descriptor = NonzeroCoordinates(input_tensor=tensor(x), output_count_tensor=TensorDesc("UINT32", (1,)))
    for lead, capacity in itertools.product(LEADS, (x.size, len(expected) // 2)):
        desc = TensorDesc("UINT32", (capacity, len(shape)))
        coordinates = np.full((capacity, len(shape)), 77, "uint32")
        answer = coordinates.copy()
        answer[: len(expected)] = expected[:capacity]
        outputs = {"output_coordinates_tensor": coordinates, "output_count_tensor": np.zeros(1, "uint32")}
        answers = dict(zip(outputs, (answer, count.astype("uint32").reshape(1)), strict=True))
        run(descriptor, {"input_tensor": x} | outputs, answers, lead, {"coordinates": desc})
