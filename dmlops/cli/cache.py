"""`dmlops cache`: show where compiled kernels are, and remove those in the cache directory."""

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer
from rich.filesize import decimal

from dmlops.cli.console import facts, out
from dmlops.cli.ending import fail, reason_of
from dmlops.devices import backend
from dmlops.store import kernel_cache, kernel_store
from dmlops.store.kernel_archive import SUFFIX, Archive, ArchiveError
from dmlops.types.errors import counted

BLOCK_BYTES = 4096  # a full disk takes an empty file, and no block
OLDER = "older versions"


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove all kernels from the cache directory, and nothing else.")
    ] = False,
) -> None:
    """Show the compiled kernels in the wheel and in the cache directory, or clear that directory."""
    if clear:
        _clear()
        return
    for title, named in kernels().items():
        out.print(facts(title, named))


def _clear() -> None:
    folder = kernel_cache.directory()
    if folder is None:
        fail(f"cache: there is no cache directory: {_why_none()}")
    sizes, problems = kernel_cache.clear(folder)
    out.print(f"Removed {_amount(sizes, 'file')} from {folder}")
    if problems:
        others = len(problems) - 1
        fail(f"cache: {problems[0]}" + (f" ({others} more)" if others else ""))


def kernels() -> dict[str, list[tuple[str, str]]]:
    """Return the places of compiled kernels and the facts about each."""
    folder, problem = usable_folder()
    cached = [("new kernels", f"not kept: {problem}" if problem else "kept")]
    if folder is not None:
        cached = [("folder", str(folder)), *cached, *_in_cache(folder)]
    wheel = [(target, _archive(target)) for target in kernel_store.wheel_targets()]
    wheel = wheel or [("none", "kernels are compiled when they are first needed")]
    return {"Kernels in the wheel": wheel, "Cache of compiled kernels": cached}


def _archive(target: str) -> str:
    path = kernel_store.WHEEL / f"{target}{SUFFIX}"
    try:
        archive = Archive(path)
    except (ArchiveError, OSError) as error:
        return f"not used: {error}"
    amount = f"{counted(len(archive.labels), 'kernel')}, {decimal(path.stat().st_size)}"
    is_current = archive.origin.sources == backend.keys()[archive.origin.device].sources
    return amount if is_current else f"{amount}; not used: made from other sources than are installed"


def _in_cache(folder: Path) -> list[tuple[str, str]]:
    current = backend.keys()
    sizes: dict[str, list[int]] = {}
    for (device, generation, target), found in kernel_cache.contents(folder).items():
        name = target if generation == current[device].generation else OLDER
        sizes.setdefault(name, []).extend(found)
    in_order = sorted(sizes, key=lambda name: (name == OLDER, name))
    return [(name, _amount(sizes[name], "kernel")) for name in in_order]


def _amount(sizes: list[int], noun: str) -> str:
    return f"{counted(len(sizes), noun)}, {decimal(sum(sizes))}"


def usable_folder() -> tuple[Path | None, str]:
    """Return the cache directory, and why it takes no new kernels; "" where it does."""
    folder = kernel_cache.directory()
    if folder is None:
        return None, _why_none()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(BLOCK_BYTES))
    except OSError as error:
        return folder, f"{folder} cannot be written: {reason_of(error)}"
    return folder, ""


def _why_none() -> str:
    if os.environ.get("DMLOPS_CACHE") == "0":
        return "DMLOPS_CACHE=0 turns the cache off"
    return "you have no home directory; DMLOPS_CACHE_DIR may name another"
