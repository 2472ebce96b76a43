"""The meaning of the lines of each kind of trace. The fields of the first line identify the format."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.plural import counted
from penstock.models import RequestClass

MOONCAKE_BLOCK_TOKENS = 512
MOST_TOKENS = 1_000_000_000
"""Longest prompt or output, as flags have it. Columns of a trace hold no number of any size."""


class FieldError(Exception):
    """Error of one wrong field of a line."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """Content of one line. `time_s` counts from any moment."""

    time_s: float
    prompt_tokens: int
    output_tokens: int
    request_class: RequestClass | None = None
    tenant: str = ""
    session: str = ""
    block_ids: Sequence[int] = ()
    block_tokens: int = 0


Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of trace."""

    name: str
    json_lines: bool
    """Whether each line is a JSON object. Otherwise the file is CSV with a header."""
    needs: frozenset[str]
    """Fields that every line has."""
    parse: Callable[[Fields], TraceLine | None]
    """Reader of one line. None for a line that is no request: it failed, had no prompt, or produced nothing."""


def _azure(fields: Fields) -> TraceLine | None:
    outputs, prompt = whole(fields, "GeneratedTokens", 0), whole(fields, "ContextTokens", 0)
    if not outputs or not prompt:
        return None
    return TraceLine(_moment(fields, "TIMESTAMP"), prompt, outputs)


def _mooncake(fields: Fields) -> TraceLine | None:
    prompt = whole(fields, "input_length", 0)
    blocks = fields["hash_ids"]
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise FieldError("hash_ids", f"must be a list of whole numbers, got {shown(blocks)}")
    if len(blocks) * MOONCAKE_BLOCK_TOKENS < prompt:
        size = f"of {MOONCAKE_BLOCK_TOKENS} tokens"
        blocks_are = counted(len(blocks), f"block {size} is", f"blocks {size} are")
        raise FieldError("hash_ids", f"{blocks_are} less than {prompt}")
    outputs = whole(fields, "output_length", 0)
    if not outputs or not prompt:
        return None
    # The trace has no sessions. Every prompt begins with the same block. Prompts with the same second block count as
    # one session.
    session = f"s{blocks[:2][-1]}"
    time_s = number(fields, "timestamp", 0) / 1e3
    return TraceLine(time_s, prompt, outputs, None, "", session, tuple(blocks), MOONCAKE_BLOCK_TOKENS)


def _burst_gpt(fields: Fields) -> TraceLine | None:
    # Failed requests have no response tokens.
    outputs, prompt = whole(fields, "Response tokens", 0), whole(fields, "Request tokens", 0)
    session = str(fields.get("Session ID") or "")
    if not outputs or not prompt:
        return None
    return TraceLine(number(fields, "Timestamp", 0), prompt, outputs, None, "", session)


def _plain(fields: Fields) -> TraceLine | None:
    name = fields.get("class") or ""
    if name and str(name).upper() not in RequestClass.__members__:
        known = ", ".join(each.name.lower() for each in RequestClass)
        raise FieldError("class", f"must be one of {known}, got {shown(name)}")
    outputs, prompt = whole(fields, "output_tokens", 0), whole(fields, "prompt_tokens", 0)
    if not outputs or not prompt:
        return None
    return TraceLine(
        number(fields, "arrival_s", 0),
        prompt,
        outputs,
        RequestClass[str(name).upper()] if name else None,
        str(fields.get("tenant") or ""),
    )


_PLAIN_NEEDS = frozenset({"arrival_s", "prompt_tokens", "output_tokens"})

FORMATS: Sequence[Format] = (
    Format("azure", False, frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    Format("burstgpt", False, frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burst_gpt),
    Format("mooncake", True, frozenset({"timestamp", "input_length", "output_length", "hash_ids"}), _mooncake),
    Format("csv", False, _PLAIN_NEEDS, _plain),
    Format("jsonl", True, _PLAIN_NEEDS, _plain),
)


def number(fields: Fields, name: str, least: float) -> float:
    """Read a field that is a finite number.

    Raises:
        FieldError: it is not, or is below `least`.
    """
    value = _parsed(fields[name])
    if value < least or not math.isfinite(value):
        raise FieldError(name, f"must be a number of at least {least:g}, got {shown(fields[name])}")
    return value


def _parsed(text: Any) -> float:
    try:
        return math.nan if isinstance(text, bool) else float(text)
    except (TypeError, ValueError, OverflowError):
        # JSON has whole numbers that are too large for a float.
        return math.nan


def whole(fields: Fields, name: str, least: int) -> int:
    """Read a field that is a whole number.

    Raises:
        FieldError: it is not, is below `least`, or is above `MOST_TOKENS`.
    """
    value = _parsed(fields[name])
    if not value.is_integer() or value < least:
        raise FieldError(name, f"must be a whole number of at least {least}, got {shown(fields[name])}")
    if value > MOST_TOKENS:
        raise FieldError(name, f"must be at most {MOST_TOKENS}, got {shown(fields[name])}")
    return int(value)


def _moment(fields: Fields, name: str) -> float:
    text = str(fields[name])
    # Azure writes seven digits behind the point, or an offset in newer files. Python drops digits below microseconds.
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise FieldError(name, f"must be a time such as 2023-11-16 18:15:46.680590, got {shown(text)}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def shown(value: object) -> str:
    """Return a value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
