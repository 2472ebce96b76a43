"""Tools in namespaces: the names that the model is shown, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_BETWEEN = "__"

Tool = Mapping[str, Any]


def flat_name(namespace: str, name: str) -> str:
    """Return the name that the model is shown, as in vLLM's server; `namespace` is empty for none."""
    return f"{namespace}{_BETWEEN}{name}" if namespace else name


def flat_tools(tools: Iterable[Tool]) -> Iterator[tuple[str, Tool]]:
    """Yield the functions that the model is shown, each with its place in the body."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool["type"] != "namespace":
            yield where, tool
            continue
        for number, inner in enumerate(tool["tools"]):
            yield f"{where}.tools[{number}]", {**inner, "name": flat_name(tool["name"], inner["name"])}


def names_of(tools: Iterable[Tool]) -> dict[str, tuple[str, str]]:
    """Return namespace and name of each tool that is in one, by the name that the model is shown."""
    return {
        flat_name(space["name"], tool["name"]): (space["name"], tool["name"])
        for space in tools
        if space["type"] == "namespace"
        for tool in space["tools"]
    }


def chosen_name(name: str, tools: Iterable[Tool]) -> str:
    """Return the name that the model is shown for a tool that a choice names: by that name, or by its own where no
    other tool has it.
    """
    tools = list(tools)
    found = [flat for flat, (_, own) in names_of(tools).items() if own == name]
    known = any(tool.get("name") == name for tool in tools if tool["type"] != "namespace")
    return found[0] if len(found) == 1 and not known else name
