"""Messages between the blocks of a cluster.

A message is a store to a block's shared memory that counts down what one of its barriers waits for. A block
announces how many bytes come, and waits for them; nobody waits for a barrier of the whole cluster, which takes
twice as long as a message does. When a block has received all that is sent to it, it may leave.

Each purpose has a barrier of its own. Those of digits are used again and again: before a block sends the totals
of a digit, it has received the pages of the digit before from all blocks, and those have received its totals.
"""

from numba import types

from kernels_cuda.ptx import (
    cluster_address,
    message_barrier_announce,
    message_barrier_init,
    message_barrier_try_wait,
)
from kernels_cuda.runtime.compiler import device_function

u32 = types.uint32

# Numbers of barriers.
TOTALS, PAGES, MAXIMA, CANDIDATES, GROUPS, SELECTED, SORTED, N_BARRIERS = range(8)
_BARRIER_BYTES = 8


@device_function
def barrier_at(barriers, number):
    """Return the address of a barrier, where `barriers` is that of the first."""
    return barriers + u32(number) * _BARRIER_BYTES


@device_function
def begin_messages(barriers, thread, n_blocks):
    """Make the barriers of this block; the blocks of the cluster must meet before they send."""
    if thread < N_BARRIERS:
        # All blocks announce candidates.
        n_arrivals = u32(1)
        if thread == CANDIDATES:
            n_arrivals = n_blocks
        message_barrier_init(barrier_at(barriers, thread), n_arrivals)


@device_function
def announce(barrier, n_bytes):
    """Announce what is sent to this block, or to that whose address it is: one thread does, once."""
    message_barrier_announce(barrier, u32(n_bytes))


@device_function
def wait_for_all(barrier, parity):
    """Wait for what has been announced; `parity` is 0 the first time, 1 the second time, 0 the third."""
    while message_barrier_try_wait(barrier, u32(parity)) == 0:
        pass


@device_function
def of_block(address, barrier, block):
    """Return where a block has what this one has at an address, and its barrier."""
    return cluster_address(address, block), cluster_address(barrier, block)
