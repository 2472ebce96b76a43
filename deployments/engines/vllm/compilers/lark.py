"""Translation of vLLM's structural tags, which only xgrammar reads, to a Lark grammar for llguidance.

A structural tag describes a model's format of tool calls: fixed texts, JSON between them, and free text around them.

Many models write tags such as `<tool_call>` as one token. llguidance keeps such tokens apart from text: no fixed text
and no pattern matches one, so the grammar must name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TEXT = "(?s:.*)"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class UnknownFormatError(ValueError):
    """A part of a structural tag that has no translation."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Tokens that llguidance keeps apart from text."""

    ids: Mapping[str, int] = field(default_factory=dict)
    """By their text."""
    control: frozenset[int] = frozenset()
    """Tokens among them that free text never has, such as the end of a turn."""


def to_lark(tag: Mapping[str, Any], special_tokens: SpecialTokens, *, any_whitespace: bool) -> str:
    """Translate a structural tag.

    A fixed text that has a special token means that token. Free text may have each special token that is none of
    control and no tag of the format. It ends at a tag in either form: the token, or its text in other tokens.

    Args:
        tag: the tag's content.
        special_tokens: those of the model's tokenizer.
        any_whitespace: whether JSON may have any white space between its parts.

    Raises:
        UnknownFormatError: it has a format without translation.
    """
    return _Translation(special_tokens, any_whitespace=any_whitespace).grammar(tag["format"])


