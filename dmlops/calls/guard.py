"""The last check of a call, after those of the libraries: kernels can use the addresses of its arrays."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dmlops.types.enums import TensorDataType
from dmlops.types.errors import refuse
from dmlops.types.opaque_types import part_bytes
from dmlops.types.tensor import TensorDesc
from kernels_cpu.cached import cached_property

# Steps that the exact test for common addresses may take; after that, the answer is yes.
_OVERLAP_WORK: Any = 100_000


class NamedTensor(NamedTuple):
    """An array that a call takes: what error texts call it, and how it lies in memory."""

    name: str
    desc: TensorDesc


class OverlapCandidate(NamedTuple):
    """The distances between two operands at which they may share memory."""

    first: int
    second: int
    above: int
    below: int


class Guard:
    """Checks addresses: they are in memory and aligned, and no output shares memory with another operand.

    Parameters
    ----------
    operator : str
        What error texts call it.
    inputs, outputs : sequence of NamedTensor
        The operands, in the order of their addresses.
    workspace_size : int
        The bytes of a workspace, whose address comes last where the caller gives one.
    """

    def __init__(
        self,
        operator: str,
        inputs: Sequence[NamedTensor],
        outputs: Sequence[NamedTensor],
        workspace_size: int,
    ) -> None:
        self._operator, self._workspace_size = operator, workspace_size
        self._passed, self._n_inputs = (*inputs, *outputs), len(inputs)
        # Addresses are multiples of these; an operand without elements has 0, and any address will do.
        self._item_sizes = [
            part_bytes(desc.data_type) if desc.element_count else 0 for _, desc in self._passed
        ]

    # Computed when first needed: a single call that allocates its outputs needs none of it.
    @cached_property
    def _operands(self) -> tuple[NamedTensor, ...]:
        workspace = TensorDesc(TensorDataType.UINT8, (self._workspace_size,))
        return (*self._passed, NamedTensor(f"{self._operator}.workspace", workspace))

    @cached_property
    def candidates(self) -> list[OverlapCandidate]:
        """The overlap candidates of each output and the workspace, and all operands before them."""
        # The first and the last byte of each operand, relative to its element [0, ..., 0].
        extents = []
        for _, desc in self._operands:
            size = desc.data_type.bytes
            extents.append((-desc.offset * size, (desc.extent - desc.offset) * size))
        return [
            OverlapCandidate(i, j, extents[i][0] - end, extents[i][1] - begin)
            for j, (begin, end) in enumerate(extents)
            for i in range(j if j >= self._n_inputs else 0)
        ]

    def candidates_of(self, n_given: int) -> list[OverlapCandidate]:
        """Return the candidates among the first operands that the caller gives."""
        return [candidate for candidate in self.candidates if candidate.second < n_given]

    def check(self, addresses: Sequence[int], *, are_given: bool) -> None:
        """Refuse addresses that kernels could not use; new outputs share no memory, and `are_given` is False.

        Raises
        ------
        InvalidDescriptorError
            If an address is 0 or unaligned, or an operand shares memory with an output or the workspace.
        """
        for number, size in enumerate(self._item_sizes):
            if size and (not addresses[number] or addresses[number] % size):
                got = f"an array at address {addresses[number]:#x}"
                reason = f"it has elements of {size} bytes"
                allowed = "they must be in memory, at a multiple of their size"
                refuse(self._passed[number].name, got, reason, allowed)
        if are_given:
            for candidate in self.candidates_of(len(addresses)):
                self._check_overlap(candidate, addresses)

    def _check_overlap(self, candidate: OverlapCandidate, addresses: Sequence[int]) -> None:
        i, j, above, below = candidate
        if not above < addresses[j] - addresses[i] < below:
            return
        one, other = [np.asarray(_StandIn(addresses[k], self._operands[k].desc)) for k in (i, j)]
        with suppress(np.exceptions.TooHardError):
            if not np.shares_memory(one, other, max_work=_OVERLAP_WORK):
                return
        first, second = self._operands[i].name, self._operands[j].name
        allowed = f"{'it' if j == len(self._passed) else 'an output'} must have memory of its own"
        refuse(second, "an overlapping array", f"it shares memory with {first}", allowed)


class _StandIn:
    """An array of which NumPy compares the addresses, and never reads the elements."""

    def __init__(self, address: int, desc: TensorDesc) -> None:
        size = desc.data_type.bytes
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": desc.sizes,
            "strides": tuple(stride * size for stride in desc.effective_strides),
            "typestr": f"|V{size}",
        }
