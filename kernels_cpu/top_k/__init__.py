"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from kernels_cpu.top_k.planning import Plan, all_kernels, plan

__all__ = ["Plan", "all_kernels", "plan"]
