"""`dmlops.nonzero_coordinates` of DTensors: refused."""

from typing import NoReturn

from dmlops.types.errors import error_text


def run(call: object) -> NoReturn:
    """Refuse the call: its rows depend on the elements of all shards."""
    reason, remedy = "its rows depend on the elements of all shards", "pass x.full_tensor()"
    raise TypeError(error_text("nonzero_coordinates.x", "a DTensor", reason, remedy))
