"""Deliberate defects, and the tool that counts how many of them the tests notice.

Each `*.toml` file of this folder lists defects of one part of the project: a text of one file, what
takes its place, and the tests that were written to see the difference.
"""
