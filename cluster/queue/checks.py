"""Checks of names and numbers before they are stored."""

from __future__ import annotations

import re

from cluster.queue.entries import Mark, QueueEntry
from cluster.queue.heartbeats import POSITIONS, RouterBeat
from cluster.settings.queue import LEAST_WEIGHT

_ID = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_SEPARATOR = "\0"


def check_id(what: str, name: str) -> None:
    """Raise ValueError unless a router, replica, request or attempt id is 1 to 256 characters of [A-Za-z0-9._/-]."""
    if not _ID.fullmatch(name):
        raise ValueError(f"{what} must be 1 to 256 of A-Z a-z 0-9 . _ / -, got {name!r}")


def check_router_beat(beat: RouterBeat) -> None:
    """Raise ValueError if a heartbeat's names cannot be stored, or it asks for too many positions."""
    check_id("router_id", beat.router_id)
    for replica in beat.connected:
        check_id("connected replica", replica)
    if len(beat.positions_of) > POSITIONS:
        raise ValueError(f"positions_of must be at most {POSITIONS} entries, got {len(beat.positions_of)}")


def check_mark(mark: Mark) -> None:
    """Raise ValueError if a mark names no content, or its time is negative."""
    if not mark.content:
        raise ValueError("content must not be empty")
    if mark.left_ms < 0:
        raise ValueError(f"left_ms must be at least 0, got {mark.left_ms}")


def check_entry(entry: QueueEntry) -> None:
    """Raise ValueError if an entry's names or numbers cannot be stored or compared."""
    check_id("request_id", entry.request_id)
    check_id("attempt_base", entry.attempt_base)
    for replica in entry.preferred_replicas:
        check_id("preferred replica", replica)
    if _SEPARATOR in entry.tenant or _SEPARATOR in entry.client_key or not entry.tenant:
        raise ValueError("tenant must not be empty, and neither it nor client_key may contain NUL")
    if not LEAST_WEIGHT <= entry.weight < float("inf"):
        raise ValueError(f"weight must be at least {LEAST_WEIGHT} and finite, got {entry.weight}")
    counts = (entry.prompt_tokens, entry.expected_tokens, entry.kv_tokens, entry.start_within_ms, entry.late_after_ms)
    if min(*counts, entry.choices) < 0:
        raise ValueError("token counts, start_within_ms, late_after_ms and choices must not be negative")
