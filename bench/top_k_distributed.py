"""Measure top-k of a tensor sharded over GPUs: the time by the number of GPUs, and the bytes sent.

``python bench/top_k_distributed.py [--json FILE]`` starts one process per GPU, for each number of GPUs in
turn. Every answer is compared with that of one GPU, bit for bit. Times are medians of the slowest GPU: of
calls as a program makes them, and of replays of a CUDA graph of one call, which leave out the host. The peer
is what torch users write without dmlops: they gather the shards and call torch.topk.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import dmlops

WORKLOADS = {
    "logits 256 x 262144, k 50": ((256, 262_144), 50),
    "logits 8 x 262144, k 50": ((8, 262_144), 50),
    "retrieval 400M, k 100": ((400_000_000,), 100),
}
DEVICE, BACKEND = "cuda", "nccl"
ROUNDS = 40
COLUMNS = (
    "workload",
    "GPUs",
    "eager us",
    "graph us",
    "speed-up",
    "sent KB",
    "peer us",
    "same",
)


def measure(call: Callable[[], Any]) -> float:
    """Return the median time of a call in microseconds, on this GPU."""
    for _ in range(3):
        call()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def measure_graph(call: Callable[[], Any]) -> float:
    """Return the median time of replays of a CUDA graph of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return measure(graph.replay)


def slowest(microseconds: float) -> float:
    """Return the largest of all ranks' times."""
    time = torch.tensor(microseconds, device=DEVICE)
    dist.all_reduce(time, dist.ReduceOp.MAX)
    return float(time)


def run(rank: int, n_gpus: int, port: int, path: str) -> None:
    """Measure all workloads in one process of `n_gpus`; the first one writes the rows."""
    torch.get_device_module(DEVICE).set_device(rank)
    dist.init_process_group(BACKEND, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n_gpus)
    mesh = init_device_mesh(DEVICE, (n_gpus,))
    rows = []
    for name, (shape, k) in WORKLOADS.items():
        generator = torch.Generator(DEVICE).manual_seed(7)
        # Rounded, so that there are ties.
        whole = torch.randn(shape, generator=generator, device=DEVICE).mul_(1000).round_()
        expected = dmlops.top_k(whole, k)
        placement = Shard(len(shape) - 1)
        x = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
        del whole
        actual = dmlops.top_k(x, k)
        same = all(a.to_local().equal(b) for a, b in zip(actual, expected, strict=True))

        def peer(x: DTensor = x, k: int = k) -> Any:
            return torch.topk(x.redistribute(placements=[Replicate()]).to_local(), k)

        row = {
            "workload": name,
            "GPUs": n_gpus,
            "eager us": slowest(measure(lambda x=x, k=k: dmlops.top_k(x, k))),
            "graph us": slowest(measure_graph(lambda x=x, k=k: dmlops.top_k(x, k))),
            "sent KB": (n_gpus > 1) * x.shape[:-1].numel() * k * (x.element_size() + 8) / 1e3,
            "peer us": slowest(measure(peer)),
            "same": same,
        }
        rows.append(row)
    if rank == 0:
        Path(path).write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    """Measure on 1, 2, 4, ... GPUs, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--gpus", type=int, nargs="*", help="numbers of GPUs; all powers of 2 that there are")
    arguments = parser.parse_args()
    n_devices = torch.cuda.device_count()
    numbers = arguments.gpus or [n for n in (1, 2, 4, 8) if n <= n_devices]
    if not numbers or max(numbers) > n_devices:
        sys.exit(f"{n_devices} GPUs are here")
    # Hosts that share their GPUs may refuse multicast.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    rows = []
    for n_gpus in numbers:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            path = str(Path(folder) / "rows.json")
            torch.multiprocessing.spawn(run, (n_gpus, port, path), n_gpus)
            rows += json.loads(Path(path).read_text(encoding="utf-8"))
    single = {row["workload"]: row["graph us"] for row in rows if row["GPUs"] == 1}
    print(torch.cuda.get_device_name(0), "torch", torch.__version__)
    print(" | ".join(COLUMNS))
    for row in rows:
        row["speed-up"] = single.get(row["workload"], float("nan")) / row["graph us"]
        print(" | ".join(f"{row[c]:.2f}" if type(row[c]) is float else str(row[c]) for c in COLUMNS))
    if arguments.json:
        command = " ".join(["python bench/top_k_distributed.py", *sys.argv[1:]])
        result = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "command": command}
        arguments.json.write_text(json.dumps(result | {"rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
