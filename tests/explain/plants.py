"""The plants: each makes one request slow in one way, on a cluster in this process with simulated engines.

A plant returns the request's id. What `explain` says of it is compared with the plant's name only afterwards, by
`check`: the verdict sees the records and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from cluster.models import GenerationSpec
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.base import Engine, TokenSink
from deployments.engines.factory import resolve_model
from deployments.engines.sim.engine import SimEngine
from penstock.models import RequestClass
from router.records.causes import Cause
from tests.explain.scene import Scene
from tests.router.links.parts import kill
from tests.support.stack import MODEL
from tests.support.waiting import until

URGENT, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH


@dataclass(frozen=True)
class Plant:
    """One slow request."""

    name: str
    causes: frozenset[Cause]
    """What names it right."""
    run: Callable[[Scene], Awaitable[str]]
    sim: dict[str, Any] = field(default_factory=dict)
    replicas: int = 1
    routers: int = 1
    tenants: dict[str, Any] = field(default_factory=dict)
    queue: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)
    router: dict[str, Any] = field(default_factory=dict)
    engine: Callable[[], Engine] | None = None
    warm: bool = True
    """Whether ordinary requests run before, so that the router knows what is usual."""


PLANTS: list[Plant] = []


def plant(cause: Cause, *more: Cause, **settings: Any) -> Callable[[Callable[[Scene], Awaitable[str]]], Any]:
    """Add a plant; `more` are other causes that name it right as well."""

    def add(run: Callable[[Scene], Awaitable[str]]) -> Any:
        PLANTS.append(Plant(run.__name__, frozenset((cause, *more)), run, **settings))
        return run

    return add


# --- in line ----------------------------------------------------------------------------------------------------------


@plant(Cause.OTHER_TENANTS, sim={"max_num_seqs": 2})
async def a_neighbour_holds_all_slots(scene: Scene) -> str:
    scene.background("noisy", 8, output=250)
    await scene.running(2)
    return await scene.ask("acme")


@plant(Cause.OTHER_TENANTS, sim={"max_num_seqs": 1}, tenants={"heavy": {"weight": 20}})
async def the_turn_of_others_comes_first(scene: Scene) -> str:
    scene.background("acme", 1, output=60)
    await scene.running(1)
    scene.background("heavy", 9, output=60)
    await scene.waiting(9)
    return await scene.ask("acme")


@plant(Cause.URGENT_CLASS, sim={"max_num_seqs": 1})
async def more_urgent_requests_come_first(scene: Scene) -> str:
    scene.background("chat", 7, output=70, request_class=URGENT)
    await scene.waiting(6)
    return await scene.ask("acme", request_class=BATCH)


@plant(Cause.OWN_REQUESTS, sim={"max_num_seqs": 1})
async def its_tenant_sent_much_before_it(scene: Scene) -> str:
    scene.background("acme", 8, output=60)
    await scene.waiting(7)
    return await scene.ask("acme")


@plant(Cause.NO_ROOM, sim={"max_num_seqs": 4})
async def all_slots_are_taken_by_many(scene: Scene) -> str:
    for tenant in ("noisy", "heavy", "chat", "calm"):
        scene.background(tenant, 1, output=300)
    await scene.running(4)
    return await scene.ask("acme")


@plant(Cause.LONG_PROMPT_AHEAD, sim={"max_num_seqs": 8, "max_num_batched_tokens": 512, "per_token_us": 250.0})
async def a_long_prompt_is_ahead(scene: Scene) -> str:
    scene.background("noisy", 1, prompt=6_000, output=5)
    await scene.running(1)
    await asyncio.sleep(0.3)
    return await scene.ask("acme")


@plant(Cause.LONG_PROMPT_AHEAD, sim={"max_num_seqs": 8, "max_num_batched_tokens": 512, "per_token_us": 700.0})
async def prompts_before_it_fill_the_engine(scene: Scene) -> str:
    scene.background("noisy", 3, prompt=600, output=2)
    await scene.running(3)
    return await scene.ask("acme", output=5)


@plant(Cause.AFFINITY, sim={"max_num_seqs": 1}, replicas=2)
async def others_whose_prefix_is_cached_pass_it(scene: Scene) -> str:
    """Its home is busy for long. The other replica takes those that prefer it, one after another."""
    mine, theirs = await scene.prompts_of_two_homes()
    blocker = scene.background("noisy", 1, output=900, ids=mine)
    await scene.running(1)
    scene.background("heavy", 9, output=40, ids=theirs)
    await scene.running(2)
    del blocker
    return await scene.ask("acme", ids=[*mine[:-3], 7, 8, 9])


# --- refused first ----------------------------------------------------------------------------------------------------


@plant(Cause.QUOTA, tenants={"acme": {"quota": {"tokens_per_minute": 1_200}}})
async def its_tenant_used_its_tokens(scene: Scene) -> str:
    await scene.ask("acme", prompt=1_100, output=60)
    return await scene.ask("acme", prompt=50, output=50)


@plant(Cause.QUOTA, tenants={"acme": {"quota": {"requests_per_minute": 30}}})
async def its_tenant_used_its_requests(scene: Scene) -> str:
    await asyncio.gather(*(scene.ask("acme", output=2) for _ in range(30)))
    return await scene.ask("acme")


@plant(Cause.CONCURRENCY, tenants={"acme": {"quota": {"concurrency": 2}}})
async def its_tenant_has_as_many_as_it_may(scene: Scene) -> str:
    scene.background("acme", 2, output=350)
    await scene.running(2)
    return await scene.ask("acme")


@plant(Cause.REFUSED, sim={"max_num_seqs": 1}, tenants={"acme": {"max_waiting": 1}})
async def the_queue_has_no_place_for_it(scene: Scene) -> str:
    scene.background("acme", 1, output=500)
    await scene.running(1)
    scene.background("acme", 1, output=20)
    await scene.waiting(1)
    return await scene.ask("acme")


@plant(Cause.QUEUE_UNAVAILABLE)
async def redis_pauses_before_it_is_let_in(scene: Scene) -> str:
    scene.stack.store.down = True
    asked = asyncio.ensure_future(scene.ask("acme"))
    await asyncio.sleep(1.6)
    scene.stack.store.down = False
    return await asked


@plant(Cause.QUEUE_UNAVAILABLE, sim={"max_num_seqs": 1})
async def redis_pauses_while_it_waits(scene: Scene) -> str:
    scene.background("noisy", 1, output=60)
    await scene.running(1)
    asked = asyncio.ensure_future(scene.ask("acme"))
    await scene.waiting(1)
    scene.stack.store.down = True
    await asyncio.sleep(2.5)
    scene.stack.store.down = False
    return await asked


@plant(Cause.NO_REPLICA, replicas=0, warm=False)
async def the_first_replica_is_starting(scene: Scene) -> str:
    asked = asyncio.ensure_future(scene.ask("acme"))
    await asyncio.sleep(2.0)
    await scene.stack.add_replica()
    return await asked


@plant(Cause.NO_REPLICA)
async def the_only_replica_is_replaced(scene: Scene) -> str:
    await scene.stack.replicas[0].stop(drain_s=0)
    asked = asyncio.ensure_future(scene.ask("acme"))
    await asyncio.sleep(2.0)
    await scene.stack.add_replica()
    return await asked


# --- on its replica ---------------------------------------------------------------------------------------------------


@plant(Cause.COLD_PREFIX, sim={"max_num_seqs": 1, "per_token_us": 250.0, "max_num_batched_tokens": 8192}, replicas=2)
async def the_replica_with_its_prefix_is_full(scene: Scene) -> str:
    prefix = scene.ids(3_000)
    await scene.idle()
    await scene.ask("acme", ids=prefix, output=3)
    await scene.idle()
    scene.background("acme", 1, ids=[*prefix, *scene.ids(20)], output=400)
    await scene.running(1)
    await scene.seen_running(1)
    return await scene.ask("acme", ids=[*prefix, *scene.ids(20)])


@plant(Cause.LONG_PROMPT, sim={"base_ms": 12.0, "per_token_us": 400.0})
async def its_own_prompt_is_long(scene: Scene) -> str:
    return await scene.ask("acme", prompt=6_000, output=10)


@plant(Cause.LONG_OUTPUT, sim={"base_ms": 12.0})
async def its_output_is_long(scene: Scene) -> str:
    return await scene.ask("acme", output=250)


@plant(
    Cause.LARGE_BATCH,
    sim={"per_token_us": 1_000.0, "max_num_seqs": 64},
    pool={"slo": {"standard": {"itl_p95_s": 0.012}}, "control": {"mode": "off"}},
)
async def its_batch_is_large(scene: Scene) -> str:
    scene.background("noisy", 30, output=120)
    await scene.running(30)
    await asyncio.sleep(0.3)
    return await scene.ask("acme", output=40)


@plant(Cause.SLOW_ENGINE)
async def its_engine_is_throttled(scene: Scene) -> str:
    engine = scene.stack.engines[0]
    assert isinstance(engine, SimEngine)
    engine._settings = engine._settings.model_copy(update={"base_ms": 30.0})
    return await scene.ask("acme", output=60)


@plant(Cause.PREEMPTED, sim={"max_num_seqs": 1}, queue={"preempt_after_s": 0.1, "preempt_quantum_s": 0.2})
async def it_gives_way(scene: Scene) -> str:
    asked = asyncio.ensure_future(scene.ask("acme", output=300, request_class=BATCH))
    await scene.running(1)
    await asyncio.sleep(0.3)
    scene.background("chat", 2, output=200, request_class=URGENT)
    return await asked


@plant(Cause.REPLICA_LOST, replicas=2)
async def its_replica_dies(scene: Scene) -> str:
    asked = asyncio.ensure_future(scene.ask("acme", output=100))
    await scene.running(1)
    await asyncio.sleep(0.2)
    await scene.stack.kill_replica(scene.busiest())
    return await asked


@plant(Cause.DRAINED, replicas=2, sim={"max_num_seqs": 1})
async def its_replica_stops(scene: Scene) -> str:
    asked = asyncio.ensure_future(scene.ask("acme", output=100))
    await scene.running(1)
    mine = scene.busiest()
    scene.background("noisy", 2, output=250)
    await scene.running(2)
    await scene.stack.replicas[mine].stop(drain_s=0)
    return await asked


@plant(Cause.SLOW_READER)
async def its_client_reads_slowly(scene: Scene) -> str:
    return await scene.ask("acme", output=200, pause=4.0, small_window=True, logprobs=20)


@plant(Cause.REPLICA_LOST, replicas=2, router={"token_timeout_s": 1.0})
async def its_replica_hangs(scene: Scene) -> str:
    asked = asyncio.ensure_future(scene.ask("acme", output=100))
    await scene.running(1)
    await asyncio.sleep(0.2)
    engine = scene.stack.engines[scene.busiest()]
    assert isinstance(engine, SimEngine)
    engine.wedge()
    found = await asked
    engine._moving.set()
    return found


@plant(Cause.ROUTER_LOST, routers=2)
async def its_router_dies(scene: Scene) -> str:
    """Its client goes on at the other router after a while."""
    asked: dict[str, Any] = {"prompt": scene.ids(20), "max_tokens": 100, "ignore_eos": True, "temperature": 0.0}
    stream = scene.client("acme", router=0).stream("demo", **asked)
    for _ in range(20):
        await anext(stream)
    await kill(scene.stack.routers[0])
    await asyncio.sleep(1.5)
    rest = scene.client("acme", router=1).stream("demo", resume=stream.resume_point, **asked)
    async for _ in rest:
        pass
    return rest.request_id


@plant(Cause.CLIENT_AWAY, routers=2, queue={"attach_grace_s": 20.0})
async def its_client_takes_long_to_come_back(scene: Scene) -> str:
    """Its router stops, and its client could go on at the other one at once."""
    asked: dict[str, Any] = {"prompt": scene.ids(20), "max_tokens": 60, "ignore_eos": True, "temperature": 0.0}
    stream = scene.client("acme", router=0).stream("demo", **asked)
    for _ in range(20):
        await anext(stream)
    await scene.stack.routers.pop(0).stop(drain_s=0)
    await asyncio.sleep(2.5)
    rest = scene.client("acme").stream("demo", resume=stream.resume_point, **asked)
    async for _ in rest:
        pass

    async def recorded() -> bool:
        return len((await scene.explain(rest.request_id)).calls) == 2

    await until(recorded)
    return rest.request_id


@plant(Cause.ADMISSION)
async def its_long_text_waits_for_the_tokenizer(scene: Scene) -> str:
    """Many long texts of its tenant are before it, and the tenant's texts take turns."""
    client = scene.client("acme")
    texts = ["many words " * 20_000 for _ in range(6)]
    counts = [asyncio.ensure_future(client.count_tokens("demo", each)) for each in texts]
    await asyncio.sleep(0.1)
    found = await scene.ask("acme", text="some words " * 500, output=2)
    await asyncio.gather(*counts)
    return found


class Fragile(SimEngine):
    """Dies when it is given as many sequences as `deadly`."""

    deadly = 6
    died = False

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        await super().submit(sequence_id, spec, sink)
        if len(self._live) >= Fragile.deadly and not Fragile.died:
            Fragile.died = True
            asyncio.get_running_loop().call_soon(self.die)


def _fragile() -> Engine:
    Fragile.died = False
    pool = PoolSettings(model=MODEL, engine=EngineKind.SIM, sim=SimSettings(base_ms=60.0, per_token_us=1.0))
    return Fragile(pool, resolve_model(MODEL))


@plant(Cause.SUSPECTED, replicas=2, engine=_fragile)
async def it_has_to_run_alone(scene: Scene) -> str:
    """Many requests come at once. One engine dies, and those that it had run again one at a time."""
    asked = [asyncio.ensure_future(scene.ask("acme", output=2)) for _ in range(30)]
    found = await asyncio.gather(*asked)
    return await scene.slowest(found)
