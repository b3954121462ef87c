"""Passes torch tensors that have no memory, or less than they claim: torch runs the call, or it is refused.

Each of these tensors used to end the process, so each is tried in a separate process.
"""

import os
import sys
import traceback

import numpy as np
import pytest
import torch
from torch import distributed, nested
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh, tensor
from torch.masked import masked_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import dmlops
from dmlops import DeviceMismatchError, InvalidDescriptorError

SHAPE = (6, 8)
ROUNDS = 5


class Wrapper(torch.Tensor):
    """A subclass that only looks like a tensor."""

    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError


class Subclass(torch.Tensor):
    """A subclass with memory."""


def shrunk(x, n_bytes):
    """Take the memory of a tensor away, but for some bytes at its beginning."""
    x.untyped_storage().resize_(n_bytes)
    return x


def freed_view(x):
    """Return the second half of a tensor whose memory is taken away then."""
    both = torch.cat([x.reshape(1, -1), x.reshape(1, -1)])
    half = both[1].reshape(x.shape)
    shrunk(both, 0)
    return half


def shared(x):
    """Return a DTensor on one process."""
    if not distributed.is_initialized():
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = device_mesh.init_device_mesh(x.device.type, (1,))
    return tensor.DTensor.from_local(x, mesh, [tensor.Replicate()])


KINDS = {
    "fake": lambda x: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x),
    "freed": lambda x: shrunk(x.clone(), 0),
    "freed_view": freed_view,
    "shrunk": lambda x: shrunk(x.clone(), x.element_size()),
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device),
    "wrapper": Wrapper,
    "subclass": lambda x: x.clone().as_subclass(Subclass),
    "distributed": shared,
    "masked": lambda x: masked_tensor(x, x > 1),
    "nested": lambda x: nested.nested_tensor([x[0], x[1]]),
    "jagged": lambda x: nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "meta": lambda x: x.to("meta"),
    "conjugate": lambda x: torch.complex(x.float(), x.float()).conj(),
    "imaginary": lambda x: torch.complex(x.float(), x.float()).conj().imag,
    "requires_grad": lambda x: x.float().clone().requires_grad_(),
}
# These are taken as inputs, and only refused as outputs.
INPUTS = {"imaginary", "requires_grad", "fake", "zero", "subclass", "meta"}
# What these do as inputs is up to their own code.
OTHERS = {"wrapper", "distributed"}
# Integers have no derivatives, so these tensors are plain.
NO_SUCH_TENSOR = RuntimeError, IndexError, TypeError
FLOATS_ONLY = {"requires_grad", "conjugate", "imaginary"}


def calls(x, indices, outs):
    """Go through the names of calls that read or write these tensors, and functions that make them."""
    values, places, picked, band, coordinates, count = outs
    yield "top_k.x", lambda: dmlops.top_k(x, 2)
    yield "nonzero_coordinates.x", lambda: dmlops.nonzero_coordinates(x)
    yield "nonzero_coordinates.x", lambda: dmlops.nonzero_coordinates(x, size=9)
    for mode in ("raise", "clip", "fill"):
        yield "gather_nd.x", lambda mode=mode: dmlops.gather_nd(x, indices, mode=mode)
    yield "diagonal_matrix.x", lambda: dmlops.diagonal_matrix(x)
    yield "top_k.out[0]", lambda: dmlops.top_k(x, 2, out=(values, places))
    yield "nonzero_coordinates.out[0]", lambda: dmlops.nonzero_coordinates(x, out=(coordinates, count))
    for mode in ("raise", "clip", "fill"):
        yield "gather_nd.out", lambda mode=mode: dmlops.gather_nd(x, indices, mode=mode, out=picked)
    yield "diagonal_matrix.out", lambda: dmlops.diagonal_matrix(x, out=band)


def good(device, dtype):
    """Return tensors that every call takes."""
    x = torch.arange(48, device=device).reshape(SHAPE).to(dtype)
    indices = torch.tensor([[1], [5], [-6]], device=device)
    outs = [torch.zeros(shape, dtype=kind, device=device) for shape, kind in (
        *(((6, 2), dtype), ((6, 2), torch.int64), ((3, 8), dtype)),
        *((SHAPE, dtype), ((48, 2), torch.int64), ((), torch.int64)),
    )]  # fmt: skip
    return x, indices, outs


def check_good(device, dtype):
    """Check that plain tensors are served."""
    x, indices, outs = good(device, dtype)
    for _ in range(ROUNDS):
        for _, call in calls(x, indices, outs):
            call()
    host = x.cpu().numpy()
    assert (outs[0].cpu().numpy() == host[:, :-3:-1]).all()
    assert (outs[2].cpu().numpy() == host[[1, 5, 0]]).all()


def refused(where, call):
    """Check that a call is refused with a text that names the argument."""
    with pytest.raises((TypeError, InvalidDescriptorError, DeviceMismatchError)) as error:
        call()
    text = str(error.value)
    assert text.startswith(f"{where}: got ")
    assert ";" in text  # the remedy


