"""Spans that are made from a record."""

from __future__ import annotations

from penstock.v1 import records_pb2 as api
from router.records.spans import spans_of
from tests.router.records.test_verdict import attempt, record


def test_a_wait_is_named_by_the_reasons_that_are_known() -> None:
    waits = [(api.WAIT_REASON_NO_ROOM, 1.0), (api.WAIT_REASON_UNSPECIFIED, 0.1)]
    for known, expected in ((waits, ("no_room",)), (waits[1:], None)):
        call = record(attempt(1.1, 1.2, 2.2), total=2.2, waits=known)
        [queue] = [span for span in spans_of(call) if span.name == "queue"]
        assert expected == queue.attributes.get("penstock.queue.reasons")
