"""From the events of a generation to a response and its events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.http.chunks import unenforced_of
from router.http.errors import HttpError
from router.http.responses.events import Events
from router.http.responses.pieces import Piece

_STATUSES = {
    types.FINISH_REASON_STOP: "completed",
    types.FINISH_REASON_TOOL_CALLS: "completed",
    types.FINISH_REASON_LENGTH: "incomplete",
    types.FINISH_REASON_CANCELLED: "cancelled",
    types.FINISH_REASON_DEADLINE: "failed",
}
GOES_ON = frozenset({"shutting_down", "taken_over", "slow_reader"})
"""Codes of errors that end a stream, while its response may go on."""


def usage_of(usage: types.Usage) -> dict[str, Any]:
    """Return the counts of tokens."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": min(usage.cached_tokens, usage.prompt_tokens),
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def status_of(finished: api.Finished) -> str:
    """Return the status of a response whose generation has ended."""
    return _STATUSES.get(finished.choices[0].finish_reason, "failed") if finished.choices else "failed"


def ended(events: Events, finished: api.Finished, now_s: int) -> tuple[str, dict[str, Any]]:
    """End the output. Return its last events but one, and the response."""
    status = status_of(finished)
    lines = events.end(complete=status == "completed")
    more: dict[str, Any] = {"output": events.output, "usage": usage_of(finished.usage), "completed_at": now_s}
    more |= unenforced_of(finished)
    if status == "incomplete":
        more["incomplete_details"] = {"reason": "max_output_tokens"}
    if status == "failed":
        more["error"] = {"code": "server_error", "message": "the response was stopped by its deadline"}
    return lines, events.response(status, **more)


def broken(events: Events, error: HttpError, now_s: int) -> tuple[str, dict[str, Any]]:
    """End the output of a response that failed. Return its last events but one, and the response."""
    lines = events.end(complete=False)
    told = {"code": "server_error", "message": error.message}
    return lines, events.response("failed", output=events.output, error=told, completed_at=now_s)


def stopped(events: Events, now_s: int) -> tuple[str, dict[str, Any]]:
    """End the output of a response that was cancelled. Return its last events but one, and the response."""
    lines = events.end(complete=False)
    return lines, events.response("cancelled", output=events.output, completed_at=now_s)


def collected(base: Mapping[str, Any], pieces: Sequence[Piece]) -> Events:
    """Return the state of a stream after some output, for those who need the items only."""
    events = Events(str(base["id"]), base)
    events.begin(queued=bool(base["background"]))
    events.started()
    for piece in pieces:
        events.add(piece)
    return events
