"""Run a test's code in several processes that form a torch process group."""

import multiprocessing
import time
import traceback

from tests.inside import PLACES


class Ranks:
    """A process group of `n` processes, with a CPU or a GPU for each."""

    def __init__(self, n, folder, device="cpu"):
        # The modules are imported once, and every process starts as a copy of the one that has done it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["tests.distributed_checks", "torch._dynamo", PLACES["torch_distributed"]]
        )
        pipes = [context.Pipe() for _ in range(n)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, n, folder, device, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()

    def __call__(self, task, *arguments, timeout_s=500):
        """Run a task on all ranks at once; return its result, or an error with its text, by rank."""
        for pipe in self.pipes:
            pipe.send((task, arguments))
        end = time.monotonic() + timeout_s
        return [self._result(rank, max(end - time.monotonic(), 0)) for rank in range(len(self.pipes))]

    def _result(self, rank, timeout_s):
        if not self.pipes[rank].poll(timeout_s):
            return TimeoutError(f"rank {rank} hangs")
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionError):
            self.processes[rank].join()
            return ProcessLookupError(f"rank {rank} has ended with status {self.processes[rank].exitcode}")

    def check(self, task, *arguments):
        """Run a task that must succeed on all ranks."""
        for result in self(task, *arguments):
            if isinstance(result, Exception):
                raise result

    def end(self):
        """End all processes."""
        for process in self.processes:
            process.kill()
            process.join()


def _serve(rank, n, folder, device, pipe):
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=n,
    )
    while True:
        task, arguments = pipe.recv()
        try:
            pipe.send(task(device, *arguments))
        except Exception as error:  # all is reported to the test
            text = "".join(traceback.format_exception(error))
            pipe.send(RuntimeError(f"rank {rank}: {text}"))
