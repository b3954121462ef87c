"""The operators as functions of arrays, in NumPy's manner; one module for each.

A function normalises its arguments, looks for a call that was bound for arguments of these kinds, binds one
if there is none, runs it and returns the result.
"""

from collections.abc import Mapping
from importlib import import_module

from dmlops.calls.binding import Spec
from dmlops.calls.dispatch import OPERATORS
from dmlops.functions.diagonal_matrix import diagonal_matrix as diagonal_matrix
from dmlops.functions.gather_nd import gather_nd as gather_nd
from dmlops.functions.nonzero_coordinates import nonzero_coordinates as nonzero_coordinates
from dmlops.functions.sample import sample as sample
from dmlops.functions.top_k import top_k as top_k

SPECS: Mapping[str, Spec] = {
    operator.name: import_module(f"{__name__}.{operator.name}").SPEC for operator in OPERATORS.values()
}
"""The `Spec` of each function by its name; integrations iterate over them."""
