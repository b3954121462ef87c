"""Each workload with each contender, as pytest-benchmark times them: `pytest bench -k "top_k and small"`."""


def bench_workload(timed):
    timed()
