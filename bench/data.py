"""Input data by the name of its distribution, made by NumPy on the host and by torch on a GPU."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.libraries import NotServedError, empty, missing
from bench.workloads import CPU, CUDA

SEED = 2026
DISTINCT = 16
EQUAL = 131  # equal elements in a row: more than a warp or a small buffer holds
CODES = 256
LAYOUTS = ("contiguous", "strided", "transposed")
TILE = 1 << 20


class NumPySource:
    """Makes NumPy arrays."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)

    def make(self, data: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an array of a named distribution; for integers, `normal` means all values."""
        if data == "normal" and "int" in dtype:
            return self._all_integers(shape, dtype)
        return self._cast(getattr(self, f"_{data}")(shape), dtype)

    def sparse(self, shape: tuple[int, ...], dtype: str, density: float) -> Any:
        """Return an array of zeros and ones, in which the share of ones is `density`."""
        return self._cast(self._uniform(shape) < density, dtype)

    def indices(self, shape: tuple[int, ...], bounds: tuple[int, ...], dtype: str = "uint32") -> Any:
        """Return random index tuples below `bounds`."""
        columns = [self._random.integers(0, bound, shape, np.int32) for bound in bounds]
        return np.stack(columns, axis=-1).astype(dtype)

    def integers(self, values: Sequence[int]) -> Any:
        """Return an array of 32-bit integers."""
        return np.array(values, np.int32)

    def copy(self, array: Any) -> Any:
        """Return the same elements at another address."""
        return array.copy()

    def laid_out(self, array: Any, layout: str) -> Any:
        """Return the same elements in another layout: with gaps between elements, or transposed."""
        if layout == "contiguous":
            return array
        *leading, height, width = array.shape if array.ndim > 1 else (1, *array.shape)
        if layout == "strided":
            view = empty(array, (*leading, height, 2 * width))[..., ::2]
        else:
            view = empty(array, (*leading, width, height)).swapaxes(-1, -2)
        view = view if array.ndim > 1 else view[0]
        view[...] = array
        return view

    def _cast(self, array: Any, dtype: str) -> Any:
        if dtype == "bfloat16":
            return array.astype(importlib.import_module("ml_dtypes").bfloat16)
        return array.astype(dtype, copy=False)

    def _all_integers(self, shape: tuple[int, ...], dtype: str) -> Any:
        limits = np.iinfo(dtype)
        return self._random.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    def _uniform(self, shape: tuple[int, ...]) -> Any:
        return self._random.random(shape, dtype=np.float32)

    def _normal(self, shape: tuple[int, ...]) -> Any:
        return self._random.standard_normal(shape, dtype=np.float32)

    def _tiled(self, shape: tuple[int, ...]) -> Any:
        # A repeated tile takes a quarter of the time, for operators whose time does not depend on the values.
        return np.resize(self._normal((TILE,)), shape)

    def _bits(self, x: Any) -> Any:
        return x.view(np.int32)

    def _from_bits(self, bits: Any) -> Any:
        return bits.view(np.float32)

    # From here on, one form serves NumPy and torch.

    def _ties(self, shape: tuple[int, ...]) -> Any:
        return self._uniform(shape) * DISTINCT // 1

    def _ascending(self, shape: tuple[int, ...]) -> Any:
        return self._constant(shape).cumsum(-1) - 1

    def _descending(self, shape: tuple[int, ...]) -> Any:
        return -self._ascending(shape)

    def _constant(self, shape: tuple[int, ...]) -> Any:
        return self._uniform(shape) * 0 + 1

    def _one_hot(self, shape: tuple[int, ...]) -> Any:
        # The place of one is that of the largest of random elements.
        return (self._uniform(shape).argsort(-1) == 0) * 1.0

    def _two_valued(self, shape: tuple[int, ...]) -> Any:
        return self._uniform(shape) < 0.5

    def _signed_zeros(self, shape: tuple[int, ...]) -> Any:
        return (self._uniform(shape) - 0.5) * 0

    def _all_nan(self, shape: tuple[int, ...]) -> Any:
        return self._constant(shape) * float("nan")

    def _relu(self, shape: tuple[int, ...]) -> Any:
        return self._normal(shape).clip(0, None)

    def _nan(self, shape: tuple[int, ...]) -> Any:
        x = self._normal(shape)
        x[self._uniform(shape) < 0.5] = float("nan")
        return x

    def _rounded(self, shape: tuple[int, ...]) -> Any:
        # The values that bfloat16 has: scores of models that compute in it and hand over float32.
        x = self._normal(shape)
        return self._from_bits(self._bits(x) & -(1 << 16))

    def _codes(self, shape: tuple[int, ...]) -> Any:
        return self._uniform(shape) * CODES // 1

    def _clamped(self, shape: tuple[int, ...]) -> Any:
        return self._normal(shape).clip(-1, 1)

    def _mostly_zeros(self, shape: tuple[int, ...]) -> Any:
        return self._normal(shape) * (self._uniform(shape) < 0.03)

    def _few_nan(self, shape: tuple[int, ...]) -> Any:
        x = self._normal(shape)
        x[self._uniform(shape) < 0.01] = float("nan")
        return x

    def _narrow(self, shape: tuple[int, ...]) -> Any:
        return 1 + self._uniform(shape) / 1024

    def _probabilities(self, shape: tuple[int, ...]) -> Any:
        weights = 2.0 ** (4 * self._normal(shape))
        return weights / weights.sum(-1)[..., None]

    def _equal(self, shape: tuple[int, ...]) -> Any:
        x = self._normal(shape)
        x[..., :: max(1, shape[-1] // EQUAL)] = 10
        return x

    def _one_equal_row(self, shape: tuple[int, ...]) -> Any:
        x = self._normal(shape)
        x.reshape(-1, shape[-1])[0, :: max(1, shape[-1] // EQUAL)] = 10
        return x

    def _close(self, shape: tuple[int, ...]) -> Any:
        # All bits but the last twelve are the same.
        return 1 + (self._uniform(shape) * (1 << 12) // 1) / (1 << 23)

    def _two_scales(self, shape: tuple[int, ...]) -> Any:
        return self._normal(shape) * 10.0 ** (60 * (self._uniform(shape) < 0.5) - 30)

    def _periodic(self, shape: tuple[int, ...]) -> Any:
        # Blocks give each thread elements at a distance that is a power of two.
        x = self._normal(shape)
        x[..., ::1024] += 10
        return x

    def _clustered(self, shape: tuple[int, ...]) -> Any:
        x = self._normal(shape)
        x[..., : -(-shape[-1] // 16)] += 10
        return x


class TorchSource(NumPySource):
    """Makes torch tensors, on a GPU where the host would need minutes."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._torch = importlib.import_module("torch")
        self._torch.manual_seed(SEED)

    def indices(self, shape: tuple[int, ...], bounds: tuple[int, ...], dtype: str = "uint32") -> Any:
        """Return random index tuples below `bounds`; int32 replaces uint32, which torch barely supports."""
        kind = getattr(self._torch, dtype.replace("uint32", "int32"))
        integers = {"dtype": kind, "device": self._device}
        return self._torch.stack([self._torch.randint(bound, shape, **integers) for bound in bounds], dim=-1)

    def integers(self, values: Sequence[int]) -> Any:
        """Return an array of 32-bit integers."""
        return self._torch.tensor(values, dtype=self._torch.int32, device=self._device)

    def copy(self, array: Any) -> Any:
        """Return the same elements at another address."""
        return array.clone()

    def _cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self._torch, dtype))

    def _all_integers(self, shape: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(self._torch, dtype)
        limits = self._torch.iinfo(kind)
        # The exclusive end of the range must be an int64 too.
        end = min(limits.max, 2**63 - 2) + 1
        return self._torch.randint(limits.min, end, shape, dtype=kind, device=self._device)

    def _uniform(self, shape: tuple[int, ...]) -> Any:
        return self._torch.rand(shape, device=self._device)

    def _normal(self, shape: tuple[int, ...]) -> Any:
        return self._torch.randn(shape, device=self._device)

    def _tiled(self, shape: tuple[int, ...]) -> Any:
        return self._normal(shape)

    def _bits(self, x: Any) -> Any:
        return x.view(self._torch.int32)

    def _from_bits(self, bits: Any) -> Any:
        return bits.view(self._torch.float32)


def source(device: str) -> NumPySource:
    """Return the source of inputs for a device.

    Raises
    ------
    NotServedError
        If torch cannot use a GPU.
    """
    if device == CPU:
        return NumPySource()
    if reason := missing("torch", CUDA):
        message = f"the GPU benchmark makes its inputs with torch: {reason}"
        raise NotServedError(message)
    return TorchSource(CUDA)
