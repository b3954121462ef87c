"""What must happen once torch's compiler sees a call: it runs this module when it first imports it.

The compiler traces functions, but lets the import of a module run.
"""

from dmlops.torch_operators import hide_from_compiler

hide_from_compiler()
