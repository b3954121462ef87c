"""diagonal_matrix and its peers: `pytest bench/diagonal_matrix.py`."""


def bench_diagonal_matrix(timed):
    timed()
