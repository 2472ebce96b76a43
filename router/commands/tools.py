"""Tools on the command line: their files, the choice among them, and the text of a call."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import SettingsError, plain_reason
from cluster.nearest import did_you_mean

if TYPE_CHECKING:
    from penstock.client import Tool, ToolCall, ToolChoice

_IN_REQUEST = re.compile(r"^prompt\.chat\.tools\[(\d+)\]\.?")
_SAMPLING = re.compile(r"sampling\.(\w+)(?:[.\[].*)?")
_FLAGS = {
    "prompt": "PROMPT",
    "prompt.text": "PROMPT",
    "request_class": "--class",
    "reasoning.include": "--no-reasoning",
}


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """Place of a tool in a file."""

    file: str
    index: int | None
    """Number in the file's list, from 0; None where the file has the tool alone."""

    def __str__(self) -> str:
        return self.file if self.index is None else f"{self.file}: [{self.index}]"

    def of(self, field: str) -> str:
        """Return the place of a tool's field; an empty name is the tool."""
        if not field:
            return str(self)
        return f"{self}{': ' if self.index is None else '.'}{field}"


@dataclass(frozen=True, slots=True)
class ToolList:
    """Tools of a command, and where each one is from."""

    tools: tuple[Tool, ...] = ()
    places: tuple[ToolPlace, ...] = ()
    """Place of each tool."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def placed(self, field: str) -> str:
        """Return where a field of a request comes from: the file for those of a tool, else a flag."""
        found = _IN_REQUEST.match(field)
        return f"--tool: {self.places[int(found[1])].of(field[found.end() :])}" if found else flag_of(field)


def placed_problem(problem: str, placed: Callable[[str], str]) -> str:
    """Return a problem that begins with a field of a request, with the place where the user wrote it."""
    field, mark, rest = problem.partition(": ")
    return f"{placed(field)}{mark}{rest}"


def flag_of(field: str) -> str:
    """Return the flag that a field of a request comes from, as `penstock generate` has it; the field where it has
    none.
    """
    if found := _SAMPLING.fullmatch(field):
        return "--json-schema, --regex or --choice" if found[1] == "structured_output" else _as_flag(found[1])
    first = re.split(r"[.\[]", field, maxsplit=1)[0]
    return _FLAGS.get(field) or (_as_flag(first) if first in ("model", "lora_adapter", "tool_choice") else field)


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_tool_flag(parser: argparse.ArgumentParser, text: str = "") -> None:
    """Add the flag for files of tools. `text`: what the help says after it."""
    parser.add_argument(
        "--tool", action="append", default=[], metavar="FILE",
        help="JSON file with a function that the model may call, or a list of them, as OpenAI's API has them; "
        f"may be given several times{text}",
    )  # fmt: skip


def add_reasoning_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that leaves reasoning out."""
    parser.add_argument(
        "--no-reasoning", action="store_true", help="leave the model's reasoning out; it is charged all the same"
    )


def read_tool_files(names: list[str]) -> ToolList:
    """Read the tools of files.

    Raises:
        SettingsError: a file can't be read, or a tool in it is wrong; names the file and the place in it.
    """
    found = [each for name in names for each in _read(name)]
    tools = ToolList(tuple(tool for tool, _ in found), tuple(place for _, place in found))
    for index, name in enumerate(tools.names):
        if name in tools.names[:index]:
            place, first = tools.places[index].of("name"), tools.places[tools.names.index(name)]
            raise SettingsError(f"--tool: {place}: must be unique, got {json.dumps(name)}, which {first} has too")
    return tools


def choice_from(word: str | None, tools: ToolList) -> ToolChoice | None:
    """Return the choice of --tool-choice; None without it.

    Raises:
        SettingsError: there are no tools, or none of this name.
    """
    from penstock.client import ToolChoice, ToolMode

    if word is None:
        return None
    if not tools.tools:
        raise SettingsError(f"--tool-choice {word} needs --tool")
    if word in tuple(ToolMode):
        return ToolChoice(ToolMode(word))
    if word not in tools.names:
        known = (*ToolMode, *tools.names)
        raise SettingsError(
            f"--tool-choice: must be one of {', '.join(known)}, got {word!r}{did_you_mean(word, known)}"
        )
    return ToolChoice(ToolMode.REQUIRED, (word,))


def call_text(call: ToolCall) -> str:
    """Return a call for a reader; the arguments are as the model wrote them."""
    return f"{call.name}({call.arguments})"


def _read(name: str) -> Iterator[tuple[Tool, ToolPlace]]:
    try:
        whole = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--tool: {name} cannot be read: {plain_reason(error)}") from error
    except RecursionError:
        raise SettingsError(f"--tool: {name}: is nested too deeply") from None
    except ValueError as error:
        raise SettingsError(f"--tool: {name} is not JSON: {error}") from error
    if not isinstance(whole, list):
        place = ToolPlace(name, None)
        yield _tool(place, whole), place
        return
    if not whole:
        raise SettingsError(f"--tool: {name}: must have at least one tool, got []")
    for index, each in enumerate(whole):
        place = ToolPlace(name, index)
        yield _tool(place, each), place


def _tool(place: ToolPlace, value: Any) -> Tool:
    from penstock.client import BodyError
    from penstock.values.objects import Fields
    from penstock.values.tools import read_tools

    bare = isinstance(value, dict) and "function" not in value and "type" not in value
    wrapped = {"type": "function", "function": value} if bare else value
    try:
        return read_tools(Fields("", {"tools": [wrapped]}, ignore_unknown=False))[0]
    except BodyError as error:
        field = error.field.removeprefix("tools[0]").removeprefix(".function" if bare else "").removeprefix(".")
        raise SettingsError(f"--tool: {place.of(field)}: {error.problem}") from error
