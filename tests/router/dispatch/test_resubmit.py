"""What waits is put in line again in its order, whatever the store refuses to who is new."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.entries import Mail, Order, QueueLimits, Quota
from cluster.queue.heartbeats import RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from penstock.internal.v1 import replica_pb2 as pb
from router.dispatch.mailbox import Mailbox
from router.dispatch.pool_context import PoolContext
from router.dispatch.resubmit import Resubmit
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.choice_table import ChoiceTable
from tests.cluster.queue.backends import Scene, entry

NAMES = ("q0", "q1", "q2", "q3")


@pytest.mark.parametrize(
    "quota",
    [Quota(tokens_per_minute=45), Quota(requests_per_minute=2), Quota(concurrency=2), Quota(max_waiting=2)],
    ids=["tokens", "requests", "concurrency", "waiting"],
)
async def test_what_is_beyond_a_quota_by_now_keeps_its_place(quota: Quota) -> None:
    """It came while the quota allowed it: over minutes, or before the quota was lowered."""
    clock = ManualClock()
    queue = RedisQueue(InProcessRedis(clock), "demo", QueueLimits())
    await Scene(queue, clock).start({"r1": Windows(0, 1000, 1000)})
    choices = ChoiceTable()
    for name in NAMES:
        choice = Choice(0, entry(name, max_tokens=10, quota=quota), pb.Start(), Mock())
        choice.run_id = "before"
        choices.take(choice)
    resubmission = Resubmit(PoolContext("demo", "A", queue, Mock(), choices), Mock(), set)
    resubmission.run_id = "now"

    await resubmission.submit_all()

    reply = await queue.heartbeat_router(RouterBeat("A", ("r1",), positions_of=NAMES))
    assert {"q0": 0, "q1": 1, "q2": 2, "q3": 3} == reply.positions
    assert 4 == resubmission.submitted


async def test_what_goes_to_another_cell_is_not_put_in_line_again_meanwhile() -> None:
    clock = ManualClock()
    queue = RedisQueue(InProcessRedis(clock), "demo", QueueLimits())
    await Scene(queue, clock).start({"r1": Windows(0, 1000, 1000)})
    choices = ChoiceTable()
    for name in NAMES:
        choice = Choice(0, entry(name), pb.Start(), Mock())
        choice.run_id = "before"
        choices.take(choice)
    resubmission = Resubmit(PoolContext("demo", "A", queue, Mock(), choices), Mock(), lambda: {"q1"})
    resubmission.run_id = "now"

    await resubmission.submit_all()

    assert {"q0", "q2", "q3"} == {each.request_id for each in (await queue.holdings("A")).page}


@pytest.mark.parametrize(("under_way", "spawned"), [(set(), ["submit_early"]), ({"q"}, [])], ids=["here", "moves"])
def test_what_expired_early_is_put_in_line_again_unless_it_goes_to_another_cell(
    under_way: set[str], spawned: list[str]
) -> None:
    told: list[str] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()
        told.append(name)

    choice = Mock(state=ChoiceState.WAITING, wait=SimpleNamespace(has_time=True))
    context: Any = SimpleNamespace(choices={"q": choice}, owner=SimpleNamespace(spawn=spawn))
    adoption: Any = SimpleNamespace(under_way=under_way)
    mailbox = Mailbox(context, Mock(), Mock(), adoption, Mock(), Mock(), parked=())
    mailbox.deliver(Mail((), (Order("q", "expired"),)))
    assert spawned == told
    choice.ordered.assert_not_called()
