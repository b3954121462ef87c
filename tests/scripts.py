"""Runs Python code in separate processes, and the code blocks of documentation pages."""

import os
import re
import runpy
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 500


def blocks(page):
    """Return the language and the code of each block of a page of the documentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(code)) for _, language, code in found]


def plain_blocks(page):
    """Return the blocks of Python that are no sessions of an interpreter, with ``>>>``."""
    return [code for language, code in blocks(page) if language == "python" and not code.startswith(">>>")]


def run_page(page, **names):
    """Run the blocks of plain Python of a page, one after the other; `names` are what they may use."""
    codes = plain_blocks(page)
    assert codes, page
    exec("\n".join(codes), names)


def run_main(module, *arguments):
    """Do what ``python -m MODULE ARGUMENTS`` does, in this process; return the exit code."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        with mock.patch.object(sys, "argv", [module, *map(str, arguments)]):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    finally:
        signal.signal(signal.SIGINT, handler)
    return 0


def run_script(*codes, errors=False, **environment):
    """Run pieces of code in a new interpreter that can import this checkout; return what it printed.

    With `errors`, what it printed on standard error is returned too. A process that fails, hangs or crashes
    fails the test with its output.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(map(textwrap.dedent, codes))],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return (result.stdout, result.stderr) if errors else result.stdout
