"""Translate the errors of descriptors into the words of the functions that made the descriptors."""

import re
from typing import Any

from dmlops.calls.dispatch import DESCRIPTORS
from dmlops.types.errors import DmlError

# The names of the functions' parameters for the fields of descriptors.
_FIELDS = {
    "input_tensor": "x",
    "indices_tensor": "indices",
    "batch_dimension_count": "batch_dims",
    "input_dimension_count": "x",
    "indices_dimension_count": "indices",
    "axis_direction": "largest",
    "diagonal_fill_begin": "begin",
    "diagonal_fill_end": "end",
    "output_tensor": "out",
}
_OUTPUTS = {
    "output_value_tensor": "out[0]",
    "output_index_tensor": "out[1]",
    "output_coordinates_tensor": "out[0]",
    "output_count_tensor": "out[1]",
}
# If the function allocates its results, the caller has chosen only their type.
_MADE = {
    "output_value_tensor": "values",
    "output_index_tensor": "index_dtype",
    "output_coordinates_tensor": "index_dtype",
    "output_count_tensor": "index_dtype",
}
_OPERATOR = re.compile(rf"^({'|'.join(form.__name__ for form in DESCRIPTORS)})\.")
_TENSOR = re.compile(r"^TensorDesc\.sizes:")
_FIELD = re.compile(rf"\b({'|'.join([*_FIELDS, *_OUTPUTS])})(\.sizes|\.data_type|\.strides)?\b")


class InWordsOf:
    """In a ``with`` block, raise errors of descriptors with the names of a function and its parameters.

    Parameters
    ----------
    function : str
        The function's name.
    has_out : bool
        Whether the caller gave outputs.
    sizes : str
        The parameter to name when a size is invalid.
    """

    __slots__ = ("_function", "_has_out", "_sizes")

    def __init__(self, function: str, *, has_out: bool, sizes: str = "x") -> None:
        self._function, self._has_out, self._sizes = function, has_out, sizes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, DmlError):
            text = self._renamed(str(error))
            if text != str(error):
                raise type(error)(text) from None

    def _renamed(self, text: str) -> str:
        names = {**_FIELDS, **(_OUTPUTS if self._has_out else _MADE)}
        text = _TENSOR.sub(f"{self._function}.{self._sizes}:", text)
        text = _OPERATOR.sub(f"{self._function}.", text)
        return _FIELD.sub(lambda match: names[match[1]], text)
