"""Tests that need an NVIDIA GPU; see `tests.conftest` for when they are collected."""
