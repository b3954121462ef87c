"""The benchmark that users run to see it on their own machine: one table of workloads, one of peers.

`dmlops bench` and the pytest-benchmark suites in the repository's bench/ both drive it. It imports the
libraries it compares with, where they are installed, and nothing of dmlops imports it but its command.
"""
