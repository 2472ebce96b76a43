"""A pool of several cells on a Redis Cluster of which servers die, hang, or give slots away."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.cell_faults import ContinueOwner, KillOwner, MoveSlot, PauseOwner, StartOwner, TakenOver
from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.load import Kind, Load
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

PLAN = ClusterPlan(replicas=3, masters=3, cells=3)
LOAD = Load(kind=Kind.RESUMING, output_tokens=50, deadline_s=30.0)
"""Streams that end, and begin, while a server is away."""
BOUNDS = Bounds(
    call_codes=frozenset({"UNAVAILABLE"}),
    fail_fast_s=2.0,
    retry_info=True,
    stall_s=2.5,
    # A call that ends with the time for an answer (1 s), the pause that a router names, and that once more.
    silence_s=5.0,
    min_finished=20,
)
LONG_S = 6.0
"""Outage in seconds; without other cells every client hears nothing for as long."""
TAKE_OVER_S = 8.0
"""Longest time until a follower has a cell: Redis Cluster's node timeout (2 s), an election, and another one if that
fails.
"""
OUTAGE = (Step(Midway(6), KillOwner(0)), Step(After(LONG_S), StartOwner(heals=False)))
ONE_CELL = Control("other cells", frozenset({"I7"}), {"plan": replace(PLAN, cells=1)})

SCENARIOS = (
    Scenario(
        name="server of a cell killed and back",
        claim="Streams do not notice, new requests go to the other cells, and nothing is left behind or runs twice.",
        faults=(6,),
        steps=(Step(Midway(6), KillOwner(0)), Step(After(LONG_S), StartOwner())),
        load=LOAD,
        plan=PLAN,
        bounds=replace(BOUNDS, recovery_s=0.0),
        settle_s=4.0,
        idle_s=12.0,
        control=ONE_CELL,
    ),
    Scenario(
        name="cell cut off",
        claim="A server that hangs costs the requests of its cell only, and those within a timeout.",
        faults=(9,),
        steps=(Step(Midway(6), PauseOwner(0)), Step(After(LONG_S), ContinueOwner())),
        load=LOAD,
        plan=PLAN,
        bounds=replace(BOUNDS, recovery_s=0.0),
        settle_s=4.0,
        idle_s=12.0,
        control=ONE_CELL,
    ),
    Scenario(
        name="follower takes a cell over",
        claim="Requests of the cell's tenants are refused until its follower has it, then go on; none runs twice.",
        faults=(7,),
        steps=(
            Step(Midway(6), KillOwner(0)),
            Step(After(0.0), TakenOver(0, TAKE_OVER_S)),
            # It comes back as a follower, which nobody notices.
            Step(After(2.0), StartOwner(heals=False)),
        ),
        # With keys, so that all of them have their home in cell 0.
        load=replace(LOAD, kind=Kind.PLAIN),
        plan=replace(PLAN, followers=True),
        bounds=replace(BOUNDS, recovery_s=3.0, silence_s=TAKE_OVER_S + 2.0),
        settle_s=4.0,
        idle_s=12.0,
        control=Control("followers", frozenset({"I7"}), {"plan": PLAN, "steps": OUTAGE}),
    ),
    Scenario(
        name="slot of a cell moves under load",
        claim="A cell whose slot goes to another server is away for moments, and nothing of it is lost.",
        faults=(7,),
        steps=(Step(Midway(6), MoveSlot(1, "redis-2")), Step(After(1.0), MoveSlot(0, "redis-1"))),
        load=LOAD,
        plan=PLAN,
        bounds=replace(BOUNDS, recovery_s=3.0),
        settle_s=4.0,
        idle_s=12.0,
    ),
)
