"""Trace contexts: what a caller sends, and what a request has. Format: W3C Trace Context."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_LONGEST_STATE = 512
_RATIO_BITS = 56
"""Bits of a trace id that are random by the specification."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span, as other processes know it."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool
    state: str = ""
    """Values of tracing systems, opaque."""

    @property
    def trace_parent(self) -> str:
        """The header that makes this span the parent of another one."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    @property
    def name(self) -> str:
        """Trace and span, for links."""
        return f"{self.trace_id}-{self.span_id}"


def read_trace_parent(parent: str, state: str = "") -> TraceContext | None:
    """Return the caller's span; None for a header that is absent or broken, which starts a new trace."""
    found = _PARENT.fullmatch(parent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (int(trace_id, 16) and int(span_id, 16)):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state[:_LONGEST_STATE])


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Trace of one call."""

    own: TraceContext
    """Span of the call."""
    parent: TraceContext | None
    """Span of the caller; None where it sent none."""


class TraceSampling:
    """Start of traces. A caller that sends a context decides whether its trace is sampled; else a ratio does."""

    def __init__(
        self, ratio: float, random_hex: Callable[[int], str] = secrets.token_hex, *, text_characters: int = 0
    ) -> None:
        """Prepare traces.

        Args:
            ratio: part of the traces that are sampled, 0 to 1.
            random_hex: returns so many random bytes.
            text_characters: most characters of a prompt, and of an output, that a span has.
        """
        self.text_characters = text_characters
        self._below = round(ratio * (1 << _RATIO_BITS))
        self._random_hex = random_hex

    def begin(self, parent: TraceContext | None) -> RequestTrace:
        """Return the trace of a new call."""
        span_id = self._random_hex(8)
        if parent is not None:
            return RequestTrace(TraceContext(parent.trace_id, span_id, parent.sampled, parent.state), parent)
        trace_id = self._random_hex(16)
        # The same part of the id everywhere, so that systems with the same ratio agree.
        sampled = int(trace_id[-_RATIO_BITS // 4 :], 16) < self._below
        return RequestTrace(TraceContext(trace_id, span_id, sampled), None)


def span_of(name: str) -> str:
    """Return the id of a span that several processes must name alike, such as an attempt's."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def attempt_parent(call: str, attempt: str) -> str:
    """Return the header `traceparent` of an attempt's span, from that of its call; empty without traces."""
    version, trace_id, _, flags = call.split("-") if call else ("", "", "", "")
    return f"{version}-{trace_id}-{span_of(attempt)}-{flags}" if call else ""
