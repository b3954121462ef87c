"""`sample` on the GPU: the tokens of the CPU for all layouts, numbers of rows and streams."""

import numpy as np
import pytest

import dmlops
from tests.data import LAYOUTS, assert_same, random
from tests.inside import sums_of_shard, targets_in_shard, tokens_of_shard

WAYS = {
    "plain": {},
    "k": {"k": 50},
    "k-p": {"k": 20, "top_p": 0.9},
    "p": {"top_p": 0.9},
    "large-k": {"k": 700, "top_p": 0.95, "min_p": 0.001},
}


def logits(torch, shape, dtype, name):
    """Return random logits on the CPU."""
    x = torch.from_numpy(random(name).standard_normal(shape) * 3)
    return x.to(getattr(torch, dtype))


def parameters(torch, n_rows, name):
    """Return seeds, temperatures and steps of requests."""
    rng = random((name, "parameters"))
    return {
        "seeds": torch.from_numpy(rng.integers(-(2**63), 2**63, n_rows)),
        "steps": torch.from_numpy(rng.integers(0, 2**63, n_rows)),
        "temperature": torch.from_numpy(rng.uniform(0.1, 2, n_rows).astype("float32")),
    }


def on_gpu(given):
    return {name: value.cuda() if hasattr(value, "cuda") else value for name, value in given.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), [(60_000, 250), (3000, 1001), (200, 20_000), (3, 130_001)])
def test_the_tokens_of_the_cpu(rows, n, dtype, way, torch):
    """1.2 million tokens of all types together."""
    x, given = logits(torch, (rows, n), dtype, (rows, n)), parameters(torch, rows, way)
    expected = dmlops.sample(x, **given, **WAYS[way])
    tokens = dmlops.sample(x.cuda(), **on_gpu(given), **WAYS[way])
    assert torch.equal(tokens.cpu(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), [(400, 3000), (2, 40_000)])
def test_k_ends_among_elements_without_a_weight(rows, n, dtype, torch):
    x, seeds = logits(torch, (rows, n), dtype, "few elements"), torch.arange(rows)
    x[: rows // 2, 20:], x[rows // 2 :, 20:] = -torch.inf, torch.nan
    for options in ({}, {"top_p": 0.9}, {"top_p": 1 - 2.0**-40}, {"top_p": 1 - 2.0**-40, "min_p": 0.5}):
        tokens = dmlops.sample(x.cuda(), seeds.cuda(), k=700, **options)
        assert torch.equal(tokens.cpu(), dmlops.sample(x, seeds, k=700, **options)), options


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["plain", "k-p", "p"])
def test_layouts(layout, way, gpu_library):
    x = LAYOUTS[layout]((random(layout).standard_normal((2, 3, 2, 3, 5, 77)) * 3).astype("float32"))
    seeds = np.moveaxis(np.arange(180).reshape(3, 2, 3, 2, 5), (0, 1, 2, 3), (1, 0, 3, 2))
    tokens = dmlops.sample(gpu_library.from_numpy(x), gpu_library.from_numpy(seeds), **WAYS[way])
    assert_same(gpu_library.to_numpy(tokens), dmlops.sample(np.ascontiguousarray(x), seeds, **WAYS[way]))


