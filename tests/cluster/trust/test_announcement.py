"""What replicas of other releases announce."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgpack
import pytest

from cluster.errors import InvalidRequestError
from cluster.models import ModelInfo
from cluster.queue.redis.codec import _read_record
from cluster.trust.announcement import Announcement
from cluster.trust.resume_token import ResumeToken, ResumeTokenChoice
from penstock.models import Capabilities, ReplicaState
from tests.support.stack import SECRET

MODEL = ModelInfo("m", "t", 100, 50, Capabilities(), ("a",))
ANNOUNCED = Announcement("r1", "demo", "h:1", "g", MODEL, 1, "cpu", 2, 0.5)


def sealed(fields: Any) -> bytes:
    """Sign a record as a replica does."""
    return SECRET.seal("registry/1", bytes(msgpack.packb(fields)))


def test_fields_of_a_later_release_are_passed_over() -> None:
    fields = asdict(ANNOUNCED)
    fields["zone"] = fields["model"]["family"] = "x"
    fields["model"]["capabilities"]["tool_calls"] = True
    assert ANNOUNCED == Announcement.open(sealed(fields), SECRET)


@pytest.mark.parametrize("fields", [{}, [1], 7, {**asdict(ANNOUNCED), "model": 1}, {"model": asdict(MODEL)}])
def test_a_record_that_cannot_be_read_is_as_good_as_none(fields: Any) -> None:
    assert Announcement.open(sealed(fields), SECRET) is None


def test_a_state_of_a_later_release_gets_no_work() -> None:
    reply = (b"r1", b"", b"warming", 1, 2, 3, 0, 0, 0, 5, msgpack.packb({}))
    assert ReplicaState.DRAINING is _read_record(reply).state


def test_a_resume_token_of_a_later_release_is_read() -> None:
    payload = ("r", "demo", "acme", 3, [("a", "r1", "h:1", "g", "more")], 1_700, "t", {"more": 1})
    ticket = ResumeToken.open(SECRET.seal("resume/1", bytes(msgpack.packb(payload))), SECRET)
    assert ResumeToken("r", "demo", "acme", 3, (ResumeTokenChoice("a", "r1", "h:1", "g"),), 1_700, "t") == ticket


@pytest.mark.parametrize("more", [(), (1_700,), (1_700, "t")])
def test_a_resume_token_of_an_earlier_release_says_less(more: tuple[Any, ...]) -> None:
    """Not when its request began, nor which tokenizer counted its prompt."""
    payload = ("r", "demo", "acme", 3, [("a", "r1", "h:1", "g")], *more)
    ticket = ResumeToken.open(SECRET.seal("resume/1", bytes(msgpack.packb(payload))), SECRET)
    assert (*more, *(0, "")[len(more) :]) == (ticket.began_ms, ticket.tokenizer_digest)


def test_what_is_no_resume_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="this release"):
        ResumeToken.open(SECRET.seal("resume/1", bytes(msgpack.packb([1]))), SECRET)
    with pytest.raises(InvalidRequestError, match="this release"):
        ResumeToken.open(SECRET.seal("resume/1", bytes(msgpack.packb(("r", "p", "t", 3, [], 0, 7)))), SECRET)
