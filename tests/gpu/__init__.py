"""Tests that need an NVIDIA GPU; see `tests.conftest` for when they are collected.

They share one device: run them in one process (``pytest -n 0 tests/gpu``) where its memory is scarce.
"""
