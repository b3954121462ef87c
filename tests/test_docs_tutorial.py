"""The tutorial, and the blocks of other pages that need no library but torch."""

import re
import shlex

import pytest

import dmlops
from tests.command_line import end_of, start_command
from tests.scripts import blocks, run_page

# `dmlops demo` has a test of its own; `python -m bench run` takes half a minute.
COMMANDS_RUN = {"info", "top-k"}


def test_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, ran = {}, set()
    for language, code in blocks("docs/tutorial.md"):
        if language == "python":
            exec(code, names)
        elif language == "text":
            printed = capsys.readouterr().out
            # As the page says, times differ.
            assert re.sub(r"[\d.]+", "0", printed) == re.sub(r"[\d.]+", "0", code)
        for command in code.splitlines() if language == "bash" else []:
            program, *arguments = shlex.split(command)
            if program == "dmlops" and arguments[0] in COMMANDS_RUN:
                assert end_of(start_command(*arguments, folder=tmp_path)) == (0, "")
                ran.add(arguments[0])
    assert ran == COMMANDS_RUN


def test_readme():
    pytest.importorskip("torch")
    run_page("README.md", dmlops=dmlops)