def check_kind(name, device, dtype):
    """Check that a kind is refused wherever a call takes a tensor."""
    make = KINDS[name]
    x, indices, outs = good(device, dtype)
    is_float = dtype.is_floating_point
    if name in FLOATS_ONLY and not is_float:
        return
    try:
        bad = make(x)
    except NO_SUCH_TENSOR:
        return
    for (where, call), (_, plain) in zip(calls(bad, indices, outs), calls(x, indices, outs), strict=True):
        if ".x" not in where or name in OTHERS or (name == "conjugate" and not where.startswith("top_k")):
            continue
        if name not in INPUTS:
            refused(where, call)
        elif name not in ("fake", "meta") or where in ("top_k.x", "diagonal_matrix.x"):
            pairs = zip(_parts(call()), _parts(plain()), strict=True)
            assert all(part.shape[1:] == expected.shape[1:] for part, expected in pairs)
    for place, which in enumerate(outs):
        # Indices cannot have derivatives, or be complex.
        if name in FLOATS_ONLY and not which.dtype.is_floating_point:
            continue
        replaced = list(outs)
        shape = which.shape
        if name in ("nested", "jagged", "masked", "sparse", "compressed") and len(shape) < 2:
            continue
        try:
            replaced[place] = make(torch.ones_like(which) if which.dim() else which)
        except NO_SUCH_TENSOR:
            continue
        if name == "shrunk" and which.dim() == 0:
            continue
        field = {0: "top_k.out[0]", 1: "top_k.out[1]", 2: "gather_nd.out", 3: "diagonal_matrix.out"}
        field |= {4: "nonzero_coordinates.out[0]", 5: "nonzero_coordinates.out[1]"}
        for where, call in calls(x, indices, replaced):
            if where.partition(".")[0] == field[place].partition(".")[0] and ".out" in where:
                refused(field[place], call)
    if name not in FLOATS_ONLY:
        try:
            picks = make(indices)
        except NO_SUCH_TENSOR:
            return
        if name == "meta" or name not in INPUTS | OTHERS:
            refused("gather_nd.indices", lambda: dmlops.gather_nd(x, picks))
            refused("gather_nd.indices", lambda: dmlops.gather_nd(x, picks, mode="clip", out=outs[2]))
        elif name in INPUTS:
            assert dmlops.gather_nd(x, picks).shape == outs[2].shape


def _parts(result):
    return result if isinstance(result, tuple) else (result,)


def check_transformed(device, dtype):
    """Check that what torch's transformations pass is served."""
    x = torch.arange(48.0, device=device).reshape(SHAPE)

    def difference(x):
        values = dmlops.top_k(x, 2).values - x.topk(2).values
        return values.abs().sum() + (dmlops.tril(x) - x.tril()).abs().sum()

    assert torch.func.functionalize(difference)(x) == 0
    assert not torch.func.grad(difference)(x).any()
    assert all(part.eq(0).all() for part in torch.func.jvp(difference, (x,), (x,)))
    assert not torch.func.vmap(lambda row: difference(torch.stack([row, row])))(x).any()
    with torch.autograd.forward_ad.dual_level():
        parts = torch.autograd.forward_ad.unpack_dual(difference(torch.autograd.forward_ad.make_dual(x, x)))
        assert all(part == 0 for part in parts)


def check_shrunk_after_calls(device, dtype):
    """Check that a tensor is refused that earlier calls took while it had memory."""
    x, indices, outs = good(device, dtype)
    for _ in range(ROUNDS):
        for _, call in calls(x, indices, outs):
            call()
    shrunk(x, 0)
    for where, call in calls(x, indices, outs):
        if ".x" in where:
            refused(where, call)
    x, indices, _ = good(device, dtype)
    for out in outs:
        shrunk(out, 0)
    for where, call in calls(x, indices, outs):
        if ".out" in where:
            refused(where, call)


def check_unaligned(device, dtype):
    """Check that elements at odd addresses are copied as inputs, and refused as outputs."""
    x, indices, outs = good(device, dtype)
    size = x.element_size()

    def moved(tensor):
        memory = torch.zeros(tensor.numel() * tensor.element_size() + 16, dtype=torch.uint8)
        shifted = torch.frombuffer(memory.numpy(), dtype=tensor.dtype, offset=1, count=tensor.numel())
        return shifted.reshape(tensor.shape).copy_(tensor)

    if size == 1 or device != "cpu":
        return
    for _ in range(2):
        odd = moved(x)
        assert odd.data_ptr() % size
        assert torch.equal(dmlops.top_k(odd, 2).values, dmlops.top_k(x, 2).values)
        assert torch.equal(dmlops.gather_nd(x, moved(indices)), dmlops.gather_nd(x, indices))
        for place, field in enumerate(
            ("top_k.out[0]", "top_k.out[1]", "gather_nd.out", "diagonal_matrix.out")
        ):
            replaced = list(outs)
            replaced[place] = moved(outs[place])
            for where, call in calls(x, indices, replaced):
                if where.partition(".")[0] == field.partition(".")[0] and ".out" in where:
                    refused(field, call)


CHECKS = {
    **{name: (lambda device, dtype, name=name: check_kind(name, device, dtype)) for name in KINDS},
    "transformed": check_transformed,
    "shrunk_after_calls": check_shrunk_after_calls,
    "unaligned": check_unaligned,
}


def run(name, device, *, is_warm):
    """Run a check for some types, in a process that made good calls before if it `is_warm`."""
    for dtype in (torch.float32, torch.int64, torch.uint8):
        if is_warm:
            check_good(device, dtype)
        CHECKS[name](device, dtype)
        check_good(device, dtype)


def main(device):
    """Run every check in separate processes, cold and warm; return the number of failures."""
    failures = 0
    # Compile the kernels first, so that the processes only load them.
    child = os.fork()
    if child == 0:
        for dtype in (torch.float32, torch.int64, torch.uint8):
            check_good(device, dtype)
        os._exit(0)
    os.waitpid(child, 0)
    for name in CHECKS:
        for is_warm in (False, True):
            child = os.fork()
            if child == 0:
                try:
                    run(name, device, is_warm=is_warm)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status:
                failures += 1
                print(f"{name}, {'warm' if is_warm else 'cold'}: status {status}", flush=True)
    return failures


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main(sys.argv[1]))
