"""Bugs that users reported against other libraries, and that these operators could have had as well.

`reports` has a table of them, with links. Tests that take `library` run on GPU arrays too: see
`tests/gpu/test_peer_bugs_gpu.py`.
"""
