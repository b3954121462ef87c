"""Compare dmlops with other libraries: `python -m bench`, in a clone of the repository.

A table of workloads and a table of peers serve the commands, the pytest-benchmark suites and the tests. What
is not installed is left out.
"""
