"""What plans share: the band as kernels take it, and a launch for some of the rows."""

from typing import NamedTuple

from kernels_cuda.runtime.launch import LaunchList


class Band(NamedTuple):
    """What is set: diagonals from `begin` to `end`, or all others if `inverted`, to the bits `value`."""

    begin: int
    end: int
    inverted: bool
    has_input: bool
    value: int

    def numbers(self, element_size: int) -> tuple[int, ...]:
        """Return the parameters that kernels take for it, the value as the two words of eight bytes."""
        splat = self.value
        if element_size < 8:
            splat *= 0xFFFFFFFF // ((1 << (8 * element_size)) - 1)
        return (
            self.begin,
            self.end,
            int(self.inverted),
            int(self.has_input),
            splat & 0xFFFFFFFF,
            splat >> 32 if element_size == 8 else splat,
        )

    def seen_from(self, y: int, height: int, width: int) -> "Band":
        """Return the band as it is in the `height` rows from row `y` on."""
        begin, end = (max(-height, min(bound + y, width)) for bound in (self.begin, self.end))
        return self._replace(begin=begin, end=end)

    def turned(self, height: int) -> "Band":
        """Return the band as it is in the transposed matrix, whose rows have `height` elements."""
        begin, end = (min(1 - bound, height) for bound in (self.end, self.begin))
        return self._replace(begin=begin, end=end)


class Part(NamedTuple):
    """A launch for some of the rows, and how many bytes they are from the first ones."""

    x: int
    output: int
    launch: LaunchList
