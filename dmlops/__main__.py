"""`python -m dmlops` is the `dmlops` command."""

import sys

from dmlops.cli import main

if __name__ == "__main__":
    sys.exit(main())
