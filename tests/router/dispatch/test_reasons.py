"""Why a choice has no place yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaRecord
from cluster.queue.line import Line, TenantLine
from penstock.models import ReplicaState, RequestClass
from router.dispatch.reasons import Ahead, Glance, PoolNow, Waiting, ahead_of, full_window, reason_of
from router.generation.wait import WaitReason

URGENT, S, B = RequestClass.INTERACTIVE, RequestClass.STANDARD, RequestClass.BATCH
FULL = ReplicaRecord("r1", b"", ReplicaState.READY, Windows(4, 1000, 500), 4, 400, 0, 100)
FREE = replace(FULL, sequences=3)
POOL = PoolNow([FULL], (0.0, 0.2, 0.05))
MINE = Waiting("mine", S, tokens=100, kv_tokens=100, prompt_tokens=50)


def line(*lines: TenantLine, served: tuple[int, int, int] = (0, 0, 0)) -> Line:
    return Line(lines=lines, served=served)


def entries(tenant: str, waiting: int, service: int = 0, request_class: RequestClass = S, weight: float = 1.0) -> Any:
    return TenantLine(request_class, tenant, waiting, 1000, service, weight)


ALONE = entries("mine", 1)


@pytest.mark.parametrize(
    ("expected", "waiting", "seen", "pool"),
    [
        (WaitReason.NO_ROOM, MINE, line(ALONE), POOL),
        (WaitReason.SUSPECTED, replace(MINE, held=True), line(ALONE), POOL),
        (WaitReason.QUEUE_UNAVAILABLE, MINE, None, POOL),
        (WaitReason.NO_REPLICA, MINE, line(ALONE), PoolNow([])),
        (WaitReason.CLASS, MINE, line(ALONE, entries("a", 3, request_class=URGENT)), POOL),
        (WaitReason.OWN_TENANT, replace(MINE, own_ahead=4), line(entries("mine", 5)), POOL),
        # The others' next ones come first, because they were served less.
        (WaitReason.TENANTS, MINE, line(entries("a", 3), entries("mine", 1, 1000)), POOL),
        # Those of the others come later, because they were served more.
        (WaitReason.NO_ROOM, MINE, line(ALONE, entries("a", 300, 1000)), POOL),
        (WaitReason.AFFINITY, replace(MINE, passed=True), line(ALONE), POOL),
        # Too large for what is free: smaller ones pass it.
        (WaitReason.NO_ROOM, replace(MINE, passed=True, kv_tokens=700), line(ALONE), POOL),
        # Batch work is kept out of room that is left to more urgent requests.
        (WaitReason.CLASS, replace(MINE, request_class=B), line(entries("mine", 1, request_class=B)), PoolNow([FREE])),
    ],
)
def test_the_reason_is_what_keeps_it_longest(
    expected: WaitReason, waiting: Waiting, seen: Line | None, pool: PoolNow
) -> None:
    assert expected is reason_of(waiting, seen, pool)


def test_a_class_below_its_share_comes_before_more_urgent_ones() -> None:
    behind = line(ALONE, entries("a", 9, request_class=URGENT), served=(1000, 10, 0))
    assert WaitReason.NO_ROOM is reason_of(MINE, behind, POOL)
    urgent = replace(MINE, request_class=URGENT)
    assert (Ahead(S, "mine", 1),) == ahead_of(
        urgent, line(ALONE, entries("mine", 1, 0, URGENT), served=(1000, 10, 99)), POOL
    )


def test_tenants_take_turns_by_service_and_weight() -> None:
    """Three of its own are ahead: so are three of a tenant with its weight, and six of one with twice the weight."""
    mine = replace(MINE, own_ahead=3)
    seen = line(entries("a", 50), entries("b", 50, weight=2.0), entries("mine", 9))
    assert (Ahead(S, "b", 6), Ahead(S, "a", 3), Ahead(S, "mine", 3)) == ahead_of(mine, seen, POOL)


def test_a_line_that_is_older_than_a_choice_hides_no_one_of_its_own_tenant() -> None:
    """The router knows those that wait here, and the line may have been read before any of them came."""
    mine = replace(MINE, own_ahead=3, unplaced=True)
    for seen in (line(entries("mine", 2)), line(entries("mine", 3)), line()):
        assert (Ahead(S, "mine", 3),) == ahead_of(mine, seen, POOL)
        assert WaitReason.OWN_TENANT is reason_of(mine, seen, POOL)
    # Who else is ahead takes what its tenant was served.
    assert Glance(line(entries("a", 3)), POOL).ahead(mine) is None
    assert (Ahead(S, "a", 3), Ahead(S, "mine", 3)) == Glance(line(entries("a", 3), ALONE), POOL).ahead(mine)


def test_the_full_window_is_that_of_the_replica_with_most_room() -> None:
    assert "sequences" == full_window(MINE, POOL)
    assert "kv" == full_window(replace(MINE, kv_tokens=700), PoolNow([FULL, FREE]))
    assert "prefill" == full_window(replace(MINE, prompt_tokens=400), PoolNow([replace(FREE, prefill_tokens=200)]))
    assert full_window(MINE, PoolNow([FREE])) == full_window(MINE, PoolNow([])) == ""
