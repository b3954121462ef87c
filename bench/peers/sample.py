"""The contenders of sample, whose tokens depend on the batch."""

from typing import Any

from bench import libraries
from bench.libraries import to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA


def _draw(torch: Any, weights: Any, top_p: float) -> Any:
    """Draw from weights in descending order, only from the first ones, whose share of the sum is `top_p`."""
    if top_p < 1:
        weights = torch.where(weights.cumsum(-1) - weights < top_p, weights, 0)
    return torch.multinomial(weights, 1)


@contender("torch.multinomial", "sample", (CPU, CUDA), "after softmax, topk or sort, and cumsum; new outputs")
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(task.x)
    k, top_p = task.workload.k, task.workload.top_p

    def draw() -> Any:
        if not k and top_p == 1:
            return _draw(torch, torch.softmax(x.float(), -1), top_p)
        ordered = torch.topk(x, k) if k else torch.sort(x, descending=True)
        place = _draw(torch, torch.softmax(ordered[0].float(), -1), top_p)
        return ordered[1].gather(-1, place)

    return draw


@contender("flashinfer.sampling", "sample", (CUDA,), "int32; with the softmax that it needs; new outputs")
def _(task: Task) -> Call:
    torch, flashinfer = libraries.module("torch"), libraries.module("flashinfer")
    x, k, top_p = to_torch(task.x), task.workload.k, task.workload.top_p
    sampling = flashinfer.sampling

    def draw() -> Any:
        if not k and top_p == 1:
            return sampling.sampling_from_logits(x)
        probabilities = torch.softmax(x, -1, dtype=torch.float32)
        if k:
            return sampling.top_k_top_p_sampling_from_probs(probabilities, k, top_p)
        return sampling.top_p_sampling_from_probs(probabilities, top_p)

    return draw


@contender("vllm.sample", "sample", (CUDA,), "int64; its native sampler, with the softmax; new outputs")
def _(task: Task) -> Call:
    torch, sampler = libraries.module("torch"), libraries.module("vllm.v1.sample.ops.topk_topp_sampler")
    x, k, top_p = to_torch(task.x), task.workload.k, task.workload.top_p
    rows = x.shape[0]
    counts = torch.full((rows,), k, device=x.device) if k else None
    shares = torch.full((rows,), top_p, device=x.device) if top_p < 1 else None

    def draw() -> Any:
        # The filter writes to the logits, and takes float32.
        kept = sampler.apply_top_k_top_p(x.to(torch.float32, copy=True), counts, shares)
        return sampler.random_sample(torch.softmax(kept, -1, dtype=torch.float32), {})

    return draw
