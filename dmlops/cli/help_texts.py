"""Commands whose help shows flags as flags, and no types of Python."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _ShowsNames:
    """Leaves out the types that typer shows: `<bool>` of flags, and `<list[Path]>` of arguments."""

    def get_params(self, context: Any) -> list[Any]:
        """Return all parameters, with that of `--help`."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_bool_flag", False):
                each.metavar = ""
            elif each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: None
        return params


class Command(_ShowsNames, TyperCommand):
    """A command."""


class Group(_ShowsNames, TyperGroup):
    """A command with commands of its own."""
