"""The event of output that is only text: nearly all output of streams over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.v1 import inference_pb2 as api


def text_event(choice_index: int, offset: int, token_ids: Sequence[int], text: str) -> api.StreamGenerateResponse:
    """Write a delta; `offset` counts the choice's output tokens before it."""
    event = api.StreamGenerateResponse()
    # Filled in place: a finished delta given to the constructor would be copied.
    delta = event.delta
    if choice_index:
        delta.choice_index = choice_index
    delta.text = text
    delta.token_ids.extend(token_ids)
    delta.offset = offset
    return event
