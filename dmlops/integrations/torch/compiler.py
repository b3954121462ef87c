"""Set-up for torch's compiler, which runs when the compiler first meets a call.

The compiler traces functions, but it executes the import of a module.
"""

from dmlops.integrations.torch import functions
from dmlops.integrations.torch.operators.registration import hide_from_compiler

__all__ = ["functions"]

hide_from_compiler()
