"""Registration of commands. Each package lists its own; the code of a command is imported when it runs."""

from __future__ import annotations

import argparse
import enum
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, NoReturn, TypeAlias

from cluster.nearest import did_you_mean

GROUP = "penstock.commands"
"""Group of entry points that name lists of commands."""
KEY_VARIABLE = "PENSTOCK_API_KEY"
"""Environment variable with the API key. Not a flag: other users of a machine can read command lines."""
EXAMPLES = "examples:"
"""First line of a text with examples."""

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Purpose(enum.StrEnum):
    """Heading under which help lists a command, in the order of the list."""

    RUN = "run a cluster"
    CALL = "call it"
    LOOK_AFTER = "look after it"
    PLAN = "test and plan"


class Extra(enum.StrEnum):
    """Extra of the package that a command needs; a call of a cluster needs none."""

    NONE = ""
    CLUSTER = "cpu"
    ROUTER = "router"
    LOADTEST = "loadtest"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `penstock`."""

    name: str
    help: str
    """One line for the list of commands."""
    module: str
    """Module with `add_flags(parser)`, which also sets the default `run`, a function from options to exit status."""
    purpose: Purpose
    extra: Extra = Extra.NONE


class HelpText(argparse.HelpFormatter):
    """Format of help: examples stay as they are, and long flags have room beside their text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, **kwargs})


class CommandParser(argparse.ArgumentParser):
    """Parser that adds a command's flags when the command is parsed for the first time, and that answers a mistake with
    one line and a pointer to the help.
    """

    command: Command | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": HelpText, **kwargs})

    def load(self) -> None:
        """Import the command's module and add its flags."""
        if self.command is not None:
            module, self.command = importlib.import_module(self.command.module), None
            module.add_flags(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the flags, then parse as argparse does.

        What is unknown is an error here already: argparse would blame the whole command line for it.
        """
        self.load()
        words = sys.argv[1:] if args is None else list(args)
        self._check_flags(words)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unexpected argument{'s'[: len(unknown) - 1]} {', '.join(map(repr, unknown))}")
        return found, unknown

    def format_usage(self) -> str:
        """Return a short usage line. Argparse's own repeats every flag."""
        self._shorten_usage()
        return super().format_usage()

    def format_help(self) -> str:
        self._shorten_usage()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print a mistake and where help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\nsee `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        near = did_you_mean(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"unknown command {value!r}{near or '; one of ' + ', '.join(known)}")
        raise argparse.ArgumentError(action, f"must be one of {', '.join(known)}, got {value!r}{near}")

    def _check_flags(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        has_commands = any(isinstance(each, argparse._SubParsersAction) for each in self._actions)
        for word in words:
            if word == "--":
                return
            if not _looks_like_a_flag(word):
                if has_commands:
                    # The rest belongs to the command.
                    return
                continue
            name = word.partition("=")[0]
            begun = name.startswith("--") and any(each.startswith(name) for each in known)
            if not (begun or name in known or (not name.startswith("--") and name[:2] in known)):
                self.error(f"unknown flag {name}{did_you_mean(name, known)}")

    def _shorten_usage(self) -> None:
        if self.usage is None:
            needed = [each for each in self._actions if each.required or not each.option_strings]
            self.usage = " ".join(("%(prog)s", *map(_shown, needed), "[flags]"))


def _looks_like_a_flag(word: str) -> bool:
    """Return whether argparse reads a word as a flag, not as a value: prompts have spaces, and numbers a sign."""
    if not word.startswith("-") or word == "-" or " " in word:
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _shown(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest.upper())
    if action.option_strings:
        return f"{action.option_strings[-1]} {value}"
    return f"[{value}]" if action.nargs in ("?", "*") else value


def add_action(actions: Subcommands, name: str, text: str) -> argparse.ArgumentParser:
    """Add a command below a command; `text` is its line in the list, and a sentence in its own help."""
    return actions.add_parser(name, help=text, description=sentence(text))


def sentence(text: str) -> str:
    """Return a line of a list as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def show_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Show command lines, as a user types them, at the end of the help."""
    parser.epilog = "\n".join((EXAMPLES, *(f"  {line}" for line in lines)))


def registered_commands() -> list[Command]:
    """List the commands of all installed packages, in the order of their entry points' names."""
    lists = sorted(entry_points(group=GROUP), key=lambda each: each.name)
    return [command for each in lists for command in each.load()]
