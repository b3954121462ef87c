"""Commands whose help shows flags as flags."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _ShowsFlags:
    """Leaves out the type of options that take no value, which typer shows as `<bool>`."""

    def get_params(self, context: Any) -> list[Any]:
        """Return all parameters, with that of `--help`."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_bool_flag", False):
                each.metavar = ""
        return params


class Command(_ShowsFlags, TyperCommand):
    """A command."""


class Group(_ShowsFlags, TyperGroup):
    """A command with commands of its own."""
