"""`python -m bench`."""

import sys

from bench.commands.app import main

sys.exit(main())