@pytest.mark.parametrize("begin", range(1, 8))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_that_begin_anywhere(dtype, begin, torch):
    memory = logits(torch, (40_000,), dtype, "memory")
    for n in (1, 2, 7, 31, 300, 4111):
        x, on_device = (each[begin : begin + 9 * n].view(9, n) for each in (memory, memory.cuda()))
        for options in WAYS.values():
            seeds = torch.arange(9)
            expected = dmlops.sample(x, seeds, **options)
            assert torch.equal(dmlops.sample(on_device, seeds.cuda(), **options).cpu(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n_repeats", [1, 5])
@pytest.mark.parametrize("n", [3000, 40_000, 300_000])
def test_where_a_share_ends(n, n_repeats, dtype, torch):
    """At a tie, far from the largest, among many or few values: by clusters of blocks, and by blocks."""
    normal = torch.from_numpy(random(("share", n)).standard_normal(n))
    far = torch.full((n,), 11.0)
    far[n // 3] = 20
    rows = [normal * 3, normal.sort().values, far, far * 0, normal.round(), normal / 1000, normal * 1000]
    x = torch.stack(rows).to(getattr(torch, dtype)).repeat(n_repeats, 1)
    given = parameters(torch, len(x), ("share", n))
    shares = random(("shares", n)).uniform(0, 1, len(x)) ** np.linspace(0, 4, len(x))
    for options in (
        {"top_p": torch.from_numpy(shares)},
        {"top_p": torch.from_numpy(shares), "temperature": torch.full((len(x),), 20.0)},
        {"top_p": 0.8, "min_p": 0.01},
        {"top_p": 0.9, "k": n // 2},
    ):
        expected = dmlops.sample(x, **given | options)
        assert torch.equal(dmlops.sample(x.cuda(), **on_gpu(given | options)).cpu(), expected), options


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), [(20, 330_003), (30, 20_011), (60, 70_001), (90, 20_011)])
def test_as_many_blocks_as_there_is_room_for_share_a_row(rows, n, dtype, torch):
    x, given = logits(torch, (rows, n), dtype, (rows, n)), parameters(torch, rows, "blocks")
    x[1], x[2], x[3, n // 2], x[4, ::2] = -torch.inf, 1, torch.inf, torch.nan
    given["temperature"][5:8] = torch.tensor([0, 1e-30, 1e30])
    for options in ({}, {"top_p": 0.9}, {"k": 700, "min_p": 0.001}):
        for begin in (0, 3):
            part = x[:, begin : n - n % 8]
            expected = dmlops.sample(part, **given, **options)
            found = dmlops.sample(part.cuda(), **on_gpu(given), **options)
            assert torch.equal(found.cpu(), expected), options
            found = dmlops.sample(x.cuda()[:, begin : n - n % 8], **on_gpu(given), **options)
            assert torch.equal(found.cpu(), expected), options


@pytest.mark.parametrize("way", WAYS)
def test_graphs(way, torch):
    """Replays read new logits, seeds and steps, and wait for nothing."""
    for shape in ((40, 3000), (2, 50_000)):
        given = on_gpu(parameters(torch, shape[0], "graph"))
        x = logits(torch, shape, "float32", 0).cuda()
        tokens = torch.empty(shape[0], dtype=torch.int64, device="cuda")
        dmlops.sample(x, **given, **WAYS[way], out=tokens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dmlops.sample(x, **given, **WAYS[way], out=tokens)
        for turn in range(3):
            x.copy_(logits(torch, shape, "float32", turn))
            given["steps"].fill_(turn)
            graph.replay()
            expected = dmlops.sample(
                x.cpu(), **{name: each.cpu() for name, each in given.items()}, **WAYS[way]
            )
            assert torch.equal(tokens.cpu(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), [(3000, 1001), (5, 130_001), (30, 70_001), (60, 70_001)])
def test_stages_of_shards(rows, n, dtype, torch):
    """What ranks with a part of the vocabulary compute is the token of the CPU."""
    x, given = logits(torch, (rows, n), dtype, (rows, n)), parameters(torch, rows, "shards")
    given["temperature"][0], x[1], x[2, n // 2 :: 7], x[3, ::2] = 0, -torch.inf, torch.inf, torch.nan
    min_p = torch.zeros(rows)
    min_p[rows // 2 :] = 0.05
    expected = dmlops.sample(x, **given, min_p=min_p)
    given, shards = on_gpu(given), x.cuda().split([n // 3, n - n // 3 - 5, 0, 5], -1)
    of_weights = {
        "temperature": given["temperature"],
        "min_p": min_p.cuda(),
        "largest": x.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1).cuda(),
    }
    sums = torch.stack([sums_of_shard(shard, **of_weights) for shard in shards], -1)
    found, start = [], 0
    for number, shard in enumerate(shards):
        targets = targets_in_shard(sums.view(torch.float64), **given, shard=number)
        found.append(tokens_of_shard(shard, **of_weights, targets=targets, start=start))
        start += shard.shape[-1]
    assert torch.equal(torch.stack(found).amax(0).cpu(), expected)


def test_arrays_on_two_devices(torch):
    with pytest.raises(dmlops.DeviceMismatchError, match=r"sample\.seeds: got an array on cpu"):
        dmlops.sample(torch.zeros(3, 5, device="cuda"), torch.arange(3))
