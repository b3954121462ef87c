"""dmlops inside other frameworks: `torch`, `jax`, `onnx` and `dask`, each an optional extra.

Import the module that you need, as in ``import dmlops.integrations.torch``. None is imported otherwise.
"""
