"""Record which functions a process of a test runs, for `tests.reached`; Python imports this at its start."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
FOLDER = os.environ.get("MUTATE_CHILDREN")


def note_start(code, offset):
    """Write down that a function of the product begins; the process may end at any moment."""
    if code.co_filename.startswith(ROOT):
        line = f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno}\n"
        file = os.open(os.path.join(FOLDER, str(os.getpid())), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
    return sys.monitoring.DISABLE


if FOLDER:
    sys.monitoring.use_tool_id(4, "reached")
    sys.monitoring.register_callback(4, sys.monitoring.events.PY_START, note_start)
    sys.monitoring.set_events(4, sys.monitoring.events.PY_START)
