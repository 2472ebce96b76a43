"""A choice's state machine by itself, with a link that is told and a pool that is asked."""

from __future__ import annotations

from unittest.mock import Mock

from penstock.v1 import replica_pb2 as pb

from cluster.queue.entries import Grant
from router.dispatch.choice import Choice, ChoiceState
from router.dispatch.contract import Placement
from tests.cluster.queue.backends import entry


def test_who_was_to_give_way_and_was_refused_instead_gives_way_the_next_time() -> None:
    """The order was for the attempt that never began."""
    choice, link = Choice(0, entry("q"), pb.Start(), Mock()), Mock(replica_id="r1")
    place = Placement(link, "g", 0.0, "")
    choice.run_on(Grant("q", "q.1", "r1"), place)
    choice.ordered("preempt")
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_WINDOW_FULL))
    assert ChoiceState.WAITING is choice.state

    choice.run_on(Grant("q", "q.2", "r1"), place)
    link.send_abort.reset_mock()
    choice.ordered("preempt")

    link.send_abort.assert_called_once()
