"""The blocks of the documentation that need a GPU."""

import logging

import pytest

pytest.importorskip("torch")
from tests.scripts import run_page


def test_devices():
    logger = logging.getLogger("dmlops")
    level = logger.level
    try:
        run_page("docs/devices.md")
    finally:
        logger.setLevel(level)
