"""gather_nd and its peers: `pytest bench/gather_nd.py`."""


def bench_gather_nd(timed):
    timed()
