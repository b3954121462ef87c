"""The modules of frameworks that take calls over. `dmlops` registers their names; each is imported on demand.

A module is an attribute here, because torch's compiler cannot trace a call that imports one.
"""

from types import ModuleType

from dmlops.store import once

_offered: dict[str, str] = {}


def offer(**modules: str) -> None:
    """Register modules as attributes of this one; each is imported when it is first read."""
    _offered.update(modules)


def __getattr__(name: str) -> ModuleType:
    if name not in _offered:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module: ModuleType = once.imported(_offered[name])
    globals()[name] = module
    return module
