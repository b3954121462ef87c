"""Errors that descriptors raise, in the words of the functions that made the descriptors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dmlops.dispatch import DESCRIPTORS
from dmlops.errors import DmlError

# Fields of descriptors by what a function's caller knows them as.
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
# Of results that the function makes, the caller chose the type alone.
_MADE = {
    "output_value_tensor": "values",
    "output_index_tensor": "index_dtype",
    "output_coordinates_tensor": "index_dtype",
    "output_count_tensor": "index_dtype",
}
_OPERATOR = re.compile(rf"^({'|'.join(form.__name__ for form in DESCRIPTORS)})\.")
_TENSOR = re.compile(r"^TensorDesc\.sizes:")
_FIELD = re.compile(rf"\b({'|'.join([*_FIELDS, *_OUTPUTS])})(\.sizes|\.data_type|\.strides)?\b")


@contextmanager
def in_words_of(function: str, *, has_out: bool, sizes: str = "x") -> Iterator[None]:
    """Raise the errors of descriptors with the names of a function and its parameters.

    Parameters
    ----------
    function : str
        The function's name.
    has_out : bool
        Whether the caller gave outputs.
    sizes : str
        The parameter that sizes come from which no tensor may have.
    """
    try:
        yield
    except DmlError as error:
        names = {**_FIELDS, **(_OUTPUTS if has_out else _MADE)}
        text = _renamed(str(error), function, names, sizes)
        if text == str(error):
            raise
        raise type(error)(text) from None


def _renamed(text: str, function: str, names: Mapping[str, str], sizes: str) -> str:
    text = _TENSOR.sub(f"{function}.{sizes}:", text)
    text = _OPERATOR.sub(f"{function}.", text)
    return _FIELD.sub(lambda match: names[match[1]], text)
