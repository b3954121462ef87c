"""What tests need from below the public names of the project; no other file of the tests says where it is.

Tests state what users can see, through public names. Those of compiled code, plans, caches of calls and the
archive's format must look inside; a file of the project that moves changes one line here. A name is imported
when a test asks for it: `import dmlops` alone must not import most of them, and some need optional packages.
"""

import importlib

PLACES = {
    # Calls: kinds, bound calls, operators and their options.
    "CALLS": "dmlops.calls.call_cache:CALLS",
    "KINDS": "dmlops.calls.kinds:KINDS",
    "BoundCall": "dmlops.calls.call:BoundCall",
    "dispatch": "dmlops.calls.dispatch",
    "OPERATORS": "dmlops.calls.dispatch:OPERATORS",
    "Options": "dmlops.operators:Options",
    "detect": "dmlops.array_libraries.detect",
    "CudaArrayInterface": "dmlops.array_libraries.cuda_array_interface:CudaArrayInterface",
    # The device's words of a call of `sample`.
    "split": "dmlops.functions.sample:split",
    "sums_of_shard": "dmlops.functions.sample:sums_of_shard",
    "targets_in_shard": "dmlops.functions.sample:targets_in_shard",
    "tokens_of_shard": "dmlops.functions.sample:tokens_of_shard",
    "PARAMETERS": "dmlops.operators.sample:PARAMETERS",
    "SampleCall": "dmlops.operators.sample:SampleCall",
    "sample_problem": "dmlops.operators.sample:sample_problem",
    "data_type_of_numpy": "dmlops.types.data_types:data_type_of_numpy",
    # Devices.
    "backend": "dmlops.devices.backend",
    "cpu": "dmlops.devices.cpu",
    "cuda": "dmlops.devices.cuda",
    "cuda_driver": "dmlops.devices.cuda_driver",
    "CPU": "dmlops.devices.memory:CPU",
    "Device": "dmlops.devices.memory:Device",
    # Compiled kernels in files.
    "compilers": "dmlops.store.compilers",
    "kernel_archive": "dmlops.store.kernel_archive",
    "Archive": "dmlops.store.kernel_archive:Archive",
    "ArchiveError": "dmlops.store.kernel_archive:ArchiveError",
    "Origin": "dmlops.store.kernel_archive:Origin",
    "packed": "dmlops.store.kernel_archive:packed",
    "write": "dmlops.store.kernel_archive:write",
    "kernel_cache": "dmlops.store.kernel_cache",
    "Key": "dmlops.store.kernel_cache:Key",
    "clear": "dmlops.store.kernel_cache:clear",
    "keep": "dmlops.store.kernel_cache:keep",
    "read": "dmlops.store.kernel_cache:read",
    "kernel_store": "dmlops.store.kernel_store",
    "find_in_wheel": "dmlops.store.kernel_store:find_in_wheel",
    "once": "dmlops.store.once",
    "precompile": "dmlops.store.precompile",
    # The command line.
    "demo": "dmlops.cli.demo",
    "placement": "dmlops.cli.placement",
    "warmup": "dmlops.cli.warmup",
    # Integrations: DTensors, handlers that XLA calls, and what callers in compiled functions contain.
    "torch_distributed": "dmlops.integrations.torch.distributed",
    "sharded_sample": "dmlops.integrations.torch.distributed.sample",
    "njit_building": "dmlops.integrations.numba.building",
    "xla_calls": "dmlops.integrations.jax.xla_calls",
    "xla_ffi": "dmlops.integrations.jax.xla_ffi",
    # Kernels of the CPU: their compiler, and the calls that native code makes.
    "compile_kernel": "kernels_cpu.compiler:compile_kernel",
    "jit": "kernels_cpu.jit",
    "linking": "kernels_cpu.linking",
    "link": "kernels_cpu.linking:link",
    "INTEGERS": "kernels_cpu.kernel:INTEGERS",
    "Kernel": "kernels_cpu.kernel:Kernel",
    "Table": "kernels_cpu.kernel:Table",
    "native_call": "kernels_cpu.native_call",
    "nopython_call": "kernels_cpu.nopython_call",
    "call_words": "kernels_cpu.call_words",
    "processor": "kernels_cpu.processor",
    "threads": "kernels_cpu.threads",
    "top_k_table": "kernels_cpu.top_k.table",
    "exact_sampling": "kernels_cpu.exact.sampling",
    # Problems and plans.
    "plan_words": "kernels_cpu.plan_words",
    "plan_compiler": "kernels_cpu.plan_compiler",
    "problems": "kernels_cpu.problems",
    "DiagonalProblem": "kernels_cpu.problems:DiagonalProblem",
    "GatherProblem": "kernels_cpu.problems:GatherProblem",
    "KeyMasks": "kernels_cpu.problems:KeyMasks",
    "NonzeroProblem": "kernels_cpu.problems:NonzeroProblem",
    "SampleProblem": "kernels_cpu.problems:SampleProblem",
    "TopKProblem": "kernels_cpu.problems:TopKProblem",
    # Kernels of CUDA: targets, launches, the compiler, and the algorithms of top_k.
    "variant": "kernels_cuda.runtime.variant",
    "Target": "kernels_cuda.runtime.variant:Target",
    "launch": "kernels_cuda.runtime.launch",
    "compiler": "kernels_cuda.runtime.compiler",
    "ptx": "kernels_cuda.ptx",
    "cuda_package": "kernels_cuda",
    "device_words": "kernels_cuda.device_words",
    "top_k_dispatch": "kernels_cuda.top_k.dispatch",
    "key_formats": "kernels_cuda.top_k.key_formats",
    "top_k_plan": "kernels_cuda.top_k.plan",
    "top_k_policy": "kernels_cuda.top_k.policy",
    "top_k_variants": "kernels_cuda.top_k.variants",
    "block_launches": "kernels_cuda.top_k.read_once.block_launches",
    "sampled_launches": "kernels_cuda.top_k.read_once.sampled_launches",
    "cluster_launches": "kernels_cuda.top_k.many_blocks.cluster_launches",
    "partition_launches": "kernels_cuda.top_k.rows_in_blocks.partition_launches",
    "rounds_launches": "kernels_cuda.top_k.short_rows.rounds_launches",
    "launches": "kernels_cuda.top_k.shared.launches",
    "order_launches": "kernels_cuda.top_k.shared.order_launches",
    "shapes": "kernels_cuda.top_k.shared.shapes",
    "layout": "kernels_cuda.layout",
}


def __getattr__(name):
    """Import what a name stands for."""
    if name not in PLACES:
        message = f"tests.inside has no {name!r}: add where it is to PLACES"
        raise AttributeError(message)
    module, _, attribute = PLACES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def cpu_kernels(operator, part=""):
    """Return the package of an operator's kernels for the CPU, or a module in it."""
    return importlib.import_module(f"kernels_cpu.{operator}{part and '.'}{part}")


def cuda_kernels(operator, part=""):
    """Return the package of an operator's kernels for CUDA, or a module in it."""
    return importlib.import_module(f"kernels_cuda.{operator}{part and '.'}{part}")
