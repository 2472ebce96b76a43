"""The same faults where the engines are vLLM's, on a CPU, with the demo model. Each stream's output is compared with
what the same cluster said before anything was broken.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.settings import EngineKind
from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Continue, Gone, Kill, KillEngine, Pause, PauseEngine, Reset, Start, Terminate
from tests.chaos.hostile import Killer
from tests.chaos.load import Kind, Load
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

UNAVAILABLE = frozenset({"UNAVAILABLE"})
PLAN = ClusterPlan(engine=EngineKind.VLLM)
LOAD = Load(kind=Kind.SDK, clients=4, output_tokens=500, deadline_s=60.0, greedy=True)
RESUMING = replace(LOAD, kind=Kind.RESUMING)
WHOLE = Bounds(lease_s=3.0, stall_s=2.5, recovery_s=5.0, min_finished=4)
MIGRATED = replace(WHOLE, max_decodes=2, recovery_s=12.0)
"""Greedy output is exact wherever it goes on, and says so."""
WIDE = replace(PLAN, ranks=2)
WIDE_LOAD = replace(LOAD, output_tokens=300, deadline_s=90.0)
BUDGET = 256
"""Tokens per step, and so the longest prompt that is not split, where the guard is off."""
UNGUARDED = ClusterPlan(
    engine=EngineKind.VLLM,
    kept=True,
    vllm={"max_num_seqs": 32, "max_num_batched_tokens": BUDGET, "allow_split_prefill_on_cpu": True},
)
INNOCENT = Load(kind=Kind.SDK, clients=64, output_tokens=60, deadline_s=150.0, greedy=True, start_s=2.0)

SCENARIOS = (
    Scenario(
        name="real engines: router killed",
        claim="Streams of real engines go on at the other router: the very same generation, no token twice or lost.",
        faults=(1,),
        steps=(Step(Midway(4), Kill("router-0")), Step(After(1.0), Start("router-0", heals=False))),
        load=LOAD,
        plan=PLAN,
        bounds=WHOLE,
        control=Control("a second try", frozenset({"I7"}), {"load": replace(LOAD, retries=False)}),
    ),
    Scenario(
        name="real engines: router drained",
        claim="SIGTERM to a router fails no request on real engines.",
        faults=(2,),
        steps=(Step(Midway(4), Terminate("router-0")), Step(After(0.5), Start("router-0", heals=False))),
        load=RESUMING,
        plan=PLAN,
        bounds=replace(WHOLE, call_codes=UNAVAILABLE | {"CANCELLED"}, retry_info=True),
    ),
    Scenario(
        name="real engines: link reset",
        claim="A link to a real engine that breaks is opened again, and its streams go on from their offsets.",
        faults=(13,),
        steps=(Step(Midway(4), Reset("router-0>replica-0")), Step(After(1.0), Reset("router-1>replica-1"))),
        load=LOAD,
        plan=PLAN,
        bounds=WHOLE,
    ),
    Scenario(
        name="real engines: redis killed and back",
        claim="Streams of real engines end while Redis is away; new requests fail fast until it is back.",
        faults=(6,),
        steps=(Step(Midway(4), Kill("redis")), Step(After(2.0), Start("redis"))),
        load=RESUMING,
        plan=PLAN,
        bounds=replace(WHOLE, call_codes=UNAVAILABLE, retry_info=True, fail_fast_s=1.5),
    ),
    Scenario(
        name="real engines: replica stopped and back",
        claim="A replica that stands still with its engine is left; what it says afterwards reaches nobody.",
        faults=(4,),
        steps=(Step(Midway(4), Pause("replica-0")), Step(After(9.0), Continue("replica-0"))),
        load=LOAD,
        plan=PLAN,
        bounds=MIGRATED,
    ),
    Scenario(
        name="real engines: replica killed",
        claim="Streams of a killed replica go on at the other one, exactly; no engine process outlives its replica.",
        faults=(3,),
        steps=(Step(Midway(4), Kill("replica-0")),),
        load=LOAD,
        plan=PLAN,
        bounds=MIGRATED,
        settle_s=4.0,
    ),
    Scenario(
        name="real engines: rank killed",
        claim="A rank that dies ends its engine; the replica says so, its streams go on at the other one, exactly.",
        faults=(3,),
        steps=(Step(Midway(4), KillEngine("replica-1", "Worker")), Step(After(2.0), Gone("replica-1"))),
        load=LOAD,
        plan=PLAN,
        bounds=MIGRATED,
        settle_s=2.0,
    ),
    Scenario(
        name="real engines: scheduler killed",
        claim="The same holds for the process that runs the scheduler.",
        faults=(3,),
        steps=(Step(Midway(4), KillEngine("replica-0", "EngineCore")), Step(After(2.0), Gone("replica-0"))),
        load=LOAD,
        plan=PLAN,
        bounds=MIGRATED,
        settle_s=2.0,
    ),
    Scenario(
        name="real engines: one of two ranks killed",
        claim="Without one of its ranks an engine is dead; its streams go on at the other replica, exactly.",
        faults=(3,),
        steps=(Step(Midway(4), KillEngine("replica-1", "Worker", most=1)), Step(After(8.0), Gone("replica-1"))),
        load=WIDE_LOAD,
        plan=WIDE,
        bounds=replace(MIGRATED, stall_s=4.0),
        settle_s=2.0,
    ),
    Scenario(
        name="real engines: one of two ranks stopped",
        claim="An engine that hangs, healthy otherwise, is found by its replica; its streams go on, exactly.",
        faults=(4, 5),
        steps=(Step(Midway(4), PauseEngine("replica-0", "Worker")), Step(After(11.0), Gone("replica-0"))),
        load=WIDE_LOAD,
        plan=WIDE,
        bounds=replace(MIGRATED, stall_s=4.0, recovery_s=22.0),
        settle_s=2.0,
    ),
    Scenario(
        name="real engines: a prompt that kills them",
        claim="After two engines at most every router turns it away; none of 64 requests beside it fails.",
        faults=(20,),
        steps=(Step(Midway(16), Killer("router-0", 700)), Step(After(0.5), Killer("router-1", 700))),
        load=INNOCENT,
        plan=UNGUARDED,
        bounds=Bounds(
            lease_s=3.0,
            max_running=32,
            max_decodes=4,
            max_deaths=2,
            killers_end=("FAILED_PRECONDITION", "QUARANTINED"),
            min_finished=64,
        ),
        control=Control(
            "quarantine",
            frozenset({"I7"}),
            {
                "plan": replace(UNGUARDED, settings={"router": {"quarantine_s": 0.0}}),
                "steps": (Step(Midway(16), Killer("router-0", 700)),),
            },
        ),
    ),
)
