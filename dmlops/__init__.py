"""DirectML's indexing operators for NumPy and CUDA arrays: exact, stable, without hidden waits."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING

from dmlops.array_libraries import frameworks as _frameworks
from dmlops.array_libraries.device_array import DeviceArray
from dmlops.calls.compiled import CompiledOperator
from dmlops.calls.compiled import compile as compile
from dmlops.calls.dispatch import check_feature_support, feature_level
from dmlops.functions.diagonal_matrix import diagonal_matrix, eye, tril, triu
from dmlops.functions.gather_nd import gather_nd
from dmlops.functions.nonzero_coordinates import NonzeroResult, nonzero_coordinates
from dmlops.functions.sample import sample
from dmlops.functions.top_k import TopKResult, top_k
from dmlops.operators.descriptor import Descriptor
from dmlops.operators.diagonal_matrix import DiagonalMatrix, DiagonalMatrix1
from dmlops.operators.gather_nd import GatherND, GatherND1
from dmlops.operators.nonzero_coordinates import NonzeroCoordinates
from dmlops.operators.top_k import TopK, TopK1
from dmlops.types.enums import AxisDirection, Feature, FeatureLevel, TensorDataType
from dmlops.types.errors import (
    DeviceMismatchError,
    DmlError,
    IndexOutOfRangeError,
    InvalidDescriptorError,
    UnsupportedFeatureError,
)
from dmlops.types.tensor import TensorDesc
from kernels_cpu import nopython_call as _nopython_call
from kernels_cpu.threads import get_num_threads, set_num_threads

_nopython_call.offer("dmlops.integrations.numba")
_frameworks.offer(
    torch="dmlops.integrations.torch.functions",
    torch_compiler="dmlops.integrations.torch.compiler",
    torch_distributed="dmlops.integrations.torch.distributed",
)

# Without `compile`: a star would put it in the place of Python's own.
__all__ = [
    "AxisDirection",
    "CompiledOperator",
    "Descriptor",
    "DeviceArray",
    "DeviceMismatchError",
    "DiagonalMatrix",
    "DiagonalMatrix1",
    "DmlError",
    "Feature",
    "FeatureLevel",
    "GatherND",
    "GatherND1",
    "IndexOutOfRangeError",
    "InvalidDescriptorError",
    "NonzeroCoordinates",
    "NonzeroResult",
    "TensorDataType",
    "TensorDesc",
    "TopK",
    "TopK1",
    "TopKResult",
    "UnsupportedFeatureError",
    "check_feature_support",
    "diagonal_matrix",
    "eye",
    "feature_level",
    "gather_nd",
    "get_num_threads",
    "nonzero_coordinates",
    "sample",
    "set_num_threads",
    "top_k",
    "tril",
    "triu",
]

# Names of other libraries, and what they are here.
_OTHER_NAMES = {
    "argwhere": "nonzero_coordinates",
    "diag": "diagonal_matrix",
    "diagonal": "diagonal_matrix",
    "fill_diagonal": "diagonal_matrix",
    "gather": "gather_nd",
    "nonzero": "nonzero_coordinates",
    "take_along_axis": "gather_nd",
    "topk": "top_k",
}

if not TYPE_CHECKING:  # for type checkers, a module with this function has every name

    def __getattr__(name: str) -> object:
        """Say what another library's name is called here."""
        message = f"module 'dmlops' has no attribute '{name}'"
        if name in _OTHER_NAMES:
            message = f"{message}; did you mean {_OTHER_NAMES[name]}?"
            raise AttributeError(message, name=name)
        raise AttributeError(message)  # Python may suggest a name that is spelt like it
