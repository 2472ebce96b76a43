"""Clients that misbehave, beside others that do not."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.hostile import Forgotten, Garbage, HangUp, Storm, Unread, Vanish
from tests.chaos.load import Kind, Load
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

LOAD = Load(kind=Kind.RESUMING, deadline_s=30.0)
FLAT = Bounds(recovery_s=0.0, min_finished=6, max_running=32, pace_ratio=3.0)
"""Neighbours hear of their tokens nearly as soon as before."""
BOUNDED = {"router": {"max_unread_mb": 0.25, "max_unread_total_mb": 4.0}}
PATIENT = {"queue": {"lease_s": 4.0}}
"""Twenty log probabilities per token take a test machine's cores."""

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
        bounds=FLAT,
    ),
    Scenario(
        name="streams that nobody reads",
        claim="Unread streams with log probabilities cost bounded memory, end, and disturb nobody.",
        faults=(15,),
        steps=(Step(Midway(6), Unread("router-0", 24)), Step(After(1.0), HangUp("router-0", 24, 40.0))),
        load=LOAD,
        plan=ClusterPlan(settings={**PATIENT, **BOUNDED}, sim={"max_num_seqs": 32}),
        bounds=FLAT,
        control=Control(
            "a bound", frozenset({"I8"}), {"plan": ClusterPlan(settings=PATIENT, sim={"max_num_seqs": 32})}
        ),
    ),
    Scenario(
        name="clients that vanish",
        claim="Streams whose clients' network went away end when keepalive finds it, within 40 s, and disturb nobody.",
        faults=(15, 16),
        steps=(Step(Midway(6), Vanish("router-0", 10)), Step(After(32.0), Forgotten("router-0", LOAD.clients))),
        load=LOAD,
        bounds=FLAT,
    ),
    Scenario(
        name="cancel storm beside others",
        claim="Forty clients that open and cancel streams all the time do not slow their neighbours down.",
        faults=(16,),
        steps=(Step(After(3.0), Storm("router-0", 40, 6.0)),),
        load=LOAD,
        plan=ClusterPlan(sim={"max_num_seqs": 64}),
        bounds=replace(FLAT, max_running=64),
    ),
)
