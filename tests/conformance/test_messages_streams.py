"""Streams of messages that a client can come back to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import ASK, MARKS, Target

pytestmark = MARKS
PATH = "/v1/messages"
ENDPOINT = ("POST", PATH)


async def test_a_stream_goes_on_after_its_last_event(target: Target) -> None:
    body: dict[str, Any] = {"model": target.model, "messages": ASK, "max_tokens": 16, "stream": True}
    key = {"Idempotency-Key": "conformance-messages"}
    whole = (await target.call("POST", PATH, json=body, headers=key)).body.decode().split("\n\n")
    places = [
        (number, line.removeprefix("id: "))
        for number, event in enumerate(whole)
        for line in event.split("\n")
        if line.startswith("id: ")
    ]
    if not places:
        pytest.skip("the server's events have no ids")
    assert "event: message_stop" in whole[-2], whole[-3:]
    number, last = places[len(places) // 2]
    reply = await target.call("POST", PATH, json=body, headers={**key, "Last-Event-ID": last})
    assert reply.status == 200

    def text(events: list[str]) -> str:
        found = [line for event in events for line in event.split("\n") if '"text_delta"' in line]
        return "".join(line.partition('"text":"')[2].rpartition('"}')[0] for line in found)

    assert text(whole) == text(whole[: number + 1]) + text(reply.body.decode().split("\n\n"))
