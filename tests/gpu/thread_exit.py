"""A bug of NVIDIA's driver: a thread that ends while its per-thread default stream has work may never end.

Nothing of dmlops takes part: ``python -m tests.gpu.thread_exit`` prints how many processes stopped.
"""

import argparse
import subprocess
import sys
import threading
import time

from cuda.bindings import driver

PER_THREAD_STREAM = 2
N_THREADS = 4
N_REQUESTS = 20
SIZE = 130_048


def checked(result):
    """Return the value of an answer of the driver."""
    status, *values = result
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if values else None


def request(target):
    """Allocate, write, copy and free on the per-thread default stream."""
    memory = checked(driver.cuMemAllocAsync(SIZE, PER_THREAD_STREAM))
    for value in range(6):
        checked(driver.cuMemsetD32Async(memory, value, SIZE // 4, PER_THREAD_STREAM))
    checked(driver.cuMemcpyDtoDAsync(target, memory, SIZE, PER_THREAD_STREAM))
    checked(driver.cuMemFreeAsync(memory, PER_THREAD_STREAM))


def repeat(seconds, waits):
    """Start threads that queue requests, and end; `waits` tells whether each waits for its stream first."""
    checked(driver.cuInit(0))
    context = checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(0))))
    checked(driver.cuCtxSetCurrent(context))
    targets = [int(checked(driver.cuMemAlloc(SIZE))) for _ in range(N_THREADS)]

    def work(target):
        checked(driver.cuCtxSetCurrent(context))
        for _ in range(N_REQUESTS):
            request(target)
        if waits:
            checked(driver.cuStreamSynchronize(PER_THREAD_STREAM))

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        threads = [threading.Thread(target=work, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checked(driver.cuCtxSynchronize())


def count_stopped(n_processes, seconds, waits):
    """Return how many of the processes did not end."""
    code = f"from tests.gpu.thread_exit import repeat; repeat({seconds}, {waits})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n_processes)]
    end = time.monotonic() + 2 * seconds + 10
    n_stopped = 0
    for process in processes:
        try:
            status = process.wait(max(0.1, end - time.monotonic()))
            assert status == 0, f"exit status {status}"
        except subprocess.TimeoutExpired:
            process.kill()
            n_stopped += 1
    return n_stopped


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6)
    asked = parser.parse_args()
    for waits in (False, True):
        n_stopped = count_stopped(asked.processes, asked.seconds, waits)
        how = "threads that wait for their stream" if waits else "threads that do not wait"
        print(f"{how}: {n_stopped} of {asked.processes} processes stopped")
