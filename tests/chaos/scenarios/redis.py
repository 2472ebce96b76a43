"""Redis that dies, hangs, forgets, is slow or refuses."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Heal, Kill, Poison, Start
from tests.chaos.load import Kind, Load
from tests.chaos.proxy import Toxic
from tests.chaos.redis_faults import Configure, Demote, EmptyDisk, FillDisk, FlushAll, Promote, Sleep, TruncateAof
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

UNAVAILABLE = frozenset({"UNAVAILABLE"})
LONG = Load(kind=Kind.RESUMING, output_tokens=200, deadline_s=30.0)
"""Streams that outlast an outage."""
SHORT = Load(kind=Kind.RESUMING, output_tokens=50, deadline_s=30.0)
"""Streams that end, and begin, while Redis is away."""
AWAY = Bounds(call_codes=UNAVAILABLE, fail_fast_s=1.5, retry_info=True, recovery_s=3.0, min_finished=6)
HANGS = "router-0>redis"
NO_RETRIES = Control("retries", frozenset({"I7"}), {"load": replace(SHORT, retries=False)})

SCENARIOS = (
    Scenario(
        name="redis killed and back, streams",
        claim="Running streams do not notice that Redis was away, and nothing is left behind or runs twice.",
        faults=(6,),
        steps=(Step(Midway(6), Kill("redis")), Step(After(2.0), Start("redis"))),
        load=LONG,
        bounds=Bounds(stall_s=0.8, recovery_s=0.0, call_codes=UNAVAILABLE, min_finished=6),
        settle_s=0.0,
    ),
    Scenario(
        name="redis killed and back, new requests",
        short=True,
        claim="While Redis is away new requests fail fast with RetryInfo; afterwards all is well.",
        faults=(6,),
        steps=(Step(Midway(6), Kill("redis")), Step(After(2.0), Start("redis"))),
        load=SHORT,
        bounds=AWAY,
        control=NO_RETRIES,
    ),
    Scenario(
        name="redis killed, end of its file lost",
        claim="Redis comes back from an append-only file with a torn end, and nothing that a router holds is lost.",
        faults=(6,),
        steps=(
            Step(Midway(6), Kill("redis")),
            Step(After(0.5), TruncateAof(2_000)),
            Step(After(0.5), Start("redis")),
        ),
        load=LONG,
        plan=ClusterPlan(redis=("--aof-load-truncated", "yes")),
        bounds=AWAY,
    ),
    Scenario(
        name="redis flushed under load",
        claim="FLUSHALL loses nothing that a live router holds: streams go on, waiting requests are put in line again.",
        faults=(10,),
        steps=(Step(Midway(6), FlushAll()),),
        load=LONG,
        bounds=replace(AWAY, recovery_s=4.0),
        settle_s=4.0,
    ),
    Scenario(
        name="redis flushed while requests wait",
        claim="Requests that waited when Redis forgot them get a slot nevertheless.",
        faults=(10,),
        steps=(Step(After(0.9), FlushAll()),),
        load=Load(kind=Kind.RESUMING, clients=16, output_tokens=100, deadline_s=30.0),
        plan=ClusterPlan(sim={"max_num_seqs": 4}),
        bounds=replace(AWAY, recovery_s=None, max_running=4, final_codes=frozenset()),
        settle_s=4.0,
    ),
    Scenario(
        name="redis slow",
        claim="With 0.5 s per operation everything works, only slower; no lease is lost.",
        faults=(9,),
        steps=(
            Step(Midway(4), Poison("router-0>redis", Toxic(latency_s=0.25))),
            Step(After(0.0), Poison("router-1>redis", Toxic(latency_s=0.25))),
            Step(After(0.0), Poison("replica-0>redis", Toxic(latency_s=0.25))),
            Step(After(0.0), Poison("replica-1>redis", Toxic(latency_s=0.25))),
        ),
        load=SHORT,
        plan=ClusterPlan(settings={"redis": {"timeout_s": 2.0}, "queue": {"lease_s": 4.0}}),
        # Two seconds are usual: one until a stream of the other router ends, a quarter until Redis has its release,
        # another until the bell rings here, and half a second to fetch the grant.
        bounds=Bounds(stall_s=3.0, recovery_s=0.0, min_finished=12),
        settle_s=6.0,
        control=Control(
            "patience",
            frozenset({"I7"}),
            {"plan": ClusterPlan(settings={"redis": {"timeout_s": 0.3}, "queue": {"lease_s": 4.0}})},
        ),
    ),
    Scenario(
        name="redis blackholed for one router",
        claim="A router cut off from Redis keeps its streams and refuses new work; the other router serves it.",
        faults=(9, 14),
        steps=(Step(Midway(6), Poison(HANGS, Toxic(blackhole="both"))), Step(After(4.0), Heal(HANGS, heals=False))),
        load=SHORT,
        bounds=replace(AWAY, stall_s=3.0, recovery_s=1.0),
        settle_s=3.0,
        control=Control("a second router", frozenset({"I1", "I7"}), {"load": replace(SHORT, targets=1)}),
    ),
    Scenario(
        name="redis hangs",
        claim="Redis that answers nothing for 3 s costs no stream and no lease.",
        faults=(9,),
        steps=(Step(Midway(6), Sleep(3.0)),),
        load=SHORT,
        bounds=replace(AWAY, recovery_s=6.0),
        settle_s=4.0,
        control=NO_RETRIES,
    ),
    Scenario(
        name="redis full",
        claim="Out of memory without eviction: streams end well, new requests fail fast, and all is well afterwards.",
        faults=(8,),
        steps=(
            Step(Midway(6), Configure("maxmemory", "1", error="OOM")),
            Step(After(3.0), Configure("maxmemory", "0", heals=True)),
        ),
        load=SHORT,
        bounds=AWAY,
        control=NO_RETRIES,
    ),
    Scenario(
        name="redis cannot write its file",
        claim="With a full disk Redis refuses writes: streams end well, new requests fail fast, and it all comes back.",
        faults=(27,),
        steps=(Step(Midway(6), FillDisk()), Step(After(3.0), EmptyDisk())),
        load=SHORT,
        bounds=AWAY,
        control=NO_RETRIES,
    ),
    Scenario(
        name="redis read-only",
        claim="A primary that became a follower is taken as away: fail fast, and all is well when it is primary again.",
        faults=(7,),
        steps=(Step(Midway(6), Demote()), Step(After(3.0), Promote())),
        load=SHORT,
        bounds=AWAY,
        control=NO_RETRIES,
    ),
)
