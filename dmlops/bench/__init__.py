"""The benchmark that users run on their own machine: a table of workloads and a table of peers.

`dmlops bench` and the pytest-benchmark suites in the repository's bench/ both use it. It imports the
libraries that it compares with if they are installed. Within dmlops, only the command line imports it.
"""