class _Translation:
    def __init__(self, special_tokens: SpecialTokens, *, any_whitespace: bool) -> None:
        self._special = special_tokens.ids
        self._control = special_tokens.control
        self._whitespace = any_whitespace
        names = sorted(self._special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None
        self._rules: list[str] = []
        self._lexemes: dict[str, str] = {}
        """Names of lexemes by their definitions."""
        self._formats: dict[str, Callable[[Any], str]] = {
            "const_string": lambda part: self._literal(part["value"]),
            "json_schema": self._json,
            "any_text": lambda part: self._text(part.get("excludes") or ()),
            "regex": lambda part: self._regex(part["pattern"]),
            "grammar": _refuse,
            "sequence": lambda part: " ".join(map(self._rule, part["elements"])),
            "or": lambda part: f"({self._any_of(part['elements'])})",
            "optional": lambda part: f"({self._rule(part['content'])})?",
            "plus": lambda part: f"({self._rule(part['content'])})+",
            "star": lambda part: f"({self._rule(part['content'])})*",
            "tag": self._tag,
            "tags_with_separator": self._list,
            "triggered_tags": self._triggered,
        }

    def grammar(self, part: Mapping[str, Any]) -> str:
        start = self._of(part)
        return "\n".join([f"start: {start}", *self._rules, ""])

    # --- formats ------------------------------------------------------------------------------------------------------

    def _of(self, part: Mapping[str, Any]) -> str:
        """Return the expression of a part."""
        if (translate := self._formats.get(part["type"])) is None:
            return _refuse(part)
        return translate(part)

    def _rule(self, part: Mapping[str, Any]) -> str:
        """Return the name of a rule for a part."""
        return self._named(self._of(part))

    def _any_of(self, parts: Sequence[Mapping[str, Any]]) -> str:
        return " | ".join(map(self._rule, parts))

    def _json(self, part: Mapping[str, Any]) -> str:
        style, schema = part.get("style", "json"), part["json_schema"]
        if style == "json":
            # A tool whose arguments are free still gets an object.
            return self._schema(_ANY_OBJECT if schema is True else schema)
        if style == "qwen_xml" and schema is not True:
            return self._parameters(schema)
        return _refuse({"type": f"json_schema in the style {style}"})

    def _tag(self, part: Mapping[str, Any]) -> str:
        return f"{self._string(part['begin'])} {self._body(part)}"

    def _body(self, part: Mapping[str, Any]) -> str:
        """Return the expression of a tag behind its beginning."""
        content, end = part["content"], part["end"]
        ends = end if isinstance(end, list) else [end]
        free = content["type"] == "json_schema" and content.get("style", "json") != "json"
        if content["type"] == "any_text" or (free and content["json_schema"] is True):
            # Without a schema, what is between the tags is any text up to the end.
            if len(ends) == 1 and isinstance(ends[0], str) and ends[0]:
                return self._until(ends[0], [ends[0]], content.get("excludes") or ())
            return _refuse({"type": "any text without one end"})
        closed = " | ".join(map(self._string, ends))
        return f"{self._rule(content)} ({closed})" if closed else self._rule(content)

    def _list(self, part: Mapping[str, Any]) -> str:
        one = self._named(self._any_of(part["tags"]))
        many = one if part.get("stop_after_first") else f"{one} ({self._literal(part['separator'])} {one})*"
        return many if part.get("at_least_one") else f"({many})?"

    def _triggered(self, part: Mapping[str, Any]) -> str:
        excludes, triggers = part.get("excludes") or (), part["triggers"]
        calls = []
        for trigger in triggers:
            # By what comes before them. A token may reach beyond the trigger.
            bodies: dict[str, list[str]] = {}
            for tag in part["tags"]:
                begin = tag["begin"]
                for head in (
                    dict.fromkeys((trigger, self._whole(begin, len(trigger)))) if begin.startswith(trigger) else ()
                ):
                    body = self._named(f"{self._literal(begin.removeprefix(head))} {self._body(tag)}")
                    bodies.setdefault(head, []).append(body)
            calls += [f"{self._until(head, triggers, excludes)} ({' | '.join(each)})" for head, each in bodies.items()]
        if not calls:
            return self._text(excludes)
        call, text = self._named(" | ".join(calls)), self._text(excludes, triggers)
        if part.get("stop_after_first"):
            return call if part.get("at_least_one") else f"({call} | {text})"
        return f"({call}){'+' if part.get('at_least_one') else '*'} {text}"

    def _parameters(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of Qwen's parameters, each in a tag. Those that are required must be there."""
        required = set(schema.get("required", ()))
        tables = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        parts = []
        for name, value in (schema.get("properties") or {}).items():
            begin = self._literal(f"<parameter={name}>\n")
            parameter = self._named(f"{begin} {self._parameter(value, tables)}")
            parts.append(parameter if name in required else f"({parameter})?")
        return " ".join(parts)

    def _parameter(self, value: Any, tables: Mapping[str, Any]) -> str:
        end = "\n</parameter>\n"
        kind = value.get("type") if isinstance(value, dict) else None
        if (
            isinstance(value, dict)
            and (choices := value.get("enum"))
            and all(isinstance(each, str) for each in choices)
        ):
            return f"({' | '.join(map(self._literal, choices))}) {self._literal(end)}"
        if kind in (None, "string") or isinstance(kind, list):
            return self._until(end, [end])
        return f"{self._schema({**value, **tables})} {self._literal(end)}"

    # --- lexemes ------------------------------------------------------------------------------------------------------

    def _string(self, part: Any) -> str:
        return self._literal(part) if isinstance(part, str) else self._token(part)

    def _token(self, part: Mapping[str, Any]) -> str:
        token = part["token"]
        return f"<[{token if isinstance(token, int) else self._special[token]}]>"

    def _literal(self, text: str) -> str:
        pieces, at = [], 0
        for found in self._tokens_of(text):
            pieces += [_quoted(text[at : found.start()])] if found.start() > at else []
            pieces.append(f"<[{self._special[found.group()]}]>")
            at = found.end()
        if at < len(text):
            pieces.append(_quoted(text[at:]))
        return " ".join(pieces)

    def _tokens_of(self, text: str) -> Iterator[re.Match[str]]:
        return self._split.finditer(text) if self._split is not None else iter(())

    def _whole(self, text: str, size: int) -> str:
        """Return the beginning of a text, with all of a special token that its end would cut."""
        return text[
            : next((found.end() for found in self._tokens_of(text) if found.start() < size < found.end()), size)
        ]

    def _schema(self, schema: Any) -> str:
        guided = {**schema, "x-guidance": {"whitespace_flexible": self._whitespace}} if isinstance(schema, dict) else {}
        return f"%json {json.dumps(guided)}"

    def _regex(self, pattern: str) -> str:
        return self._lexeme(f"/{_slashed(pattern)}/")

    def _text(self, excludes: Sequence[str] = (), ends: Sequence[str] = ()) -> str:
        """Return free text. It has no special token that is part of one of the texts at which it may end."""
        text = self._lexeme(_text(excludes))
        tokens = self._free_tokens((*excludes, *ends))
        return f"{text} ({tokens} {text})*" if tokens else text

    def _until(self, end: str, ends: Sequence[str], excludes: Sequence[str] = ()) -> str:
        """Return free text up to the first occurrence of a fixed text, which is one of those where it ends."""
        tokens = self._free_tokens((*excludes, *ends))
        before = f"({self._lexeme(_text(excludes))} {tokens})* " if tokens else ""
        forms = [f"{before}{self._named(f'{self._lexeme(_text(excludes))} {_quoted(end)}', 'lazy')}"]
        if (token := next(self._tokens_of(end), None)) is not None:
            text = self._lexeme(_text(excludes, end[: token.start()]))
            forms.append(f"{before}{text} {self._literal(end[token.start() :])}")
        return f"({' | '.join(forms)})"

    def _free_tokens(self, texts: Sequence[str]) -> str:
        """Return an expression of the special tokens that free text may have which ends at these texts."""
        found = sorted(
            token
            for name, token in self._special.items()
            if token not in self._control and not any(_meet(name, text) for text in texts)
        )
        return f"<[{','.join(map(str, found))}]>" if found else ""

    def _lexeme(self, definition: str) -> str:
        if definition not in self._lexemes:
            self._lexemes[definition] = f"T{len(self._rules)}"
            self._rules.append(f"{self._lexemes[definition]}: {definition}")
        return self._lexemes[definition]

    def _named(self, expression: str, option: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{f'[{option}]' if option else ''}: {expression}")
        return name


def _text(excludes: Sequence[str], end: str = "") -> str:
    """Return the definition of free text with a fixed end."""
    banned = "".join(f" & ~/{_TEXT}{_slashed(re.escape(each))}{_TEXT}/" for each in excludes)
    return f"/{_TEXT}{_slashed(re.escape(end))}/{banned}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _meet(one: str, other: str) -> bool:
    """Return whether one text has the other, or begins with the other's end: they may share a part of an output."""
    shorter = min(len(one), len(other))
    sides = any(one.endswith(other[:size]) or other.endswith(one[:size]) for size in range(1, shorter))
    return one in other or other in one or sides


def _slashed(pattern: str) -> str:
    """Return a pattern that may stand between slashes, on one line."""
    one_line = pattern.replace("\\\n", "\\n").replace("\n", "\\n")
    return re.sub(r"(?<!\\)/", r"\\/", one_line)


def _refuse(part: Mapping[str, Any]) -> str:
    raise UnknownFormatError(f"llguidance has no {part['type']}")
