"""Adapters that are put and keys that are revoked, while something dies."""

from __future__ import annotations

from tests.chaos.adapter_faults import AdaptersWhole, PutAdapters
from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Fault, Heal, Kill, Poison, Start
from tests.chaos.key_faults import KeysWhole, RevokeKeys, UseKeys
from tests.chaos.load import Kind, Load
from tests.chaos.proxy import Toxic
from tests.chaos.redis_faults import FlushAll
from tests.chaos.scenario import After, Midway, Scenario, Step

LOAD = Load(kind=Kind.RESUMING, output_tokens=50, deadline_s=60.0)
BOUNDS = Bounds(
    max_decodes=3, exact=False, min_finished=6, call_codes=frozenset({"UNAVAILABLE"}), recovery_s=None, stall_s=60.0
)
NAMES = ("first", "second", "third")
ADAPTERS = ClusterPlan(sim={"adapter_load_s": 1.0})
"""One has loaded, one loads, and one has not begun, after a second and a half."""
SLOW = "router-0>redis"
"""Each step of a revocation takes so long that a kill comes between them."""


def _adapters(name: str, claim: str, faults: tuple[int, ...], *steps: Step) -> Scenario:
    put = Step(Midway(6), PutAdapters("router-0", "router-1", NAMES))
    whole = Step(After(8.0), AdaptersWhole(NAMES))
    return Scenario(
        name=f"{name} while adapters load",
        claim=claim,
        faults=faults,
        steps=(put, *steps, whole),
        load=LOAD,
        plan=ADAPTERS,
        bounds=BOUNDS,
    )


def _keys(name: str, claim: str, faults: tuple[int, ...], dead: str, *steps: Step) -> Scenario:
    return Scenario(
        name=f"{name} while keys are revoked",
        claim=claim,
        faults=faults,
        steps=(
            Step(Midway(6), UseKeys("router-1", 6)),
            Step(After(0.0), Poison(SLOW, Toxic(latency_s=0.05))),
            Step(After(0.0), RevokeKeys("router-0", 0.1)),
            *steps,
            Step(After(0.0), Heal(SLOW)),
            Step(After(8.0), KeysWhole(dead)),
        ),
        load=LOAD,
        bounds=BOUNDS,
    )


def _dies(node: str, after_s: float, *between: Fault) -> tuple[Step, ...]:
    return (
        Step(After(after_s), Kill(node)),
        *(Step(After(0.0), fault) for fault in between),
        Step(After(2.0), Start(node)),
    )


SCENARIOS = (
    _adapters(
        "router killed",
        "Adapters whose put was answered are everywhere; each other one is everywhere or nowhere.",
        (1,),
        *_dies("router-0", 1.5),
    ),
    _adapters(
        "replica killed",
        "A replica that dies while it loads an adapter leaves no files, and its successor has all before it serves.",
        (24,),
        *_dies("replica-0", 1.5),
    ),
    _adapters(
        "redis killed and its data lost",
        "Adapters are loaded although Redis dies, and although it forgets them.",
        (6, 10),
        *_dies("redis", 1.5),
        Step(After(1.0), FlushAll()),
    ),
    _keys(
        "router killed",
        "A key is refused everywhere and its streams have ended, or it is wholly as it was.",
        (1,),
        "router-0",
        *_dies("router-0", 0.35),
    ),
    _keys(
        "replica killed",
        "Revoked streams end although their replica dies, and no other replica takes them up.",
        (24,),
        "",
        *_dies("replica-0", 0.35),
    ),
    _keys(
        "redis killed and its data lost",
        "What Redis had accepted is in force after its death, and after it forgot everything.",
        (6, 10),
        "",
        *_dies("redis", 0.35),
        Step(After(1.0), FlushAll()),
    ),
)
