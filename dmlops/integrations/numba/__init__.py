"""The functions inside users' `numba.njit` functions.

Numba imports this module, by the entry point of its extensions, before it first compiles in a program that
has imported dmlops. It compiles an implementation here for each of its callers. They are short: they allocate
the results, and describe the call to native code (`kernels_cpu.nopython_call`) or to `calls`.
"""

from importlib import import_module

from dmlops.functions import SPECS

for name in SPECS:
    import_module(f"{__name__}.{name}")
