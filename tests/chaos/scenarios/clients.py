"""Clients that misbehave, beside others that do not."""

from __future__ import annotations

from tests.chaos.checker import Bounds
from tests.chaos.hostile import Garbage, HangUp, Unread
from tests.chaos.load import Kind, Load
from tests.chaos.scenario import After, Midway, Scenario, Step

LOAD = Load(kind=Kind.RESUMING, deadline_s=30.0)

SCENARIOS = (
    Scenario(
        name="cancel storm",
        claim="Streams that are cancelled anywhere leave no slot, entry or sequence behind.",
        faults=(16,),
        load=Load(kind=Kind.FICKLE, clients=40, output_tokens=40, start_s=0.1),
        bounds=Bounds(min_finished=0),
        settle_s=6.0,
        idle_s=3.0,
    ),
    Scenario(
        name="garbage on the public port",
        claim="Bytes that are no HTTP/2, broken frames and calls that are no message disturb nobody.",
        faults=(18,),
        steps=(Step(Midway(6), Garbage("router-0", 60)), Step(After(1.0), Garbage("router-1", 60))),
        load=LOAD,
        bounds=Bounds(recovery_s=0.0, min_finished=6),
    ),
    Scenario(
        name="streams that nobody reads",
        claim="Eight unread streams disturb nobody, and when they hang up nothing is left of them.",
        faults=(15,),
        steps=(Step(Midway(6), Unread("router-0", 8)), Step(After(6.0), HangUp("router-0"))),
        load=LOAD,
        bounds=Bounds(recovery_s=0.0, min_finished=6),
    ),
)
