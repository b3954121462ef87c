"""nonzero_coordinates and its peers: `pytest bench/nonzero_coordinates.py`."""


def bench_nonzero_coordinates(timed):
    timed()
