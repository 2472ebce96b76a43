"""What breaks under clients that speak HTTP: those that come back with Last-Event-ID, and OpenAI's SDK as it is."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Kill, Start, Terminate
from tests.chaos.load import Kind, Load
from tests.chaos.redis_faults import Demote, Promote
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

UNAVAILABLE = frozenset({"UNAVAILABLE"})
BACK = Load(kind=Kind.HTTP, deadline_s=30.0, greedy=True)
PLAIN = Load(kind=Kind.OPENAI, deadline_s=30.0, greedy=True, pause_s=0.1)
ROUTER_DIES = (Step(Midway(6), Kill("router-0")), Step(After(2.0), Start("router-0", heals=False)))
ROUTER_LEAVES = (Step(Midway(6), Terminate("router-0")), Step(After(0.5), Start("router-0", heals=False)))
REPLICA_DIES = (Step(Midway(6), Kill("replica-0")), Step(After(3.0), Start("replica-0", heals=False)))
REDIS_DIES = (Step(Midway(6), Kill("redis")), Step(After(2.0), Start("redis")))
BRIEF = ClusterPlan(settings={"router": {"drain_s": 0.3}})

SCENARIOS = (
    Scenario(
        name="HTTP, router killed",
        short=True,
        claim="Streams with a key go on at the other router after their last event: no token or text twice or lost.",
        faults=(1,),
        steps=ROUTER_DIES,
        load=BACK,
        bounds=Bounds(call_codes=UNAVAILABLE, recovery_s=2.0, min_finished=6),
        control=Control("a second try", frozenset({"I7"}), {"load": replace(BACK, retries=False)}),
    ),
    Scenario(
        name="HTTP, router drained",
        short=True,
        claim="A router that leaves ends its streams; new ones are told 503 and when to come again.",
        faults=(2,),
        steps=ROUTER_LEAVES,
        load=BACK,
        bounds=Bounds(call_codes=UNAVAILABLE, recovery_s=2.0, retry_info=True, min_finished=6),
    ),
    Scenario(
        name="HTTP, router stopped before its streams end",
        claim="Streams that outlast a drain end with an error, and the very same generation goes on at the other one.",
        faults=(2,),
        steps=ROUTER_LEAVES,
        load=replace(BACK, output_tokens=200),
        plan=BRIEF,
        bounds=Bounds(call_codes=UNAVAILABLE, recovery_s=2.0, retry_info=True, min_finished=6),
    ),
    Scenario(
        name="HTTP, replica killed",
        claim="Clients do not notice that a replica died, except by a pause.",
        faults=(3,),
        steps=REPLICA_DIES,
        load=BACK,
        bounds=Bounds(max_decodes=2, recovery_s=8.0, min_finished=6),
        settle_s=4.0,
    ),
    Scenario(
        name="HTTP, redis killed and back",
        claim="While Redis is away new requests fail fast with 503 and retry-after; open streams go on.",
        faults=(6,),
        steps=REDIS_DIES,
        load=replace(BACK, output_tokens=50),
        bounds=Bounds(call_codes=UNAVAILABLE, fail_fast_s=1.5, retry_info=True, recovery_s=3.0, min_finished=6),
    ),
    Scenario(
        name="HTTP, redis fails over",
        claim="A Redis that only reads, as after a failover, costs new requests a 503, and no stream anything.",
        faults=(7,),
        steps=(Step(Midway(6), Demote()), Step(After(2.0), Promote())),
        load=replace(BACK, output_tokens=50),
        bounds=Bounds(call_codes=UNAVAILABLE, fail_fast_s=1.5, retry_info=True, recovery_s=3.0, min_finished=6),
    ),
    Scenario(
        name="OpenAI's SDK, router killed",
        claim="A stream without a key is whole, or its client hears that it is not.",
        faults=(1,),
        steps=ROUTER_DIES,
        load=PLAIN,
        bounds=Bounds(final_codes=UNAVAILABLE, min_finished=6),
    ),
    Scenario(
        name="OpenAI's SDK, router drained",
        short=True,
        claim="A drain cuts no stream without a key, and new ones hear of it.",
        faults=(2,),
        steps=ROUTER_LEAVES,
        load=PLAIN,
        bounds=Bounds(final_codes=UNAVAILABLE, retry_info=True, min_finished=6),
    ),
    Scenario(
        name="OpenAI's SDK, router stopped before its streams end",
        claim="A stream without a key that outlasts a drain ends with an error, never as if it were whole.",
        faults=(2,),
        steps=ROUTER_LEAVES,
        load=replace(PLAIN, output_tokens=200),
        plan=BRIEF,
        bounds=Bounds(final_codes=UNAVAILABLE, retry_info=True, min_finished=6),
    ),
    Scenario(
        name="OpenAI's SDK, replica killed",
        claim="A replica's death fails no stream of OpenAI's SDK.",
        faults=(3,),
        steps=REPLICA_DIES,
        load=PLAIN,
        bounds=Bounds(max_decodes=2, recovery_s=8.0, min_finished=6),
        settle_s=4.0,
    ),
    Scenario(
        name="OpenAI's SDK, redis killed and back",
        claim="While Redis is away calls of OpenAI's SDK end whole or with 503 and retry-after.",
        faults=(6,),
        steps=REDIS_DIES,
        load=replace(PLAIN, output_tokens=50),
        bounds=Bounds(final_codes=UNAVAILABLE, retry_info=True, min_finished=6),
    ),
)
