"""Registration of commands. Each package lists its own; the code of a command is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeAlias

GROUP = "penstock.commands"
"""Group of entry points that name lists of commands."""
KEY_VARIABLE = "PENSTOCK_API_KEY"
"""Environment variable with the API key. Not a flag: other users of a machine can read command lines."""

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `penstock`."""

    name: str
    help: str
    """One line for the list of commands."""
    module: str
    """Module with `add_flags(parser)`, which also sets the default `run`, a function from options to exit status."""


class CommandParser(argparse.ArgumentParser):
    """Parser that adds a command's flags when the command is parsed for the first time."""

    command: Command | None = None

    def load(self) -> None:
        """Import the command's module and add its flags."""
        if self.command is not None:
            module, self.command = importlib.import_module(self.command.module), None
            module.add_flags(self)

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Add the flags, then parse as argparse does."""
        self.load()
        return super().parse_known_args(*args, **kwargs)


def registered_commands() -> list[Command]:
    """List the commands of all installed packages, in the order of their entry points' names."""
    lists = sorted(entry_points(group=GROUP), key=lambda each: each.name)
    return [command for each in lists for command in each.load()]
