"""The memory of the tensors that a traced call writes to: each has its own, and its strides do not overlap.

Of tensors in memory, the guard of all calls decides that. Others stand for tensors in a graph: of those, the
strides tell whether they overlap.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dmlops.array_libraries.base import described
from dmlops.calls.guard import Guard, NamedTensor
from dmlops.integrations.torch.derivatives import is_known
from dmlops.operators.descriptor import check_strides
from dmlops.types.data_types import data_type_of
from dmlops.types.errors import refuse
from dmlops.types.tensor import TensorDesc

_PLAIN = (Tensor, torch.nn.Parameter)


def is_only_seen(read: Sequence[Tensor], written: Sequence[Tensor]) -> bool:
    """Return whether the tensors of a call are in memory, and torch only sees it, as in a mode."""
    if torch.compiler.is_compiling() or not all(type(x) in _PLAIN and not x.is_meta for x in read):
        return False
    addresses = [*map(_address, (*read, *written))]
    if None in addresses:
        return False
    # A tensor without an address stands for others, unless its memory was freed.
    pairs = zip(read, addresses, strict=False)
    return all(address or not x.numel() or not x.untyped_storage().nbytes() for x, address in pairs)


def _address(tensor: Tensor) -> int | None:
    """Return the address of a tensor; None where torch has none to tell, as of examples of vmap."""
    if type(tensor) not in _PLAIN or tensor.is_meta:
        return 0
    try:
        return int(tensor.data_ptr())
    except RuntimeError:
        return None


def check_memory(read: Sequence[Tensor], written: Sequence[Tensor], names: str) -> Tensor:
    """Refuse tensors to write to that share memory, or that have several elements at an address.

    Error texts call inputs and outputs by `names`, which has commas between them. The result is a tensor
    without elements, since an operator of torch must return one.
    """
    operands, addresses = [], []
    function = names.partition(".")[0]
    for place, (tensor, name) in enumerate(zip((*read, *written), names.split(","), strict=True)):
        desc, is_output = _describe(tensor, name), place >= len(read)
        if is_output:
            check_strides(name, desc)
        if is_output or not _is_copied(tensor):
            operands.append(NamedTensor(name, desc))
            addresses.append(tensor.data_ptr())
    n_read = len(operands) - len(written)
    guard = Guard(function, operands[:n_read], operands[n_read:], 0)
    guard.check(addresses, are_given=True)
    return written[0].new_empty(0)


def _describe(tensor: Tensor, where: str) -> TensorDesc:
    return described(data_type_of(tensor.dtype, where), tuple(tensor.shape), tensor.stride())


def _is_copied(tensor: Tensor) -> bool:
    """Return whether kernels read a copy of an input, or refuse it: it shares no memory with outputs."""
    address = tensor.data_ptr()
    is_unaligned = not address or bool(address % tensor.element_size())
    return is_unaligned or bool(tensor.is_neg() or tensor.is_conj())


def check_known_strides(read: Sequence[Tensor], written: Sequence[Tensor], names: str) -> Tensor:
    """Refuse tensors to write to whose strides overlap, as far as a graph knows them; see `check_memory`."""
    for tensor, name in zip(written, names.split(",")[len(read) :], strict=True):
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        if all(isinstance(number, int) for number in (*sizes, *strides)):
            check_strides(name, _describe(tensor, name))
            continue
        for size, stride in zip(sizes, strides, strict=True):
            if is_known(stride == 0) and is_known(size > 1):
                reason = "a stride is 0"
                refuse(name, f"strides {strides}", reason, "the strides of an output must not overlap")
    return written[0].new_empty(0)
