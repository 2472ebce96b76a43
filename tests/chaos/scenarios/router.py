"""Routers that die or leave."""

from __future__ import annotations

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Exhaust, Kill, Relieve, RunsFrom, Start, Terminate
from tests.chaos.load import Kind, Load
from tests.chaos.release import ROOT, last_release
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

UNAVAILABLE = frozenset({"UNAVAILABLE"})

SCENARIOS = (
    Scenario(
        name="undisturbed",
        claim="Without a fault every stream is whole, and nothing is left behind.",
        faults=(),
        bounds=Bounds(min_finished=6),
    ),
    Scenario(
        name="router killed, clients resume",
        short=True,
        claim="Streams of a killed router go on at the other one: the very same generation, no token twice or lost.",
        faults=(1,),
        steps=(Step(Midway(6), Kill("router-0")), Step(After(2.0), Start("router-0", heals=False))),
        load=Load(kind=Kind.RESUMING),
        bounds=Bounds(call_codes=UNAVAILABLE, recovery_s=2.0, min_finished=6),
        control=Control("a second try", frozenset({"I7"}), {"load": Load(kind=Kind.RESUMING, retries=False)}),
    ),
    Scenario(
        name="router and replica killed, GPU time adds up",
        claim="After the deaths of a router and a replica, receipts, idle, starting and lost time are the paid time.",
        faults=(1, 3),
        steps=(
            Step(Midway(6), Kill("router-0")),
            Step(After(0.5), Kill("replica-0")),
            Step(After(3.0), Start("router-0", heals=False)),
            Step(After(0.0), Start("replica-0", heals=False)),
        ),
        load=Load(kind=Kind.RESUMING),
        bounds=Bounds(call_codes=UNAVAILABLE, max_decodes=3, exact=False, unexplained=0.01),
        settle_s=3.0,
    ),
    Scenario(
        name="router killed, SDK stream",
        claim="The Python client's own stream goes on at the other router without its caller noticing.",
        faults=(1,),
        steps=(Step(Midway(6), Kill("router-0")), Step(After(2.0), Start("router-0", heals=False))),
        load=Load(kind=Kind.SDK),
        bounds=Bounds(recovery_s=2.0, min_finished=6),
    ),
    *(
        Scenario(
            name="routers updated",
            claim="Routers of the last release give way to this one, one by one, and no request fails.",
            faults=(23,),
            steps=(
                Step(Midway(6), RunsFrom("router-0", "release")),
                Step(After(0.0), RunsFrom("router-1", "release")),
                Step(Midway(6), Terminate("router-0")),
                Step(After(0.5), Start("router-0", heals=False)),
                # For a while both releases serve, from one Redis.
                Step(After(3.0), RunsFrom("router-0", ROOT.name)),
                Step(Midway(6), Terminate("router-1")),
                Step(After(0.5), Start("router-1", heals=False)),
            ),
            load=Load(kind=Kind.SDK),
            plan=ClusterPlan(update_from=commit),
            bounds=Bounds(recovery_s=0.5, min_finished=12),
            settle_s=3.0,
            control=Control(
                "a drain",
                frozenset({"I7"}),
                {
                    "plan": ClusterPlan(update_from=commit, settings={"router": {"drain_s": 0.0}}),
                    "load": Load(kind=Kind.SDK, retries=False),
                },
            ),
        )
        for commit in [last_release()]
        if commit is not None
    ),
    Scenario(
        name="router killed, plain gRPC clients",
        short=True,
        claim="A client without the SDK hears UNAVAILABLE at once, and repeating its key gives it the whole output.",
        faults=(1, 26),
        steps=(Step(Midway(6), Kill("router-0")), Step(After(2.0), Start("router-0", heals=False))),
        load=Load(kind=Kind.PLAIN),
        bounds=Bounds(call_codes=UNAVAILABLE, recovery_s=3.0, fail_fast_s=1.0, min_finished=6),
    ),
    Scenario(
        name="router drained under load",
        short=True,
        claim="SIGTERM to a router fails no request: its streams end, new ones go to the other router.",
        faults=(2,),
        steps=(Step(Midway(6), Terminate("router-0")), Step(After(0.5), Start("router-0", heals=False))),
        load=Load(kind=Kind.RESUMING),
        bounds=Bounds(call_codes=UNAVAILABLE | {"CANCELLED"}, recovery_s=2.0, retry_info=True, min_finished=6),
        control=Control(
            "a drain",
            frozenset({"I7", "I2"}),
            {
                "plan": ClusterPlan(settings={"router": {"drain_s": 0.0}}),
                "load": Load(kind=Kind.RESUMING, retries=False),
            },
        ),
    ),
    Scenario(
        name="router stopped before its streams end",
        claim="Streams that outlast a router's drain end resumable: the very same generation goes on at the other one.",
        faults=(2,),
        steps=(Step(Midway(6), Terminate("router-0")), Step(After(0.5), Start("router-0", heals=False))),
        load=Load(kind=Kind.RESUMING, output_tokens=200),
        plan=ClusterPlan(settings={"router": {"drain_s": 0.3}}),
        bounds=Bounds(call_codes=UNAVAILABLE | {"CANCELLED"}, recovery_s=2.0, retry_info=True, min_finished=6),
        control=Control(
            "a second try", frozenset({"I7"}), {"load": Load(kind=Kind.PLAIN, output_tokens=200, retries=False)}
        ),
    ),
    Scenario(
        name="router out of file descriptors",
        claim="Without descriptors for new connections a router keeps serving those that it has; others go elsewhere.",
        faults=(27,),
        steps=(Step(Midway(6), Exhaust("router-0")), Step(After(4.0), Relieve("router-0"))),
        load=Load(kind=Kind.RESUMING),
        # Who needs a new connection to it is told within two seconds, and goes to another router.
        bounds=Bounds(recovery_s=1.0, stall_s=2.0, min_finished=6, call_codes=frozenset({"UNAVAILABLE"})),
        settle_s=3.0,
    ),
    Scenario(
        name="router drained, unary calls",
        claim="SIGTERM to a router fails no unary call that it had taken.",
        faults=(2,),
        steps=(Step(After(1.5), Terminate("router-0")), Step(After(0.5), Start("router-0", heals=False))),
        load=Load(kind=Kind.UNARY, output_tokens=50),
        bounds=Bounds(recovery_s=2.5, stall_s=3.0, min_finished=6),
        control=Control(
            "a drain",
            frozenset({"I7"}),
            {
                "plan": ClusterPlan(settings={"router": {"drain_s": 0.0}}),
                "load": Load(kind=Kind.UNARY, output_tokens=50, retries=False),
            },
        ),
    ),
)
