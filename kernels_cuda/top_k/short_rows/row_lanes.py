"""What the two kernels of `rounds` have in common: the lanes of a row, and where their keys are in it."""

from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.shapes import WARP_LANES


class Places(NamedTuple):
    """Device functions for a lane whose first key has the position `lane_first`.

    Attributes
    ----------
    position_of : Any
        Where in the row a lane's key number `place` is.
    live_places : Any
        How many places of a lane are in a row of `count` elements: its first ones.
    """

    position_of: Any
    live_places: Any


def place_functions(n_lanes: int, per_vector: int) -> Places:
    """Make the functions for rows of `n_lanes` lanes, which load vectors of so many elements by turns."""
    pass_elements = n_lanes * per_vector

    @device_function
    def position_of(lane_first, place):
        return lane_first + place // u32(per_vector) * u32(pass_elements) + place % u32(per_vector)

    @linked_function
    def live_places(lane_first, count):
        whole = count // pass_elements
        last = max(count - whole * pass_elements, lane_first) - lane_first
        return whole * per_vector + min(last, u32(per_vector))

    return Places(position_of, live_places)


def extremes_of_lanes(key_type: Any, n_lanes: int) -> tuple[Any, Any]:
    """Make the functions for the largest key, and the least word, of `n_lanes` neighbouring lanes."""
    if n_lanes == WARP_LANES:
        return warp_maximum(key_type), ptx.warp_min
    n_steps = n_lanes.bit_length() - 1

    def over_lanes(choose: Any, shuffle: Any) -> Any:
        @linked_function
        def chosen(value):
            for step in range(n_steps):
                value = choose(value, shuffle(value, u32(1 << step)))
            return value

        return chosen

    return over_lanes(max, ptx.SHUFFLE_XOR[key_type]), over_lanes(min, ptx.shuffle_xor_u32)
