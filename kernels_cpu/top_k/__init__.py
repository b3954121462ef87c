"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from kernels_cpu.top_k.planning import Plan, kernels, plan

__all__ = ["Plan", "kernels", "plan"]
