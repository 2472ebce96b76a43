"""What the replica policy gives up for lack of replicas, in which order, and for how long."""

from __future__ import annotations

import dataclasses

import pytest

from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.snapshot import ClassDemand
from penstock.models import RequestClass
from penstock.values.steps import Relief
from tests.cluster.control.groups import (
    BOUNDS,
    POINT,
    SHAPE,
    decide,
    group,
    interactive,
    names,
    reason,
    seconds_per_request,
)


@pytest.mark.parametrize(
    ("ready", "starting", "most", "relief"),
    [
        (4, 0, 4, Relief.SHED),
        (4, 2, 6, Relief.PREEMPT_BATCH),
        # Asked for in this very decision.
        (4, 0, 6, Relief.PREEMPT_BATCH),
        # Too few, and more can't be had.
        (4, 1, 5, Relief.SHED),
        # Too few, but more will be ordered.
        (4, 1, 9, Relief.PREEMPT_BATCH),
    ],
)
def test_nobody_is_refused_while_enough_are_to_come(ready: int, starting: int, most: int, relief: Relief) -> None:
    decision = decide(POINT, GroupBounds(1, most), group(ready, interactive(6.0), starting=starting), SlowState())

    assert relief is decision.relief
    assert (relief is Relief.SHED) == ("nobody is refused" not in reason(decision, f"relief_{relief.value}"))
    # Why there are so many is another matter.
    assert decision.steps[-1].name == f"relief_{relief.value}"
    assert decision.reason == decision.steps[-2].reason


def test_starts_that_failed_are_not_to_come() -> None:
    seen = group(4, interactive(6.0), failed_starts=3, last_failure_at=9_999.0)

    assert Relief.SHED is decide(POINT, BOUNDS, seen, SlowState()).relief


def test_what_has_piled_up_may_take_a_cold_start() -> None:
    queued = round(100.0 / seconds_per_request())
    seen = group(4, interactive(2.6, queued=queued, oldest_wait_s=1e6))

    assert Relief.LATENCY is decide(POINT, GroupBounds(1, 4), seen, SlowState()).relief
    hasty = dataclasses.replace(seen, cold_start_s=30.0)
    assert Relief.SHED is decide(POINT, GroupBounds(1, 4), hasty, SlowState()).relief


@pytest.mark.parametrize(
    ("load", "batch_load", "relief"),
    [(2.5, 0.0, Relief.NONE), (3.5, 0.0, Relief.LATENCY), (3.0, 2.0, Relief.PREEMPT_BATCH), (6.0, 0.0, Relief.SHED)],
)
def test_what_cannot_be_added_is_given_up_in_order(load: float, batch_load: float, relief: Relief) -> None:
    batch = ClassDemand(RequestClass.BATCH, batch_load / seconds_per_request(), SHAPE)
    decision = decide(POINT, GroupBounds(1, 4), group(4, interactive(load), batch), SlowState())

    assert relief is decision.relief
    assert (relief is Relief.NONE) == (f"relief_{relief.value}" not in names(decision))


@pytest.mark.parametrize(
    ("waiting", "batch", "most", "relief"),
    [
        (17, 0, 4, Relief.NONE),
        (18, 0, 4, Relief.SHED),
        # The fallback rule asks for more of them.
        (18, 0, 8, Relief.PREEMPT_BATCH),
        # Batch work may wait.
        (40, 30, 4, Relief.NONE),
        (48, 30, 4, Relief.SHED),
    ],
)
def test_without_a_model_a_long_line_is_enough(waiting: int, batch: int, most: int, relief: Relief) -> None:
    demands = (interactive(6.0, queued=waiting - batch), ClassDemand(RequestClass.BATCH, 0.0, SHAPE, queued=batch))
    blind = dataclasses.replace(group(4, *demands, waiting=float(waiting)), model=None)
    decision = decide(POINT, GroupBounds(1, most), blind, SlowState())

    assert relief is decision.relief is decision.state.relief
    assert (relief is Relief.NONE) == (f"relief_{relief.value}" not in names(decision))


@pytest.mark.parametrize(
    ("before", "waiting", "relief"),
    [
        # It is the refusals that keep the line short.
        (Relief.SHED, 3, Relief.SHED),
        (Relief.SHED, 0, Relief.NONE),
        (Relief.LATENCY, 3, Relief.LATENCY),
        (Relief.NONE, 3, Relief.NONE),
    ],
)
def test_a_model_that_is_lost_ends_no_relief(before: Relief, waiting: int, relief: Relief) -> None:
    """A replica that is disturbed for some seconds trusts its model no longer; the overload is still there."""
    blind = dataclasses.replace(group(4, interactive(6.0, queued=waiting), waiting=float(waiting)), model=None)

    assert relief is decide(POINT, GroupBounds(1, 4), blind, SlowState(relief=before)).relief


@pytest.mark.parametrize("load", [1e-17, 1e-7, 0.01, 3.0])
def test_a_pool_that_nobody_uses_gives_up_nothing(load: float) -> None:
    """Its averages have not faded yet. Who comes next waits for a start, and is not refused."""
    bounds, state = GroupBounds(0, 10), SlowState(active_at=9_000.0)
    idle = decide(POINT, bounds, group(0, interactive(load), arrived_at=9_000.0), state)
    assert (0, Relief.NONE) == (idle.replicas, idle.relief)
    used = decide(POINT, bounds, group(0, interactive(load), arrived_at=9_990.0, waiting=1.0), state)
    assert used.replicas >= 1
    assert Relief.SHED is not used.relief
