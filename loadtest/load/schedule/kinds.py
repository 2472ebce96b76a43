"""The kinds of requests that users send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.load.schedule.lengths import Fixed, Lengths, LogNormal
from penstock.models import RequestClass
from penstock.values.slo import ClassSlo


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request."""

    name: str
    request_class: RequestClass
    lengths: Lengths
    groups: int = 0
    """Number of different beginnings that prompts share. 0 shares nothing."""
    shared_tokens: int = 0
    """Length of a shared beginning. It is part of the prompt's length, and at most nine tenths of it."""
    sticky: bool = False
    """Whether requests with the same beginning form one session."""
    slo: ClassSlo = field(default_factory=ClassSlo)


_LOOSE = ClassSlo(ttft_p99_s=2.0, itl_p95_s=0.1)

KINDS: Mapping[str, RequestKind] = {
    kind.name: kind
    for kind in (
        # Medians and spreads of log-normals that fit the Azure LLM inference trace of conversations (2023).
        RequestKind(
            "chat",
            RequestClass.INTERACTIVE,
            LogNormal(1020, 0.99, 16_000, 129, 0.86, 1_000),
            groups=4,
            shared_tokens=200,
            slo=_LOOSE,
        ),
        # Medians and spreads of the Mooncake trace, whose prompts carry documents.
        RequestKind(
            "rag",
            RequestClass.STANDARD,
            LogNormal(6900, 1.0, 64_000, 350, 0.6, 2_000),
            groups=50,
            shared_tokens=500,
            slo=ClassSlo(ttft_p99_s=10.0, itl_p95_s=0.2),
        ),
        # The kind of recorded requests. Times, lengths and classes are those of the trace.
        RequestKind("trace", RequestClass.STANDARD, Fixed(1, 1), slo=_LOOSE),
        # No user waits at a screen, so any completed answer is good.
        RequestKind("batch", RequestClass.BATCH, LogNormal(800, 0.8, 8_000, 400, 0.7, 2_000)),
        # Tools and instructions come first and stay the same. The answers are short.
        RequestKind(
            "agent",
            RequestClass.INTERACTIVE,
            LogNormal(5000, 0.4, 32_000, 90, 0.7, 1_000),
            groups=20,
            shared_tokens=4_000,
            sticky=True,
            slo=_LOOSE,
        ),
    )
}
"""All kinds by name.

Prompt lengths of `chat` and `rag` follow published traces; `batch` and `agent` are assumptions.
"""
