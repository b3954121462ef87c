"""Make the packages in ``DMLOPS_WITHOUT`` look as if they were not installed.

With this folder on ``PYTHONPATH``, this applies to a process and to those that it starts:
``PYTHONPATH=tests/without DMLOPS_WITHOUT="numba_cuda numba.cuda" python -m pytest tests/gpu``.
"""

import os
import sys

for name in os.environ.get("DMLOPS_WITHOUT", "").split():
    sys.modules[name] = None
