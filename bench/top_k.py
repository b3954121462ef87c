"""top_k and its peers: `pytest bench/top_k.py`."""


def bench_top_k(timed):
    timed()
