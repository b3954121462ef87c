"""Bugs that users reported against other libraries, and that these operators could have had as well.

The docstring of each test links to the report. Classes whose tests take `library` run on GPU arrays too: see
`tests/gpu/test_peer_bugs_gpu.py`.
"""
