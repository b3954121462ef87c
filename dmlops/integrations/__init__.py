"""dmlops inside other frameworks: `torch`, `jax`, `onnx` and `dask`, each an optional extra.

Import the one that is wanted, as in ``import dmlops.integrations.torch``; none is imported otherwise.
"""
