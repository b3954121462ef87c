"""The operators: their descriptors, feature levels and constraints, in pure Python."""

from dmlops.operators.descriptor import Descriptor
from dmlops.operators.diagonal_matrix import DiagonalMatrix, DiagonalMatrix1
from dmlops.operators.gather_nd import GatherND, GatherND1
from dmlops.operators.nonzero_coordinates import NonzeroCoordinates
from dmlops.operators.problem import Operator, Options
from dmlops.operators.top_k import TopK, TopK1

__all__ = [
    "Descriptor",
    "DiagonalMatrix",
    "DiagonalMatrix1",
    "GatherND",
    "GatherND1",
    "NonzeroCoordinates",
    "Operator",
    "Options",
    "TopK",
    "TopK1",
]
