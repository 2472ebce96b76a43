"""The page of all commands, from their parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from cluster.cli.main import build_parser
from cluster.terminal.command import EXAMPLES
from reference.markdown import code, page, prose, slug, table

INTRO = """All commands and their flags. `penstock COMMAND --help` shows the same. Settings can also come from a file
and from environment variables: see [Give it settings](../README.md#give-it-settings). The exit status is 0 when all
went well, 1 when the command failed, and 2 for wrong usage or settings. Some commands of
[load tests and planning](../../loadtest/README.md) have more."""
STATED = re.compile(r" ?\(default:? [^()]*\)")
"""A default that a help text repeats."""


def render() -> str:
    """Return the page."""
    sections = list(_commands(build_parser(whole=True), ""))
    names = [section.splitlines()[0].lstrip("# ") for section in sections]
    links = "\n".join(f"- [`{name}`](#{slug(name)})" for name in names)
    return page("Commands", INTRO, links, *sections)


def _commands(parser: argparse.ArgumentParser, text: str) -> Iterator[str]:
    """Yield a command and those below it."""
    actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    inner = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    words = [_sentence(parser.description or text), _usage(parser) if not inner else ""]
    rows = [_row(parser, each) for each in actions if each not in inner and each.help is not argparse.SUPPRESS]
    if rows:
        plain = all(not default for _, default, _ in rows)
        head = ["argument", "meaning"] if plain else ["argument", "default", "meaning"]
        words.append(table(head, [[row[0], row[2]] for row in rows] if plain else rows))
    if parser.epilog:
        words.append(_examples(parser.epilog))
    yield f"## {parser.prog}\n\n" + "\n\n".join(word for word in words if word)
    for action in inner:
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from _commands(command, texts.get(name, ""))


def _examples(text: str) -> str:
    """Return the end of a help as a block of shell lines."""
    lines = (line.strip() for line in text.removeprefix(EXAMPLES).strip().splitlines())
    return "\n".join(("```console", *(f"$ {line}" for line in lines), "```"))


def _sentence(text: str) -> str:
    """Return a line of the list of commands as a sentence."""
    return prose(f"{text[:1].upper()}{text[1:].removesuffix('.')}.") if text else ""


def _usage(parser: argparse.ArgumentParser) -> str:
    needed = [each for each in parser._actions if each.required or not each.option_strings]
    words = [f"{each.option_strings[-1]} {_value(each)}" if each.option_strings else _value(each) for each in needed]
    return f"```text\n{' '.join([parser.prog, *words, '[flags]'])}\n```"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    value = _value(action)
    names = ", ".join(code(f"{name} {value}".strip()) for name in action.option_strings or [""])
    text = action.help or ""
    if "%" in text:
        text = text % {**vars(action), "prog": parser.prog}
    default = _default(action)
    return [names, default, prose(STATED.sub("", text) if default else text)]


def _value(action: argparse.Action) -> str:
    """Return how the value of an argument is shown; empty for one without."""
    if action.nargs == 0:
        return ""
    if action.choices is not None and action.metavar is None:
        word = "|".join(str(each) for each in action.choices)
    elif isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    else:
        word = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.nargs in ("*", "?"):
        return f"[{word}{' ...' if action.nargs == '*' else ''}]"
    return f"{word} ..." if action.nargs == "+" else word


def _default(action: argparse.Action) -> str:
    if action.required and action.option_strings:
        return "*required*"
    if action.default in (None, False, "", argparse.SUPPRESS, [], ()) or action.nargs == 0:
        return ""
    return code(action.default)
