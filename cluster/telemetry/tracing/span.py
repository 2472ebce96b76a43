"""Spans as plain values. They are made after the fact, so nothing is paid for them while a request runs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Attribute: TypeAlias = str | int | float | bool | tuple[str, ...]


class SpanKind(enum.Enum):
    """Place of a span between processes."""

    INTERNAL = "internal"
    SERVER = "server"
    """Work for another process."""
    CLIENT = "client"
    """Wait for another process."""


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Span that another one goes on from."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A span that is over."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    start_ns: int
    """Nanoseconds since the Unix epoch."""
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    error: str = ""
    """Sentence that says why it failed; empty where it did not."""
    state: str = ""
    """Values of tracing systems that the caller sent."""
