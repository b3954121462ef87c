"""Runs random problems (`tests.random_cases`) by kernels that are interpreted."""

import numpy as np

from tests import inside
from tests.cuda_plans import SHARED_BYTES, STREAM
from tests.inside import dispatch
from tests.interpreter.device import interpreted
from tests.interpreter.memory import GlobalMemory
from tests.workspace_areas import areas_apart

ALIGNMENT = 256


def run_case(case, choice=None, arch="sm_90", multiprocessors=132, memory=None):
    """Run a problem by the algorithm of a choice (`tests.gpu.algorithms`); check every byte of the operands.

    In `memory` that changes, only accesses are checked. Returns the labels of the kernels that ran. Raises
    ``ValueError`` if the algorithm does not serve the problem.
    """
    variant = inside.variant
    target = variant.Target(0, arch, multiprocessors, SHARED_BYTES[arch])
    operator = dispatch.OPERATORS[type(case.descriptor.lower())]
    problem = operator.problem(case.descriptor.lower(), case.options)
    forced = {"target": target} | (choice.arguments(target) if choice else {})
    memory, storage, addresses = memory or GlobalMemory(), {}, []
    for field in operator.operands:
        if field not in case.before:
            # Rows without lengths, starts or numbers have no address for them; other missing inputs have 0.
            addresses += [0] * (field not in ("lengths", "starts", "numbers"))
            continue
        # Arrays of functions may be laid out otherwise than descriptors say.
        descriptor = {
            "lengths": case.options.lengths,
            "starts": case.options.starts,
            "numbers": case.options.numbers,
            "output_coordinates_tensor": case.options.coordinates,
        }.get(field) or getattr(case.descriptor, field)
        data = case.before[field]
        storage[field] = aligned(data.size, ALIGNMENT)
        storage[field][...] = data
        element_size = descriptor.data_type.bytes
        addresses.append(memory.add(storage[field]) + descriptor.offset * element_size)
    with interpreted(memory) as interpreter, areas_apart() as gaps:
        plan = inside.cuda_kernels(operator.name).plan(problem, **forced)
        workspace = aligned(plan.workspace_size, ALIGNMENT)
        plan.launch(STREAM, *addresses, memory.add(workspace))
    # Where elements have numbers, several selections take the same areas, one after the other.
    for begin, end in gaps if case.options.numbers is None else ():
        # A sort clears several areas at once, and what lies between them.
        assert {*workspace[begin:end].tolist()} in (set(), {0xA5}, {0}), (
            f"what begins before {begin} is too long"
        )
    if memory.is_stable:
        case.check(storage)
        assert not interpreter.races, "\n".join(interpreter.races)
    return interpreter.launched


def aligned(n_bytes, alignment):
    """Return bytes that are not 0, at an address that is a multiple of `alignment`."""
    room = np.full(n_bytes + alignment, 0xA5, np.uint8)
    begin = -room.__array_interface__["data"][0] % alignment
    return room[begin : begin + n_bytes]
