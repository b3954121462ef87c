"""Repeated calls on a GPU take the fast path, which distinguishes arrays and makes all necessary checks."""

import functools

import numpy as np
import pytest

import dmlops
from dmlops import DeviceMismatchError, InvalidDescriptorError
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import assert_same, sample
from tests.gpu.bound import Bound
from tests.kept_calls import settled_path

ROUNDS = 4


def check_calls(library, x, host, indices, picks):
    """Check every function on the array `x` that equals `host`, with outputs given and made."""
    values, places = reference.top_k(host, 3)
    places = places.astype(library.index_dtype)
    found = reference.nonzero_coordinates(host)[0].astype(library.index_dtype)
    count = np.array(len(found), library.index_dtype)
    band = reference.diagonal_matrix(host, value=3, begin=-1, end=2)

    def check(call, *expected):
        given = [library.from_numpy(np.full_like(array, 77)) for array in expected]
        call(tuple(given))
        for array, values in zip(given, expected, strict=True):
            assert_same(library.to_numpy(array), values)

    check(lambda out: dmlops.top_k(x, 3, out=out), values, places)
    check(lambda out: dmlops.nonzero_coordinates(x, out=out), found, count)
    check(lambda out: dmlops.diagonal_matrix(x, value=3, begin=-1, end=2, out=out[0]), band)
    check(lambda out: dmlops.gather_nd(x, indices, mode="clip", out=out[0]), host[picks[:, 0]])
    assert_same(library.to_numpy(dmlops.top_k(x, 3).values), values)
    assert_same(library.to_numpy(dmlops.nonzero_coordinates(x, size=7).count), count)
    assert_same(library.to_numpy(dmlops.diagonal_matrix(x, value=3, begin=-1, end=2)), band)


def test_kinds_in_turn(gpu_library):
    hosts = [sample("float32", shape, "turn") for shape in ((5, 40), (40, 5), (5, 40))]
    hosts += [hosts[0].T, hosts[0][:, ::2]]
    hosts += [sample("float32", 330, "lead")[start : start + 320].reshape(8, 40) for start in range(4)]
    arrays = [gpu_library.from_numpy(host) for host in hosts]
    picks = np.array([[1], [-2], [4], [0]])
    indices = gpu_library.from_numpy(picks)
    for _ in range(ROUNDS):
        for x, host in zip(arrays, hosts, strict=True):
            check_calls(gpu_library, x, host, indices, picks)


def test_overlaps_are_looked_at_each_time(torch):
    memory = torch.zeros(4000, device="cuda")
    host = sample("float32", (3, 500), "overlaps")
    x = memory[:1500].reshape(3, 500)
    x.copy_(torch.from_numpy(host))
    indices = torch.empty((3, 4), dtype=torch.int64, device="cuda")
    for start in (1500, 1504, 2000):
        for _ in range(ROUNDS):
            values = memory[start : start + 12].reshape(3, 4)
            dmlops.top_k(x, 4, out=(values, indices))
            assert_same(values.cpu().numpy(), reference.top_k(host, 4)[0])
            with pytest.raises(InvalidDescriptorError, match="shares memory"):
                dmlops.top_k(x, 4, out=(memory[1499:1511].reshape(3, 4), indices))
            assert_same(x.cpu().numpy(), host)


def test_workspaces_are_looked_at_each_time(torch):
    bound = Bound(torch, DESCRIPTORS["top_k-long_row"])
    arrays = bound.inputs | bound.outputs
    size = bound.operator.workspace_size
    inputs = make_inputs(bound.descriptor, 1)
    bound.feed(inputs)
    memory = torch.empty(size + 4096, dtype=torch.uint8, device="cuda")
    expected = cpu_answer(bound.descriptor, inputs)
    values = bound.outputs["output_value_tensor"]
    inside = memory[1024 : 1024 + values.numel() * 4].view(torch.float32).reshape(values.shape)
    for _ in range(ROUNDS):
        for start in (0, 1, 200, 256, 4095):  # it needs no alignment
            bound.operator.execute(arrays, workspace=memory[start : start + size])
            bound.check(expected)
        for workspace in (None, memory[:size]):
            assert settled_path(functools.partial(bound.operator.execute, arrays, workspace)) == "fast"
        with pytest.raises(InvalidDescriptorError, match=r"TopK1.workspace: .* shares memory"):
            bound.operator.execute(arrays | {"output_value_tensor": inside}, workspace=memory[:size])


