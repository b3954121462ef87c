"""The build hook of wheels: `DMLOPS_BUILD_KERNELS` names what they bring compiled kernels for.

=========================  ==================================================================================
``DMLOPS_BUILD_KERNELS``   targets, separated by spaces, or ``all`` that this machine compiles for; without it
                           the wheel brings none, and runs anywhere
``DMLOPS_BUILD_JOBS``      number of compiling processes; by default one per core
``DMLOPS_BUILD_OPERATOR``  the only operator whose kernels are compiled: for tests, which cannot wait for all
=========================  ==================================================================================
"""

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CUDA_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "compute_100")
CPU_TARGETS = {"x86_64": ("x86-64-v3", "x86-64-v4"), "aarch64": ("aarch64",)}
# CUDA 12 makes cubins for drivers of CUDA 12 and later.
CUDA_COMPILERS = "cuda12-jit"


class KernelsHook(BuildHookInterface[Any]):
    """Compiles the kernels in a process of its own, and puts their archives into the wheel."""

    def dependencies(self) -> list[str]:
        """Return what must be installed to compile the kernels."""
        targets = self._targets()
        needed = list(self.metadata.core.dependencies) if targets else []
        if set(targets) & set(CUDA_TARGETS):
            needed += self.metadata.core.optional_dependencies[CUDA_COMPILERS]
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the archives to the wheel, and the tag of the platform that they are for."""
        targets = self._targets()
        if version == "editable":
            return
        if not targets:
            self.app.display_info(
                "This wheel brings no compiled kernels: the first call of an operator and type compiles for"
                " some seconds, and needs the extra cuda-jit on a GPU. DMLOPS_BUILD_KERNELS=all brings those"
                f" for this platform ({', '.join(self._possible())}); docs/kernels.md says more."
            )
            return
        # Deleted when the build ends, in whichever way.
        self._folder = tempfile.TemporaryDirectory(prefix="dmlops-kernels-")
        self._compile(targets, Path(self._folder.name))
        for target in targets:
            archive = f"{target}.kernels"
            build_data["force_include"][f"{self._folder.name}/{archive}"] = f"dmlops/kernels/{archive}"
        if set(targets) - set(CUDA_TARGETS):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"

    def _possible(self) -> tuple[str, ...]:
        own = CPU_TARGETS.get(machine(), ())
        # NVIDIA's compilers exist for Linux and Windows.
        return own if sys.platform == "darwin" else (*CUDA_TARGETS, *own)

    def _targets(self) -> list[str]:
        names = os.environ.get("DMLOPS_BUILD_KERNELS", "").split()
        possible = self._possible()
        if names == ["all"]:
            return list(possible)
        for name in names:
            if name not in possible:
                known = name in CUDA_TARGETS or any(name in each for each in CPU_TARGETS.values())
                reason = "this machine does not compile for it" if known else "no such target"
                self.app.abort(
                    f"DMLOPS_BUILD_KERNELS: {name}: {reason}; it must be all, or some of {' '.join(possible)}"
                )
        return sorted(set(names), key=possible.index)

    def _compile(self, targets: list[str], folder: Path) -> None:
        # Settings of the user's would make other kernels; these are about the cache and the folders alone.
        kept = ("DMLOPS_CACHE", "DMLOPS_CACHE_DIR")
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in kept or not name.startswith(("DMLOPS_", "NUMBA_"))
        }
        command = [sys.executable, f"{self.root}/build_kernels.py", *targets, "--folder", str(folder)]
        if jobs := os.environ.get("DMLOPS_BUILD_JOBS"):
            command += ["--jobs", jobs]
        if operator := os.environ.get("DMLOPS_BUILD_OPERATOR"):
            command += ["--operator", operator]
        if subprocess.run(command, env=environment, check=False).returncode:
            self.app.abort(f"DMLOPS_BUILD_KERNELS: the kernels for {' '.join(targets)} could not be compiled")


def machine() -> str:
    """Return the architecture of this machine, as Linux calls it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def platform_tag() -> str:
    """Return the platform that object code made here runs on.

    It is no library: llvmlite links it at run time. It refers to memcpy, memmove and memset of any C library,
    and to functions of Python's stable interface, so that the oldest system with a wheel of llvmlite will do.
    """
    if sys.platform == "linux":
        return f"manylinux_2_17_{machine()}"
    if sys.platform == "darwin":
        return f"macosx_11_0_{platform.machine()}"  # sysconfig may tell universal2 here
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
