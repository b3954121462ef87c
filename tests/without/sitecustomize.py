"""Makes the packages that ``DMLOPS_WITHOUT`` names look as if they were not installed.

With this folder on ``PYTHONPATH`` that holds for a process and for those that it starts:
``PYTHONPATH=tests/without DMLOPS_WITHOUT="numba_cuda numba.cuda" python -m pytest tests/gpu``.
"""

import os
import sys

for name in os.environ.get("DMLOPS_WITHOUT", "").split():
    sys.modules[name] = None
