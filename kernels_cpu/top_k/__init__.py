"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from kernels_cpu.top_k.planning import all_kernels, plan

__all__ = ["all_kernels", "plan"]
