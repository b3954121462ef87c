"""`python -m bench`."""

import sys

from bench.commands import app
from dmlops.cli import ending

sys.exit(ending.run(lambda: int(app(prog_name="python -m bench", standalone_mode=False) or 0)))
