"""Device memory directly from the driver, which no array library rounds up, pools or clears."""

import importlib

import numpy as np

from tests.inside import Device, cuda_driver, dispatch

FENCE = 512
DEVICE = Device("cuda", 0)
# A workspace may hold any of these when a call begins.
POISONS = (0x00, 0xFF, 0x5A, None)


def _driver():
    return importlib.import_module("cuda.bindings.driver")


def _ask(result):
    status, *values = result
    assert status == _driver().CUresult.CUDA_SUCCESS, status
    return values[0] if values else None


class Memory:
    """A copy of host bytes in a separate block of device memory.

    Parameters
    ----------
    content : ndarray of uint8
        The bytes.
    lead : int
        How far from an aligned address they begin.
    fence : int
        Bytes around them, a multiple of 256, that nothing may write to. Without any the allocation ends where
        the bytes do, for tools that know what belongs to an allocation.
    copied : bool
        Whether the bytes are copied there; without, the memory stays as the driver gives it.
    """

    def __init__(self, content, lead=0, fence=FENCE, copied=True):
        importlib.import_module("cuda.core").Device(DEVICE.number).set_current()
        self.whole = np.full(fence + lead + content.size + fence, 0xA5, np.uint8)
        self.inner = slice(fence + lead, fence + lead + content.size)
        self.whole[self.inner] = content
        self.pointer = int(_ask(_driver().cuMemAlloc(max(self.whole.size, 1))))
        self.address = self.pointer + self.inner.start
        if self.whole.size and copied:
            _ask(_driver().cuMemcpyHtoD(self.pointer, self.whole.ctypes.data, self.whole.size))

    def content(self, name):
        """Return the bytes as they are now, after a look at the fences."""
        found = np.empty_like(self.whole)
        if found.size:
            _ask(_driver().cuMemcpyDtoH(found.ctypes.data, self.pointer, found.size))
        for part in (slice(0, self.inner.start), slice(self.inner.stop, None)):
            assert (found[part] == 0xA5).all(), f"the fence around {name} is broken"
        return found[self.inner]

    def free(self):
        """Give the memory back."""
        _ask(_driver().cuMemFree(self.pointer))


def execute(case, rng, fence=FENCE, gaps=()):
    """Run a `RandomCase` on the GPU and check every byte, those around its operands too.

    Without a fence the workspace is not written to beforehand: tools see what a kernel reads too early.
    `gaps` are the (begin, end) of what lies between the areas of the workspace, found while it is planned.
    """
    plan, operands = dispatch.plan(case.descriptor, DEVICE, case.options)
    poison, size = POISONS[rng.integers(len(POISONS))], plan.workspace_size
    scratch = rng.integers(0, 256, size, np.uint8) if poison is None else np.full(size, poison, np.uint8)
    for begin, end in gaps:
        scratch[begin:end] = 0xA5
    memory = {
        field: Memory(case.before[field], desc.data_type.bytes * int(rng.integers(17)), fence)
        for field, desc in operands
    }
    memory["workspace"] = Memory(scratch, fence=fence, copied=fence > 0)
    addresses = [memory[field].address + desc.offset * desc.data_type.bytes for field, desc in operands]
    absent = () if "input_tensor" in memory else (0,)
    stream = 0
    try:
        with cuda_driver.device_made_current(DEVICE.number):
            plan.launch(stream, *absent, *addresses, memory["workspace"].address if size else 0)
        if fence:
            found = memory["workspace"].content(f"the workspace of {case}")
            for begin, end in gaps:
                # A sort clears several areas at once, and what lies between them.
                kinds = set(found[begin:end].tolist())
                assert kinds in (set(), {0xA5}, {0}), f"what begins before {begin} reaches farther in {case}"
        case.check({field: memory[field].content(f"{field} of {case}") for field in case.before})
    finally:
        for operand in memory.values():
            operand.free()
