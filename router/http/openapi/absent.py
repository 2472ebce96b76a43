"""Paths of OpenAI's and Anthropic's APIs that Penstock does not have, so that a client is told no other reason."""

from __future__ import annotations

import re

_OPENAI = (
    *("assistants", "audio", "chatkit", "containers", "conversations", "evals", "fine_tuning", "images"),
    *("moderations", "organization", "realtime", "skills", "threads", "uploads", "vector_stores", "videos"),
)
_ABSENT = (
    (re.compile(rf"/(?:v1/)?(?:{'|'.join(_OPENAI)})(?:/.*)?"), "OpenAI"),
    (re.compile(r"/(?:v1/)?responses/compact"), "OpenAI"),
    (re.compile(r"/(?:v1/)?chat/completions/.+"), "OpenAI"),
    (re.compile(r"/(?:v1/)?messages/batches(?:/.*)?"), "Anthropic"),
    (re.compile(r"/(?:v1/)?complete"), "Anthropic"),
)
"""Patterns of paths, and whose they are. Most have ids in them."""


def absent(path: str) -> str:
    """Return what a client is told of a path that its API has and Penstock has not; empty for any other path."""
    path = path.rstrip("/")
    whose = next((name for pattern, name in _ABSENT if pattern.fullmatch(path)), "")
    if not whose:
        return ""
    return f"Not Found: Penstock does not have {path[:200]} of {whose}'s API; GET /openapi.json lists what it has"
