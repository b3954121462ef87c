"""How kernels are compiled, loaded and launched: the one place that touches the insides of numba-cuda."""
