"""Replicas that die or hang, and links that break."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Continue, Heal, Kill, Pause, Poison, Reset, Start, Terminate
from tests.chaos.load import Kind, Load
from tests.chaos.proxy import Toxic
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

UNAVAILABLE = frozenset({"UNAVAILABLE"})
LOAD = Load(kind=Kind.RESUMING, deadline_s=30.0)
LINK = "router-0>replica-0"
MIGRATED = Bounds(max_decodes=2, recovery_s=8.0, exact=False, min_finished=6)
"""Greedy output is exact, sampled output is a valid continuation; the simulated engine's is the same in both cases."""
ONCE = ClusterPlan(settings={"router": {"max_attempts": 1}})
IMPATIENT = ClusterPlan(settings={"router": {"max_attempts": 1, "link_ping_s": 0.5}, "queue": {"attach_grace_s": 0.0}})
NO_GRACE = Control("a grace", frozenset({"I7"}), {"plan": IMPATIENT})
NO_SECOND_ATTEMPT = Control("a second attempt", frozenset({"I7"}), {"plan": ONCE})

SCENARIOS = (
    Scenario(
        name="link reset",
        short=True,
        claim="A link that breaks is opened again and its streams go on from their offsets; no client notices.",
        faults=(13,),
        steps=(Step(Midway(6), Reset(LINK)), Step(After(1.0), Reset(LINK))),
        load=LOAD,
        bounds=Bounds(recovery_s=1.5, min_finished=6),
        control=NO_GRACE,
    ),
    Scenario(
        name="link blackholed and back",
        claim="A link that passes nothing for 2 s is found and mended; its streams are whole.",
        faults=(13,),
        steps=(Step(Midway(6), Poison(LINK, Toxic(blackhole="both"))), Step(After(2.0), Heal(LINK))),
        load=LOAD,
        bounds=Bounds(recovery_s=2.5, min_finished=6),
        control=NO_GRACE,
    ),
    Scenario(
        name="link blackholed for good",
        claim="Only the pair parts: the router's streams on that replica go on elsewhere, the other router uses it.",
        faults=(13,),
        steps=(Step(Midway(6), Poison(LINK, Toxic(blackhole="both"))),),
        load=LOAD,
        bounds=MIGRATED,
        settle_s=6.0,
        control=NO_SECOND_ATTEMPT,
    ),
    Scenario(
        name="link slow and sliced",
        claim="A link of 50 ms latency that passes 7 bytes at a time changes nothing in what arrives.",
        faults=(13,),
        steps=(Step(Midway(6), Poison(LINK, Toxic(latency_s=0.05, slice_bytes=7))),),
        load=LOAD,
        bounds=Bounds(recovery_s=0.0, min_finished=6),
    ),
    Scenario(
        name="link blackholed one way",
        claim="A link on which only the router is heard is found as dead, too.",
        faults=(13,),
        steps=(Step(Midway(6), Poison(LINK, Toxic(blackhole="down"))), Step(After(2.0), Heal(LINK))),
        load=LOAD,
        bounds=Bounds(recovery_s=2.5, min_finished=6),
        control=NO_GRACE,
    ),
    Scenario(
        name="replica killed",
        short=True,
        claim="Streams of a killed replica go on at the other one, with every token once.",
        faults=(3,),
        steps=(Step(Midway(6), Kill("replica-0")), Step(After(3.0), Start("replica-0", heals=False))),
        load=LOAD,
        bounds=MIGRATED,
        settle_s=4.0,
        control=NO_SECOND_ATTEMPT,
    ),
    Scenario(
        name="replica stopped and back, short",
        claim="A replica that stands still for 1.5 s costs its streams that time and nothing else.",
        faults=(4,),
        steps=(Step(Midway(6), Pause("replica-0")), Step(After(1.5), Continue("replica-0"))),
        load=LOAD,
        bounds=Bounds(recovery_s=2.0, max_decodes=2, min_finished=6),
        control=NO_GRACE,
    ),
    Scenario(
        name="replica stopped and back, long",
        claim="A replica that stands still is left; what it says afterwards reaches nobody.",
        faults=(4, 5),
        steps=(Step(Midway(6), Pause("replica-0")), Step(After(7.0), Continue("replica-0"))),
        load=LOAD,
        bounds=replace(MIGRATED, recovery_s=3.0),
        settle_s=3.0,
        control=NO_SECOND_ATTEMPT,
    ),
    Scenario(
        name="replica drained under load",
        claim="SIGTERM to a replica fails no request: its streams end, new ones go to the other replica.",
        faults=(24,),
        steps=(Step(Midway(6), Terminate("replica-0")),),
        load=LOAD,
        bounds=Bounds(recovery_s=1.0, min_finished=6),
        settle_s=3.0,
        control=Control("a drain", frozenset({"I3"}), {"plan": ClusterPlan(settings={"replica": {"drain_s": 0.0}})}),
    ),
    Scenario(
        name="replica stopped before its streams end",
        claim="Streams that outlast a replica's drain go on at the other replica, and that counts as no lost attempt.",
        faults=(24,),
        steps=(Step(Midway(6), Terminate("replica-0")),),
        load=replace(LOAD, output_tokens=200),
        plan=ClusterPlan(settings={"replica": {"drain_s": 0.3}, "router": {"max_attempts": 1}}),
        bounds=MIGRATED,
        settle_s=3.0,
        control=Control("a drain", frozenset({"I7"}), {"steps": (Step(Midway(6), Kill("replica-0")),)}),
    ),
)
