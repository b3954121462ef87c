"""The operators: their descriptors, feature levels and constraints, in pure Python."""

from dmlops.operators.descriptor import Descriptor as Descriptor
from dmlops.operators.problem import Options as Options
