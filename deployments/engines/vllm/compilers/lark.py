"""Translation of vLLM's structural tags, which only xgrammar reads, to a Lark grammar for llguidance.

A structural tag describes a model's format of tool calls: fixed texts, JSON between them, and free text around them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TEXT = "(?s:.*)"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class UnknownFormatError(ValueError):
    """A part of a structural tag that has no translation."""


def to_lark(tag: Mapping[str, Any], special_tokens: Mapping[str, int], *, any_whitespace: bool) -> str:
    """Translate a structural tag.

    Args:
        tag: the tag's content.
        special_tokens: ids of the tokenizer's special tokens, by their text. A fixed text that has one means the token.
        any_whitespace: whether JSON may have any white space between its parts.

    Raises:
        UnknownFormatError: it has a format without translation.
    """
    return _Translation(special_tokens, any_whitespace=any_whitespace).grammar(tag["format"])


class _Translation:
    def __init__(self, special_tokens: Mapping[str, int], *, any_whitespace: bool) -> None:
        self._special = special_tokens
        self._whitespace = any_whitespace
        names = sorted(special_tokens, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None
        self._rules: list[str] = []
        self._texts: dict[tuple[str, ...], str] = {}
        """Name of the lexeme of free text, by what the text must not have."""
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
                return self._text_until(ends[0])
            return _refuse({"type": "any text without one end"})
        closed = " | ".join(map(self._string, ends))
        return f"{self._rule(content)} ({closed})" if closed else self._rule(content)

    def _list(self, part: Mapping[str, Any]) -> str:
        one = self._named(self._any_of(part["tags"]))
        many = one if part.get("stop_after_first") else f"{one} ({self._literal(part['separator'])} {one})*"
        return many if part.get("at_least_one") else f"({many})?"

    def _triggered(self, part: Mapping[str, Any]) -> str:
        text = self._text(part.get("excludes") or ())
        calls = []
        for trigger in part["triggers"]:
            bodies = [
                self._named(f"{self._literal(tag['begin'].removeprefix(trigger))} {self._body(tag)}")
                for tag in part["tags"]
                if tag["begin"].startswith(trigger)
            ]
            if bodies:
                calls.append(f"{self._until(text, trigger)} ({' | '.join(bodies)})")
        if not calls:
            return text
        call = self._named(" | ".join(calls))
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
            return self._text_until(end)
        return f"{self._schema({**value, **tables})} {self._literal(end)}"

    # --- lexemes ------------------------------------------------------------------------------------------------------

    def _string(self, part: Any) -> str:
        return self._literal(part) if isinstance(part, str) else self._token(part)

    def _token(self, part: Mapping[str, Any]) -> str:
        token = part["token"]
        return f"<[{token if isinstance(token, int) else self._special[token]}]>"

    def _literal(self, text: str) -> str:
        pieces, at = [], 0
        for found in self._split.finditer(text) if self._split is not None else ():
            pieces += [json.dumps(text[at : found.start()], ensure_ascii=False)] if found.start() > at else []
            pieces.append(f"<[{self._special[found.group()]}]>")
            at = found.end()
        if at < len(text):
            pieces.append(json.dumps(text[at:], ensure_ascii=False))
        return " ".join(pieces)

    def _schema(self, schema: Any) -> str:
        guided = {**schema, "x-guidance": {"whitespace_flexible": self._whitespace}} if isinstance(schema, dict) else {}
        return f"%json {json.dumps(guided)}"

    def _regex(self, pattern: str) -> str:
        return self._lexeme(f"/{_slashed(pattern)}/")

    def _text(self, excludes: Sequence[str]) -> str:
        key = tuple(excludes)
        if key not in self._texts:
            banned = "".join(f" & ~/{_TEXT}{_slashed(re.escape(each))}{_TEXT}/" for each in key)
            self._texts[key] = self._lexeme(f"/{_TEXT}/{banned}")
        return self._texts[key]

    def _text_until(self, end: str) -> str:
        return self._until(self._text(()), end)

    def _until(self, text: str, end: str) -> str:
        """Return free text up to the first occurrence of a fixed text."""
        literal = self._literal(end)
        first, _, rest = literal.partition(" <[")
        if literal.startswith("<["):
            return f"{text} {literal}"
        self._rules.append(f"r{len(self._rules)}[lazy]: {text} {first}")
        return f"r{len(self._rules) - 1}" + (f" <[{rest}" if rest else "")

    def _lexeme(self, definition: str) -> str:
        self._rules.append(f"T{len(self._rules)}: {definition}")
        return f"T{len(self._rules) - 1}"

    def _named(self, expression: str) -> str:
        self._rules.append(f"r{len(self._rules)}: {expression}")
        return f"r{len(self._rules) - 1}"


def _slashed(pattern: str) -> str:
    return re.sub(r"(?<!\\)/", r"\\/", pattern)


def _refuse(part: Mapping[str, Any]) -> str:
    raise UnknownFormatError(f"llguidance has no {part['type']}")
