"""Input data by the name of its distribution, made by NumPy on the host and by torch on a GPU."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.libraries import missing, not_served
from bench.workloads import CPU, CUDA

SEED = 2026
DISTINCT = 16
EQUAL = 131  # equal elements in a row: more than a warp or a small buffer holds
Shape = tuple[int, ...]


class NumPySource:
    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)

    def make(self, data: str, shape: Shape, dtype: str) -> Any:
        """Return an array of one of the `DISTRIBUTIONS`."""
        if data == "normal" and "int" in dtype:
            return self._all_integers(shape, dtype)
        return self._cast(DISTRIBUTIONS[data](self, shape), dtype)

    def sparse(self, shape: Shape, dtype: str, density: float) -> Any:
        """Return an array of zeros and ones, in which the share of ones is `density`."""
        return self._cast(self.uniform(shape) < density, dtype)

    def indices(self, shape: Shape, bounds: tuple[int, ...], dtype: str = "uint32") -> Any:
        columns = [self._random.integers(0, bound, shape, np.int32) for bound in bounds]
        return np.stack(columns, axis=-1).astype(dtype)

    def integers(self, values: Sequence[int]) -> Any:
        return np.array(values, np.int32)

    def uniform(self, shape: Shape) -> Any:
        return self._random.random(shape, dtype=np.float32)

    def normal(self, shape: Shape) -> Any:
        return self._random.standard_normal(shape, dtype=np.float32)

    def rounded(self, shape: Shape) -> Any:
        """Return the values that bfloat16 has: scores of models that compute in it and hand over float32."""
        return (self.normal(shape).view(np.int32) & -(1 << 16)).view(np.float32)

    def _cast(self, array: Any, dtype: str) -> Any:
        if dtype == "bfloat16":
            return array.astype(importlib.import_module("ml_dtypes").bfloat16)
        return array.astype(dtype, copy=False)

    def _all_integers(self, shape: Shape, dtype: str) -> Any:
        limits = np.iinfo(dtype)
        return self._random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


class TorchSource(NumPySource):
    """Makes torch tensors, on a GPU where the host would need minutes."""

    def __init__(self, device: str) -> None:
        self._torch = importlib.import_module("torch")
        self._device = device
        self._torch.manual_seed(SEED)

    def indices(self, shape: Shape, bounds: tuple[int, ...], dtype: str = "uint32") -> Any:
        # torch barely supports uint32; int32 has the same bytes.
        kind = getattr(self._torch, dtype.replace("uint32", "int32"))
        columns = [self._torch.randint(bound, shape, dtype=kind, device=self._device) for bound in bounds]
        return self._torch.stack(columns, dim=-1)

    def integers(self, values: Sequence[int]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.int32, device=self._device)

    def uniform(self, shape: Shape) -> Any:
        return self._torch.rand(shape, device=self._device)

    def normal(self, shape: Shape) -> Any:
        return self._torch.randn(shape, device=self._device)

    def rounded(self, shape: Shape) -> Any:
        return self.normal(shape).bfloat16().float()

    def _cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self._torch, dtype))

    def _all_integers(self, shape: Shape, dtype: str) -> Any:
        kind = getattr(self._torch, dtype)
        limits = self._torch.iinfo(kind)
        # The exclusive end of the range must be an int64 too.
        end = min(limits.max, 2**63 - 2) + 1
        return self._torch.randint(limits.min, end, shape, dtype=kind, device=self._device)


# From here on, one form serves NumPy and torch.


def _constant(of: NumPySource, shape: Shape) -> Any:
    return of.uniform(shape) * 0 + 1


def _ascending(of: NumPySource, shape: Shape) -> Any:
    return _constant(of, shape).cumsum(-1) - 1


def _with_nan(of: NumPySource, shape: Shape, share: float) -> Any:
    x = of.normal(shape)
    x[of.uniform(shape) < share] = float("nan")
    return x


def _raised(of: NumPySource, shape: Shape, places: slice) -> Any:
    """Return random rows whose elements at some places are much larger than the others."""
    x = of.normal(shape)
    x[..., places] += 10
    return x


def _probabilities(of: NumPySource, shape: Shape) -> Any:
    weights = 2.0 ** (4 * of.normal(shape))
    return weights / weights.sum(-1)[..., None]


def _equal(of: NumPySource, shape: Shape, rows: slice) -> Any:
    """Return random rows, some of which have many equal elements that are the largest."""
    x = of.normal(shape)
    x.reshape(-1, shape[-1])[rows, :: max(1, shape[-1] // EQUAL)] = 10
    return x


DISTRIBUTIONS: dict[str, Callable[[NumPySource, Shape], Any]] = {
    "normal": lambda of, shape: of.normal(shape),
    "ties": lambda of, shape: of.uniform(shape) * DISTINCT // 1,
    "ascending": _ascending,
    "descending": lambda of, shape: -_ascending(of, shape),
    "constant": _constant,
    # The place of one is that of the largest of random elements.
    "one_hot": lambda of, shape: (of.uniform(shape).argsort(-1) == 0) * 1.0,
    "signed_zeros": lambda of, shape: (of.uniform(shape) - 0.5) * 0,
    "mostly_zeros": lambda of, shape: of.normal(shape) * (of.uniform(shape) < 0.03),
    "relu": lambda of, shape: of.normal(shape).clip(0, None),
    "rounded": lambda of, shape: of.rounded(shape),
    "nan": lambda of, shape: _with_nan(of, shape, 0.5),
    "few_nan": lambda of, shape: _with_nan(of, shape, 0.01),
    "probabilities": _probabilities,
    "equal": lambda of, shape: _equal(of, shape, slice(None)),
    "one_equal_row": lambda of, shape: _equal(of, shape, slice(1)),
    # All bits but the last twelve are the same.
    "close": lambda of, shape: 1 + (of.uniform(shape) * (1 << 12) // 1) / (1 << 23),
    "two_scales": lambda of, shape: of.normal(shape) * 10.0 ** (60 * (of.uniform(shape) < 0.5) - 30),
    # Blocks give each thread elements at a distance that is a power of two.
    "periodic": lambda of, shape: _raised(of, shape, slice(None, None, 1024)),
    "clustered": lambda of, shape: _raised(of, shape, slice(-(-shape[-1] // 16))),
}
"""The functions that make float32 elements, or bools, by name. For integers, "normal" means all values."""


def source(device: str) -> NumPySource:
    """Return the source of inputs for a device; raise NotServedError if torch cannot use a GPU."""
    if device == CPU:
        return NumPySource()
    if reason := missing("torch", CUDA):
        not_served(f"the GPU benchmark makes its inputs with torch: {reason}")
    return TorchSource(CUDA)
