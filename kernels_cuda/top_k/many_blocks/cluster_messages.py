"""Messages between the blocks of a cluster.

A message is a store to a block's shared memory that counts down what one of its barriers waits for. A block
announces how many bytes come, and waits for them. That is faster than a barrier of the whole cluster. A
block must not leave before it has received all that is sent to it. Its completion has release semantics: who
has received a message sees what its sender did before, or knew of by a barrier of its block.

Each purpose has a barrier of its own. The search for digits has two, which it uses alternately: before a
block sends the totals of a digit, it has received those of the digit before from all blocks, and all of them
have received those of the digit before that.
"""

from kernels_cuda import ptx
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import device_function

# Numbers of barriers; those of even and odd digits are `TOTALS` and the next one.
TOTALS, _, MAXIMA, CANDIDATES, N_BARRIERS = range(5)
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
        ptx.message_barrier_init(barrier_at(barriers, thread), n_arrivals)


@device_function
def announce(barrier, n_bytes):
    """Announce what is sent to this block, or to that whose address it is: one thread does, once."""
    ptx.message_barrier_announce(barrier, u32(n_bytes))


@device_function
def wait_for_all(barrier, parity):
    """Wait for what has been announced; `parity` is 0 the first time, 1 the second time, 0 the third."""
    while ptx.message_barrier_try_wait(barrier, u32(parity)) == 0:
        pass


@device_function
def of_block(address, barrier, block):
    """Return where a block has what this one has at an address, and its barrier."""
    return ptx.cluster_address(address, block), ptx.cluster_address(barrier, block)
