"""Deliberate defects, and the tool that counts how many of them the tests detect.

Each `*.toml` file in this folder lists the defects of one part of the project: a text in a file, its
replacement, and the tests that should detect the difference.
"""
