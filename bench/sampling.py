"""The suite `sampling`: one token per row of logits, as engines draw them."""

from collections.abc import Iterator

from bench.workloads import CPU, Sample, Workload

_REASON = "the next token of each request"
_VOCABULARY = 128256
# k, and top_p; 0 and 1.0 stand for all elements.
_FILTERS = ((0, 1.0), (50, 0.9), (0, 0.9))


def sampling(device: str) -> Iterator[Workload]:
    """Yield the problems of a device, in the order in which they are measured."""
    for rows in (1, 16) if device == CPU else (1, 16, 256):
        for dtype in ("float32", "bfloat16"):
            for k, top_p in _FILTERS:
                name = f"sample {rows} x {_VOCABULARY} {dtype}, k {k or 'all'}, top_p {top_p}"
                yield Sample(
                    name=name,
                    reason=_REASON,
                    device=device,
                    shape=(rows, _VOCABULARY),
                    dtype=dtype,
                    k=k,
                    top_p=top_p,
                    quick=rows == 1,
                )
