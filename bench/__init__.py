"""Compare dmlops with other libraries: `python -m bench`, in a clone of the repository.

Suites of workloads and a table of peers serve the commands and the tests. What is not installed is left out.
"""
