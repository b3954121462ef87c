"""The checks that each rank makes of the operators on DTensors: against plain NumPy, bit for bit."""

import itertools
import os
import signal
from contextlib import nullcontext
from functools import partial
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from ml_dtypes import bfloat16
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import TorchDispatchMode

import dmlops
from tests import inside, reference
from tests.data import assert_same, random, sample
from tests.libraries import Torch

DTYPES = ("float32", "float16", bfloat16, "float64", "bool", "int8", "int64", "uint8")
_meshes = {}


def mesh_of(device, *shape):
    """Return a mesh of all ranks; -1 stands for those that are left."""
    if -1 in shape:
        left = dist.get_world_size() // -int(np.prod(shape))
        shape = tuple(left if n == -1 else n for n in shape)
    if shape not in _meshes:
        _meshes[shape] = init_device_mesh(device, shape)
    return _meshes[shape]


def own_shard(array, mesh, placements):
    """Return what this rank has of an array."""
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            largest = -(-array.shape[placement.dim] // mesh.size(mesh_dim))
            start = mesh.get_local_rank(mesh_dim) * largest
            array = array[(slice(None),) * placement.dim + (slice(start, start + largest),)]
    return array


def distribute(array, mesh, placements):
    """Return a DTensor of an array that all ranks have."""
    local = Torch(mesh.device_type).from_numpy(own_shard(array, mesh, placements).copy())
    strides = torch.empty(array.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=array.shape, stride=strides)


def check(result, expected, placements):
    """Compare a DTensor with an array: placements, shape, and this rank's shard bit for bit."""
    assert type(result) is DTensor
    # With torch 2.11, each rank may have all of a gradient.
    assert torch.__version__ < (2, 13) or result.placements == tuple(placements), result.placements
    assert tuple(result.shape) == expected.shape
    assert result.stride() == torch.empty(expected.shape, device="meta").stride()
    actual = Torch(result.device_mesh.device_type).to_numpy(result.to_local())
    assert_same(actual, own_shard(expected, result.device_mesh, result.placements))


def replicated_along(axis, placements):
    return [Replicate() if placement.is_shard(axis) else placement for placement in placements]


def check_top_k(
    x, k, mesh, placements, *, axis=-1, lengths=None, of_lengths=None, index_dtype=None, **options
):
    """Compare the result for one array and layout."""
    given = {} if lengths is None else {"lengths": distribute(lengths, mesh, of_lengths)}
    result = dmlops.top_k(
        distribute(x, mesh, placements), k, axis=axis, index_dtype=index_dtype, **given, **options
    )
    values, indices = reference.top_k(x, k, axis=axis, lengths=lengths, **options)
    left = replicated_along(axis % max(x.ndim, 1), placements)
    check(result.values, values, left)
    check(result.indices, indices.astype(index_dtype or "int64"), left)


def top_k_sizes(device):
    """Shards that are wrong or empty; k below, at and above the size of a shard; every order."""
    mesh = mesh_of(device, -1)
    for size in (1, 2, 3, 5, 8, 9, 10, 33):
        for k in sorted({0, 1, min(2, size), size // 2, size - 1, size}):
            x = sample("float32", (3, size), f"sharded {size} {k}")
            check_top_k(x, k, mesh, [Shard(1)], largest=k % 2 == 0, sorted=k % 3 > 0)


def top_k_dtypes(device):
    """Every type, with ties, NaNs and both zeros, along each axis."""
    mesh = mesh_of(device, -1)
    for dtype, axis, largest, sorted in itertools.product(DTYPES, (0, 1, -1), (False, True), (False, True)):
        x = sample(dtype, (7, 6, 11), f"sharded {dtype}")
        check_top_k(x, 4, mesh, [Shard(axis % 3)], axis=axis, largest=largest, sorted=sorted)


def top_k_options(device):
    """Lengths, types of indices, and NumPy's bits of padding."""
    mesh = mesh_of(device, -1)
    x = sample("float32", (5, 13), "sharded lengths")
    for lengths in ([0, 13, 3, 7, 99], [-1, 1, 4, 8, 5]):
        for k, largest, sorted in ((1, True, True), (6, False, True), (13, True, False)):
            for dtype, layout in (("int64", Replicate()), ("int32", Shard(0)), ("uint64", Shard(0))):
                given = {"lengths": np.array(lengths).astype(dtype), "of_lengths": [layout]}
                check_top_k(x, k, mesh, [Shard(1)], largest=largest, sorted=sorted, **given)
    lengths = np.array([0, 13, 3, 7, 99])
    for placement in (Shard(0), Replicate()):
        check_top_k(x, 4, mesh, [placement], lengths=lengths, of_lengths=[Replicate()])
    check_top_k(x.T.copy(), 4, mesh, [Shard(1)], axis=0, lengths=lengths, of_lengths=[Replicate()])
    for index_dtype in ("uint32", "uint64", "int32", "int64"):
        check_top_k(x, 3, mesh, [Shard(1)], index_dtype=index_dtype)
        check_top_k(x, 3, mesh, [Shard(0)], index_dtype=index_dtype)
    none = distribute(0 * lengths, mesh, [Replicate()])
    padding = dmlops.top_k(distribute(x, mesh, [Shard(1)]), 1, lengths=none, index_dtype="uint32")
    assert (padding.indices.to_local().view(torch.int32) == -1).all()


def top_k_windows(device):
    """Windows within shards, across and outside them; k beyond the axis."""
    mesh, both = mesh_of(device, -1), mesh_of(device, 2, -1)
    x = sample("float32", (5, 13), "sharded windows")
    starts, lengths = np.array([-4, 0, 5, 9, 20]), np.array([9, 13, 3, 99, 4])
    extreme = np.array([-(2**63), 2**63 - 1, 0, 3, -1]), np.array([2**63 - 1, 2**63 - 1, -9, 2**63 - 1, 2])
    for given in ({"starts": starts, "lengths": lengths}, {"starts": starts}, {"lengths": lengths}):
        for k, options in (
            (4, {}),
            (13, {"largest": False}),
            (20, {"sorted": False}),
            (3, {"max_length": 5}),
        ):
            expected = reference.top_k(x, k, **given, **options)
            for where, placements in ((mesh, [Shard(1)]), (mesh, [Shard(0)]), (both, [Shard(1), Shard(1)])):
                rows = [Replicate()] * len(placements)
                sent = {name: distribute(each, where, rows) for name, each in given.items()}
                got = dmlops.top_k(distribute(x, where, placements), k, **sent, **options)
                for result, answer in zip(got, expected, strict=True):
                    check(result, answer, replicated_along(1, placements))
    sent = {
        n: distribute(each, mesh, [Replicate()])
        for n, each in zip(("starts", "lengths"), extreme, strict=True)
    }
    expected = reference.top_k(x, 4, starts=extreme[0], lengths=extreme[1])
    for result, answer in zip(
        dmlops.top_k(distribute(x, mesh, [Shard(1)]), 4, **sent), expected, strict=True
    ):
        check(result, answer, [Replicate()])
    tracked = distribute(x, mesh, [Shard(1)]).requires_grad_()
    window = distribute(starts, mesh, [Replicate()])
    values, indices = dmlops.top_k(tracked, 3, starts=window)
    torch.where(indices >= 0, values, 0).sum().backward()
    gradient = np.zeros_like(x)
    for row, chosen in enumerate(reference.top_k(x, 3, starts=starts)[1]):
        gradient[row, chosen[chosen >= 0]] = 1
    check(tracked.grad, gradient, [Shard(1)])


def top_k_numbers(device):
    """Ties by the numbers of elements, whichever rank has them: uneven and interleaved shards, too."""
    mesh, both = mesh_of(device, -1), mesh_of(device, 2, -1)
    x = np.float32(random("numbered shards").integers(0, 4, (3, 16)))
    numbers = random("numbers of shards").permutation(16)
    for dtype, k in (("int64", 5), ("int32", 16), ("uint32", 20)):
        given = numbers.astype(dtype)
        given[3] = np.array(-1).astype(dtype)
        expected = reference.top_k(x, k, indices=given)
        for placements in ([Shard(1)], [Shard(0)], [Replicate()]):
            along = [Shard(0) if p.is_shard(1) else Replicate() for p in placements]
            for shape, of_numbers in ((given, along), (np.tile(given, (3, 1)), placements)):
                got = dmlops.top_k(
                    distribute(x, mesh, placements), k, indices=distribute(shape, mesh, of_numbers)
                )
                for result, answer in zip(got, expected, strict=True):
                    check(result, answer, replicated_along(1, placements))
    expected = reference.top_k(x, 6, indices=numbers)
    n_ranks, rank = dist.get_world_size(), dist.get_rank()
    cuts = [0, 1, *range(2, n_ranks), 16]
    own = slice(cuts[rank], cuts[rank + 1])
    uneven = shard_of(x[:, own], mesh, [Shard(1)], (3, 16)), shard_of(numbers[own], mesh, [Shard(0)], (16,))
    # Each rank of the second mesh dimension has every other one of two parts of the first.
    size = 16 // n_ranks
    row, column = both.get_coordinate()
    first = (column * both.size(0) + row) * size
    part = slice(first, first + size)
    kinds = (
        [_StridedShard(1, split_factor=both.size(1)), Shard(1)],
        [_StridedShard(0, split_factor=2), Shard(0)],
    )
    strided = shard_of(x[:, part], both, kinds[0], (3, 16)), shard_of(numbers[part], both, kinds[1], (16,))
    for shards, of_numbers in (uneven, strided):
        for result, answer in zip(dmlops.top_k(shards, 6, indices=of_numbers), expected, strict=True):
            check(result, answer, [Replicate()] * len(shards.placements))
    columns = np.arange(16)
    tied = distribute(x, mesh, [Shard(1)]), distribute(numbers // 3, mesh, [Shard(0)])
    own_columns = own_shard(columns, mesh, [Shard(0)])
    check_gradient_by_number(x, numbers // 3, *tied, own_columns)
    check_gradient_by_number(x, numbers, *uneven, columns[own])
    check_gradient_by_number(x, numbers, *strided, columns[part])


def check_gradient_by_number(x, numbers, shards, of_numbers, own_columns):
    """Gradients go to the elements that were selected, on whichever rank these are."""
    whole, weights = torch.from_numpy(x).requires_grad_(), torch.arange(18.0).reshape(3, 6)
    expected = dmlops.top_k(whole, 6, indices=torch.from_numpy(numbers), sorted=False)
    (expected.values * weights).sum().backward()
    # As torch gives leaves that are uneven DTensors gradients of another shape.
    local = shards.to_local().detach().requires_grad_()
    tracked = shard_of(local, shards.device_mesh, shards.placements, x.shape)
    values, found = dmlops.top_k(tracked, 6, indices=of_numbers, sorted=False)
    check(values.detach(), expected.values.detach().numpy(), [Replicate()] * len(shards.placements))
    check(found, expected.indices.numpy(), [Replicate()] * len(shards.placements))
    (values * distribute(weights.numpy(), values.device_mesh, values.placements)).sum().backward()
    assert_same(local.grad.cpu().numpy(), whole.grad.numpy()[:, own_columns])


def top_k_segments(device):
    """Segments of a one-dimensional array: it is sharded, or they are, or both; also windows of all rows."""
    mesh, both = mesh_of(device, -1), mesh_of(device, 2, -1)
    x = sample("float32", (37,), "sharded segments")
    numbers = random("numbers of segments").permutation(37)
    given = {
        "starts": np.array([0, 5, 5, 30, -2, 36, 9, 40]),
        "lengths": np.array([5, 0, 25, 9, 37, 1, 3, 2]),
    }
    weights = random("weights of segments").random((8, 4)).astype("float32")
    for where, of_x, of_rows in (
        (mesh, [Shard(0)], [Replicate()]),
        (mesh, [Shard(0)], [Shard(0)]),
        (mesh, [Replicate()], [Shard(0)]),
        (both, [Shard(0), Replicate()], [Replicate(), Shard(0)]),
        (both, [Shard(0), Shard(0)], [Replicate(), Replicate()]),
    ):
        placements = [Replicate() if p.is_shard() else own for p, own in zip(of_x, of_rows, strict=True)]
        sent = {name: distribute(each, where, of_rows) for name, each in given.items()}
        for options in ({}, {"max_length": 4, "largest": False}, {"indices": numbers}):
            tracked = distribute(x, where, of_x).requires_grad_()
            shards = options | ({"indices": distribute(numbers, where, of_x)} if "indices" in options else {})
            got = dmlops.top_k(tracked, 4, **sent, **shards)
            expected = reference.top_k(x, 4, **given, **options)
            for result, answer in zip(got, expected, strict=True):
                check(result.detach(), answer, placements)
            is_there = expected[1] >= 0
            places = np.where(is_there, expected[1], 0)
            if "indices" in options:
                places = np.where(is_there, np.argsort(numbers)[places], 0)
            gradient = np.zeros(37, "float32")
            np.add.at(gradient, places[is_there], weights[is_there])
            taken = torch.where(got.indices >= 0, got.values, 0)
            (taken * distribute(weights, where, placements)).sum().backward()
            np.testing.assert_allclose(tracked.grad.full_tensor().cpu(), gradient, rtol=1e-6)
    rows = sample("float32", (5, 13), "sharded windows")
    for axis in (0, 1):
        got = dmlops.top_k(distribute(rows, mesh, [Shard(axis)]), 4, starts=3, lengths=7)
        expected = reference.top_k(rows, 4, starts=np.array(3), lengths=np.array(7))
        for result, answer in zip(got, expected, strict=True):
            check(result, answer, replicated_along(1, [Shard(axis)]))


def shard_of(local, mesh, placements, shape):
    """Return a DTensor of which this rank has a part."""
    strides = tuple(int(np.prod(shape[d + 1 :])) for d in range(len(shape)))
    if isinstance(local, np.ndarray):
        local = torch.from_numpy(np.ascontiguousarray(local)).to(mesh.device_type)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
    )


def top_k_layouts(device):
    """Meshes of two dimensions, which shard the axis, other dimensions, or nothing."""
    mesh = mesh_of(device, 2, -1)
    x = sample("float32", (6, 23, 3), "two dimensions")
    kinds = (Replicate(), Shard(0), Shard(1), Shard(2))
    for placements in itertools.product(kinds, kinds):
        check_top_k(x, 9, mesh, [*placements], axis=1, largest=False)
    for size in (1, 2, 4, 5, 6, 7):
        check_top_k(sample("int8", (2, size), size), (size + 1) // 2, mesh, [Shard(1), Shard(1)])
        lengths = np.array([size // 2, size - 1])
        check_top_k(
            sample("int8", (2, size), size),
            size,
            mesh,
            [Shard(1), Shard(1)],
            lengths=lengths,
            of_lengths=[Shard(0), Replicate()],
        )
    check_top_k(np.float32(3).reshape(()), 1, mesh, [Replicate(), Replicate()])
    transposed = dmlops.top_k(distribute(x[..., 0].T.copy(), mesh, [Shard(0), Shard(1)]).t(), 5)
    for actual, expected in zip(transposed, reference.top_k(x[..., 0], 5), strict=True):
        check(actual, expected, [Replicate(), Shard(0)])
    with torch.inference_mode():
        check_top_k(x, 4, mesh, [Shard(1), Shard(0)], axis=1)
    empty = np.zeros((0, 5), "float32")
    check_top_k(empty, 2, mesh, [Shard(1), Replicate()])
    check_top_k(empty, 2, mesh, [Shard(0), Shard(1)])


def draws(device):
    """Draw tokens from logits that are sharded over rows, over the vocabulary, or both."""
    x = random("draws").standard_normal((6, 301)).astype("float32") * 3
    x[1, 7], x[2] = np.nan, np.nan
    seeds = np.arange(6)
    temperature = np.linspace(0, 2, 6, dtype="float32")
    for shape, placements in (
        ((-1,), [Shard(1)]),
        ((-1,), [Shard(0)]),
        ((-1,), [Replicate()]),
        ((2, -1), [Shard(0), Shard(1)]),
        ((2, -1), [Shard(1), Shard(1)]),
    ):
        mesh = mesh_of(device, *shape)
        of_rows = [Shard(0) if p == Shard(0) else Replicate() for p in placements]
        for options in ({}, {"k": 20}, {"k": 20, "top_p": 0.7, "min_p": 0.01}, {"top_p": 0.8}, {"k": 300}):
            expected = reference.sample(x, seeds, temperature=temperature, steps=9, **options)
            for of_seeds in (of_rows, [Replicate()] * mesh.ndim):
                tokens = dmlops.sample(
                    distribute(x, mesh, placements),
                    distribute(seeds, mesh, of_seeds),
                    temperature=distribute(temperature, mesh, of_seeds),
                    steps=9,
                    **options,
                )
                check(tokens, expected, of_rows)


def by_sums():
    """Return a context in which draws from all elements send sums, on GPUs too and however small they are."""
    return mock.patch.object(inside.sharded_sample, "FEW_BYTES", 0)


@by_sums()
def draws_from_all(device):
    """Draw from all elements of a sharded vocabulary: as from the whole one, and as the definition says."""
    library, rng, n_ranks = Torch(device), random("all"), dist.get_world_size()
    shards, twice = ((-1,), [Shard(1)]), ((2, -1), [Shard(1), Shard(1)])
    for dtype, n, (shape, placements) in (
        ("float32", 3001, shards),
        ("float16", 1030, twice),
        (bfloat16, 1030, ((2, -1), [Shard(0), Shard(1)])),
        ("float64", 997, shards),
        ("float64", n_ranks + 1, shards),  # the last shards may be empty
        ("float32", 1, twice),
        ("float16", 0, shards),
    ):
        mesh = mesh_of(device, *shape)
        x = (rng.standard_normal((12, n)) * 3).astype(dtype)
        x[0], x[1], x[2, n // 2 :] = np.nan, -np.inf, np.nan
        x[3, n // 3 :: 5], x[4, -1:], x[5] = np.inf, np.inf, np.round(x[5])
        x[6, : n // 2] = -1000
        of_rows = [Shard(0) if p == Shard(0) else Replicate() for p in placements]
        temperature = np.array([1, 0, 1, 1, 0, 0, 0.5, 1e-3, 1e3, np.inf, np.nan, -1], "float32")
        for turn, options in enumerate(
            ({"temperature": temperature}, {"k": n, "steps": 7, "temperature": 0.7, "min_p": 0.2})
        ):
            seeds = rng.integers(-(2**63), 2**63, 12)
            arrays = {"steps": rng.integers(0, 2**63, 12)} | options
            given = {
                name: distribute(each, mesh, of_rows if turn else [Replicate()] * mesh.ndim)
                for name, each in arrays.items()
                if isinstance(each, np.ndarray)
            }
            logits = distribute(x, mesh, placements)
            tokens = dmlops.sample(logits, distribute(seeds, mesh, of_rows), **arrays | given)
            expected = reference.sample(x, seeds, **arrays)
            check(tokens, expected, of_rows)
            in_whole = dmlops.sample(
                library.from_numpy(x),
                library.from_numpy(seeds),
                **{
                    name: library.from_numpy(each) if isinstance(each, np.ndarray) else each
                    for name, each in arrays.items()
                },
            )
            assert_same(library.to_numpy(in_whole), expected)
    row = rng.standard_normal(301)
    one = distribute(row, mesh, [Shard(0)])
    check(
        dmlops.sample(one, 5, index_dtype="uint32"), reference.sample(row, 5).astype("uint32"), [Replicate()]
    )


def gather(device):
    """Batches, tuples and copied dimensions, sharded in every way that is served."""
    mesh = mesh_of(device, 2, -1)
    rng = random("gather")
    x = sample("float32", (5, 3, 4, 6), "sharded gather")
    indices = rng.integers(-3, 3, (5, 7, 1))
    of_x = (Replicate(), Shard(0), Shard(3))
    of_indices = (Replicate(), Shard(0), Shard(1), Shard(2))
    for layout_x in itertools.product(of_x, repeat=2):
        for layout_indices in itertools.product(of_indices, repeat=2):
            mode = "fill" if layout_x[0].is_replicate() else "raise"
            given = indices * 2 if mode == "fill" else indices
            options = {"fill_value": -1.5, "wrap_negative": False} if mode == "fill" else {}
            result = dmlops.gather_nd(
                distribute(x, mesh, layout_x),
                distribute(given, mesh, layout_indices),
                batch_dims=1,
                mode=mode,
                **options,
            )
            # Where x is replicated, the result is placed like the index tuples, unless these are gathered.
            for of_result, p, q in zip(result.placements, layout_x, layout_indices, strict=True):
                has_no_counterpart = q == Shard(2) or (q == Shard(0) and q in layout_x)
                follows = Replicate() if has_no_counterpart else q
                assert of_result == (follows if p.is_replicate() else p)
            expected = reference.gather_nd(x, given, batch_dims=1, mode=mode, **options)
            check(result, expected, result.placements)


def gather_errors(device):
    """An index that one rank alone has is an error of all."""
    mesh = mesh_of(device, -1)
    indices = np.zeros((2 * mesh.size(), 1), "int64")
    indices[-1] = 5
    x = distribute(np.arange(5.0), mesh, [Replicate()])
    error = error_of(lambda: dmlops.gather_nd(x, distribute(indices, mesh, [Shard(0)])))
    assert type(error) is dmlops.IndexOutOfRangeError
    if mesh.get_local_rank() == mesh.size() - 1:
        assert error.__notes__ == [f"The position is that in the shard of rank {dist.get_rank()}."]
    else:
        assert "an error of another rank" in str(error)
    clipped = dmlops.gather_nd(x, distribute(indices, mesh, [Shard(0)]), mode="clip")
    check(clipped, reference.gather_nd(np.arange(5.0), indices, mode="clip"), [Shard(0)])
    # The first rank alone has the tuple.
    nothing, tuple_ = distribute(np.zeros(0), mesh, [Replicate()]), np.zeros((1, 1), "int64")
    for mode in ("raise", "clip"):
        call = partial(dmlops.gather_nd, nothing, distribute(tuple_, mesh, [Shard(0)]), mode=mode)
        assert type(error_of(call)) is dmlops.IndexOutOfRangeError


def lack_of_memory(device):
    """Another error of one rank alone, such as a lack of memory, is an error of all too."""
    mesh = mesh_of(device, -1)
    x = distribute(np.arange(5.0), mesh, [Replicate()])
    indices = distribute(np.zeros((mesh.size(), 1), "int64"), mesh, [Shard(0)])
    lacking = mock.patch("dmlops.functions.gather_nd", side_effect=MemoryError)
    with lacking if is_last() else nullcontext():
        error = error_of(lambda: dmlops.gather_nd(x, indices))
    assert type(error) is (MemoryError if is_last() else dmlops.DmlError)
    assert is_last() or str(error).startswith("gather_nd: got an error of another rank")
    assert tuple(dmlops.gather_nd(x, indices).shape) == (mesh.size(),)


def diagonal(device):
    """Bands of matrices of which rows, columns and batches are sharded."""
    mesh = mesh_of(device, 2, -1)
    x = sample("float32", (3, 5, 7), "sharded diagonal")
    kinds = (Replicate(), Shard(0), Shard(1), Shard(2))
    for placements in itertools.product(kinds, kinds):
        for begin, end in ((0, 1), (-2, 3), (2, -1), (1, 2**70)):
            result = dmlops.diagonal_matrix(distribute(x, mesh, placements), value=9, begin=begin, end=end)
            check(result, reference.diagonal_matrix(x, value=9, begin=begin, end=end), placements)
    like = distribute(x, mesh, [Shard(0), Shard(1)])
    made = dmlops.diagonal_matrix(shape=(3, 4), dtype="int32", like=like)
    check(made, np.eye(3, 4, dtype="int32"), [Replicate(), Replicate()])


def given_outputs(device):
    """Results are copied to tensors of the caller's, which may have other placements."""
    mesh = mesh_of(device, -1)
    x = sample("float32", (4, 9), "given")
    out = [distribute(np.zeros((4, 3), dtype), mesh, [Shard(0)]) for dtype in ("float32", "int32")]
    result = dmlops.top_k(distribute(x, mesh, [Shard(1)]), 3, out=tuple(out))
    assert result.values is out[0]
    for actual, expected in zip(out, reference.top_k(x, 3), strict=True):
        check(actual, expected.astype(expected.dtype if expected.dtype == x.dtype else "int32"), [Shard(0)])


class Sent(TorchDispatchMode):
    """Lists the bytes that this rank gives to each collective operation."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # and see what it does
        if operator.name() == "c10d::_allgather_base_":
            self.sizes.append(args[1].nbytes)
        elif operator.name() == "c10d::allreduce_":
            self.sizes += [sent.nbytes for sent in args[0]]
        elif operator.namespace in ("c10d", "_c10d_functional") and "wait" not in operator.name():
            self.sizes.append(args[0].nbytes)
        return operator(*args, **(kwargs or {}))


def bytes_sent(device):
    """Candidates are sent, not shards; along other dimensions nothing is."""
    mesh = mesh_of(device, -1)
    numbers = sample("float32", (8, 1000), "sent")
    rows, columns = (distribute(numbers, mesh, [Shard(axis)]) for axis in (0, 1))
    indices = distribute(np.zeros((8, 2, 1), "int64"), mesh, [Shard(0)])
    cases = (
        (lambda: dmlops.top_k(columns, 3), [8 * 3 * (4 + 8)]),
        (lambda: dmlops.top_k(rows, 3), []),
        (lambda: dmlops.gather_nd(rows, indices, batch_dims=1, mode="clip"), []),
        (lambda: dmlops.gather_nd(rows, indices, batch_dims=1), [8]),
        (lambda: dmlops.diagonal_matrix(columns), []),
        (lambda: dmlops.sample(columns, 1, k=3), [8 * 3 * (4 + 8)]),
        # A largest element, a sum and a token of each row.
        (lambda: dmlops.sample(columns, 1), [8 * 4, 8 * 8, 8 * 8]),
    )
    for call, sizes in cases:
        with by_sums(), Sent() as sent:
            call()
        assert sent.sizes == sizes, (sent.sizes, sizes)


def gradients(device):
    """Gradients are those that torch has for the whole tensor, sharded as x is."""
    mesh = mesh_of(device, 2, -1)
    numbers = random("gradients").permutation(6 * 10).reshape(6, 10).astype("float64")
    weights = random("weights").random((6, 4))
    whole = torch.tensor(numbers, requires_grad=True)
    values, _ = whole.topk(4)
    (values**2 * torch.tensor(weights)).sum().backward()
    for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        x = distribute(numbers, mesh, placements).requires_grad_()
        values, indices = dmlops.top_k(x, 4)
        indices.add_(1)  # which the backward pass must not see
        (values**2 * distribute(weights, mesh, values.placements)).sum().backward()
        check(x.grad, whole.grad.numpy(), placements)
        x = distribute(numbers, mesh, placements).requires_grad_()
        (dmlops.diagonal_matrix(x) * distribute(numbers, mesh, placements)).sum().backward()
        check(x.grad, np.where(np.eye(6, 10) > 0, 0, numbers), placements)
    indices = random("indices").integers(0, 6, (8, 1))
    times = np.bincount(indices[:, 0], minlength=6)
    for of_x, of_indices in itertools.product((Replicate(), Shard(1)), (Replicate(), Shard(0))):
        x = distribute(numbers, mesh, [Replicate(), of_x]).requires_grad_()
        gathered = dmlops.gather_nd(x, distribute(indices, mesh, [of_indices, Replicate()]))
        gathered.sum().backward()
        assert x.grad.placements == x.placements
        assert x.grad.full_tensor().tolist() == np.repeat(times[:, None], 10, 1).tolist()


def error_of(call):
    """Return the error that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there was no error")


def refusals(device):
    """Refusals name the argument, and come on all ranks before anything is sent."""
    mesh, other = mesh_of(device, -1), mesh_of(device, 2, -1)
    numbers = np.arange(40, dtype="float32").reshape(4, 10)
    x = distribute(numbers, mesh, [Shard(1)])
    partial = DTensor.from_local(torch.ones(4, 10, device=device), mesh, [Partial()], run_check=False)
    wrong = DTensor.from_local(
        torch.ones(4, 9, device=device), mesh, [Shard(1)], run_check=False, shape=(4, 10), stride=(10, 1)
    )
    strided = DTensor.from_local(
        torch.ones(1, 10, device=device),
        other,
        [_StridedShard(0, split_factor=2), Shard(0)],
        run_check=False,
        shape=(4, 10),
        stride=(10, 1),
    )
    plain = torch.ones(4, 10, device=device)
    lengths = distribute(np.ones(4, "int64"), other, [Replicate(), Replicate()])
    indices = distribute(np.zeros((3, 1), "int64"), mesh, [Replicate()])
    cases = (
        (lambda: dmlops.top_k(partial, 2), "Partial(sum), but its elements are not known before"),
        (lambda: dmlops.top_k(wrong, 2), "top_k.x: got a shard of shape"),
        (lambda: dmlops.top_k(strided, 2), "its shards are not successive parts"),
        (lambda: dmlops.top_k(x, 11), "k must be in [0, 10]"),
        (lambda: dmlops.top_k(x, 2, axis=2), "axis"),
        (lambda: dmlops.top_k(x, 2, stream=0), "within torch.cuda.stream(stream)"),
        (lambda: dmlops.top_k(x, 2, lengths=lengths), "all must be on one mesh"),
        (lambda: dmlops.top_k(x, 2, lengths=plain), "distribute_tensor(x, mesh, placements)"),
        (lambda: dmlops.top_k(distribute(numbers, mesh, [Shard(1)]).to(torch.complex64), 2), "top_k.x"),
        (lambda: dmlops.nonzero_coordinates(x), "nonzero_coordinates.x: got a DTensor"),
        (lambda: dmlops.nonzero_coordinates(x, size=3), "pass x.full_tensor()"),
        (
            lambda: dmlops.gather_nd(distribute(numbers, mesh, [Shard(0)]), indices),
            "with Replicate() in its place",
        ),
        (lambda: dmlops.gather_nd(plain, indices), "gather_nd.x: got a Tensor"),
        (lambda: dmlops.gather_nd(x, indices, mode="wrap"), "gather_nd.mode"),
        (lambda: dmlops.diagonal_matrix(x[0]), "diagonal_matrix.x"),
    )
    for call, text in cases:
        error = error_of(call)
        assert isinstance(error, dmlops.DmlError | TypeError), error
        assert text in str(error), error
    # The shards of the last ranks are empty; no feature level of DirectML allows empty tensors.
    narrow, columns = (distribute(numbers[:, :n], mesh, [Shard(1)]) for n in (1, 10))
    at_levels = (
        lambda: dmlops.top_k(narrow, 1),
        lambda: dmlops.top_k(columns, 1, index_dtype="uint32"),
        lambda: dmlops.gather_nd(narrow, indices),
        lambda: dmlops.diagonal_matrix(narrow),
    )
    with dmlops.feature_level("DML_6_4"):
        for call in at_levels:
            error = error_of(call)
            assert type(error) is dmlops.UnsupportedFeatureError, error
            assert "got a DTensor, but DirectML computes on one device" in str(error)


def is_last():
    return dist.get_rank() == dist.get_world_size() - 1


def one_rank_is_killed(device):
    """The last rank ends while the others wait for what it sends; return the others' error."""
    x = distribute(np.ones((8, 8)), mesh_of(device, -1), [Shard(1)])

    def select():
        return dmlops.top_k(x, 2).values.to_local().tolist()

    select()  # this compiles the kernels
    if is_last():
        os.kill(os.getpid(), signal.SIGKILL)
    return type(error_of(select))


def compiled(device):
    """A compiled graph contains the kernels, the exchanges and the gradient."""
    mesh = mesh_of(device, -1)
    numbers = random("compiled").permutation(6 * 10).reshape(6, 10).astype("float64")

    def best(x):
        return dmlops.top_k(x * 2, 4).values

    results = []
    for function in (best, torch.compile(best, fullgraph=True, backend="aot_eager")):
        x = distribute(numbers, mesh, [Shard(1)]).requires_grad_()
        values = function(x)
        (values**2).sum().backward()
        results.append((values, x.grad))
    check(results[1][0].detach(), reference.top_k(numbers * 2, 4)[0], [Replicate()])
    assert results[0][1].placements == results[1][1].placements
    assert results[0][1].to_local().equal(results[1][1].to_local())

    def drawn(x, seeds):
        return dmlops.sample(x * 2, seeds, temperature=0.5)

    draw = torch.compile(drawn, fullgraph=True, backend="aot_eager")
    seeds = np.arange(6)
    tokens = draw(distribute(numbers, mesh, [Shard(1)]), distribute(seeds, mesh, [Replicate()]))
    check(tokens, reference.sample(numbers * 2, seeds, temperature=0.5), [Replicate()])
