"""The number of GPUs."""

import functools
import importlib


@functools.cache
def n_devices():
    """Return how many CUDA devices the driver shows; 0 without the packages or a driver."""
    try:
        return len(importlib.import_module("cuda.core").Device.get_all_devices())
    except Exception:  # every way in which a driver can be missing
        return 0