def test_torch_tensors_that_differ_in_little(torch):
    host = sample("float32", (6, 70), "little")
    x = torch.from_numpy(host).cuda()
    expected = reference.diagonal_matrix(host, value=0)
    negative = torch._neg_view(x)
    assert negative.is_neg()
    for _ in range(ROUNDS):
        for given in (x, x.clone().requires_grad_().detach(), torch.nn.Parameter(x, False), x.T.clone().T):
            assert_same(dmlops.diagonal_matrix(given, value=0).cpu().numpy(), expected)
        for given in (x.clone().requires_grad_(), torch.nn.Parameter(x)):
            tracked = dmlops.diagonal_matrix(given, value=0)
            assert tracked.requires_grad
            assert_same(tracked.detach().cpu().numpy(), expected)
        got = dmlops.diagonal_matrix(x > 0, value=0).cpu().numpy()
        assert_same(got, reference.diagonal_matrix(host > 0, value=0))
        # torch alone decides what NaNs become.
        got = dmlops.diagonal_matrix(negative, value=0).cpu().numpy()
        wanted = reference.diagonal_matrix(-host, value=0)
        assert_same(np.nan_to_num(got, nan=77), np.nan_to_num(wanted, nan=77))
        with torch.inference_mode():
            assert_same(dmlops.diagonal_matrix(x.clone(), value=0).cpu().numpy(), expected)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", [(20,), (20, 3, 4, 5, 6, 7)])
def test_indices_are_looked_at_each_time(shape, given, gpu_library):
    host = sample("float32", shape, "indices")
    depth = len(shape)
    picks = np.random.default_rng(1).integers(-3, 3, (3000, depth))
    x, indices = gpu_library.from_numpy(host), gpu_library.from_numpy(picks)
    out = gpu_library.from_numpy(np.full(3000, 77, "float32"))
    options = {"out": out} if given else {}
    expected = host[tuple(picks.T)]
    for _ in range(ROUNDS):
        assert_same(gpu_library.to_numpy(dmlops.gather_nd(x, indices, **options)), expected)
    for row, column in ((2999, depth - 1), (7, 0), (0, depth // 2)):
        out[...] = 77
        indices[row, column] = 20
        with pytest.raises(dmlops.IndexOutOfRangeError, match=rf"at position \({row},\).* {column} is 20"):
            dmlops.gather_nd(x, indices, **options)
        assert bool((out == 77).all())
        wanted = picks.copy()
        wanted[row, column] = indices[row, column] = 0
        assert_same(gpu_library.to_numpy(dmlops.gather_nd(x, indices, **options)), host[tuple(wanted.T)])
        indices[row, column] = int(picks[row, column])


@pytest.mark.parametrize("shape", [(10, 100), (100, 1000), (3, 5, 7, 11), (4096,), (0, 4), (2000, 3)])
def test_trimmed_results(shape, gpu_library):
    host = sample("float32", shape, "trimmed")
    x = gpu_library.from_numpy(host)
    for share in (1.0, 0.1, 0.0, 0.5, 0.001):
        filled = np.where(np.random.default_rng(3).random(shape) < share, host, np.float32(0))
        x[...] = gpu_library.from_numpy(filled)
        for _ in range(2):
            coordinates, count = dmlops.nonzero_coordinates(x)
            expected = reference.nonzero_coordinates(filled)[0].astype(gpu_library.index_dtype)
            assert_same(gpu_library.to_numpy(coordinates), expected)
            assert gpu_library.to_numpy(count).tolist() == len(expected)


@pytest.mark.two_gpus
def test_devices_in_turn(torch):
    host = sample("float32", (6, 70), "devices")
    arrays = [torch.from_numpy(host).to(f"cuda:{number}") for number in (0, 1)]
    outs = [torch.empty_like(array) for array in arrays]
    expected = reference.diagonal_matrix(host, value=0)
    for _ in range(ROUNDS):
        for x, out in zip(arrays, outs, strict=True):
            out.fill_(77)
            dmlops.diagonal_matrix(x, value=0, out=out)
            assert_same(out.cpu().numpy(), expected)
        with pytest.raises(DeviceMismatchError):
            dmlops.diagonal_matrix(arrays[0], value=0, out=outs[1])
