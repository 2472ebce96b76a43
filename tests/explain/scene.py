"""A cluster for one plant, with tenants that send requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client import AsyncClient, Explanation, GenerateOptions, RetryPolicy
from penstock.models import RequestClass
from penstock.values.errors import NotFoundError
from router.identity.new_key import KeyPlan, add_key
from tests.support.stack import FAST_QUEUE, Stack, running_stack, sim_pool
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.explain.plants import Plant

TENANTS = ("acme", "noisy", "heavy", "chat", "calm")
USUAL_PROMPT, USUAL_OUTPUT = 20, 30
STEP_MS = 4.0


class Scene:
    """Actor of tenants on a running cluster."""

    def __init__(self, stack: Stack, keys: dict[str, str]) -> None:
        self.stack = stack
        self._random = random.Random(5)
        self._keys = keys
        self._clients: dict[str, AsyncClient] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def client(self, tenant: str, *, small_window: bool = False, router: int | None = None) -> AsyncClient:
        """Return a tenant's client, which tries again as clients do.

        Args:
            tenant: whose key it has.
            small_window: whether it takes little that is not read yet.
            router: the only router that it knows; None for all.
        """
        name = f"{tenant} {small_window} {router}"
        if name not in self._clients:
            known = self.stack.routers if router is None else [self.stack.routers[router]]
            targets = [f"127.0.0.1:{each.port}" for each in known]
            retry = RetryPolicy(max_attempts=20, max_delay=0.3)
            options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)) if small_window else ()
            self._clients[name] = AsyncClient(targets, api_key=self._keys[tenant], retry=retry, channel_options=options)
        return self._clients[name]

    def ids(self, count: int) -> list[int]:
        """Return a prompt that nobody sent before."""
        return [self._random.randrange(10, 250) for _ in range(count)]

    async def ask(
        self,
        tenant: str,
        *,
        prompt: int = USUAL_PROMPT,
        output: int = USUAL_OUTPUT,
        request_class: RequestClass = RequestClass.STANDARD,
        ids: Sequence[int] | None = None,
        text: str = "",
        pause: float = 0.0,
        small_window: bool = False,
        **sampling: Any,
    ) -> str:
        """Send a request, read its stream, and return its id.

        Args:
            tenant: who asks.
            prompt: tokens of a new prompt, where `ids` are not given.
            output: tokens to make.
            request_class: its class.
            ids: the prompt.
            text: the prompt as text.
            pause: seconds before the stream is read on after its first event.
            small_window: whether the client takes little that is not read yet.
            sampling: further sampling parameters.
        """
        asked = text or (list(ids) if ids is not None else self.ids(prompt))
        stream = self.client(tenant, small_window=small_window).stream(
            "demo",
            asked,
            options=GenerateOptions(request_class=request_class),
            max_tokens=output,
            ignore_eos=True,
            temperature=0.0,
            **sampling,
        )
        async for _ in stream:
            if pause:
                await asyncio.sleep(pause)
                pause = 0.0
        return stream.request_id

    def background(self, tenant: str, count: int, **asked: Any) -> list[asyncio.Task[str]]:
        """Send requests, and let them run."""
        tasks = [asyncio.ensure_future(self.ask(tenant, **asked)) for _ in range(count)]
        self._tasks += tasks
        return tasks

    async def running(self, count: int) -> None:
        """Wait until so many sequences hold slots."""
        replicas = self.stack.replicas
        await until(lambda: sum(each.table.sequences for each in replicas if not each.stopped) >= count)

    async def waiting(self, count: int) -> None:
        """Wait until so many requests wait."""
        pools = [router.pools["demo"] for router in self.stack.routers]
        await until(lambda: sum(choice.state.waits for pool in pools for choice in pool.choices.values()) >= count)

    async def idle(self) -> None:
        """Wait until the router knows that nothing runs."""
        records = self.stack.routers[0].pools["demo"].replicas
        await until(lambda: all(not each.sequences and not each.kv_tokens for each in records.records.values()))

    async def seen_running(self, count: int) -> None:
        """Wait until the router knows that so many sequences hold slots, and that their prompts are computed."""
        records = self.stack.routers[0].pools["demo"].replicas

        def known() -> bool:
            seen = records.records.values()
            return sum(each.sequences for each in seen) >= count and not any(each.prefill_tokens for each in seen)

        await until(known)

    def busiest(self) -> int:
        """Return the number of the replica with most sequences."""
        return max(range(len(self.stack.replicas)), key=lambda number: self.stack.replicas[number].table.sequences)

    async def prompts_of_two_homes(self) -> tuple[list[int], list[int]]:
        """Return two prompts that ran on different replicas."""
        found: dict[str, list[int]] = {}
        while len(found) < 2:
            ids = self.ids(200)
            explained = await self.explain(await self.ask("acme", ids=ids, output=2))
            found.setdefault(explained.calls[0].choices[0].attempts[0].replica_id, ids)
        first, second = found.values()
        return first, second

    async def warm(self) -> None:
        """Run some ordinary requests, one at a time."""
        for _ in range(5):
            await self.ask("calm")

    async def explain(self, request_id: str) -> Explanation:
        """Explain a request as soon as its record is there."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(NotFoundError):
                    return await self.client("ops").explain(request_id)
                await asyncio.sleep(0.05)

    async def slowest(self, request_ids: Sequence[str]) -> str:
        """Return the request that took longest."""
        found = [await self.explain(request_id) for request_id in request_ids]
        return max(found, key=lambda each: each.calls[-1].total_time).calls[-1].request_id

    async def close(self) -> None:
        """Stop what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()


@contextlib.asynccontextmanager
async def running_scene(folder: Path, plant: Plant) -> AsyncIterator[Scene]:
    """Run the cluster of a plant."""
    keys_file = folder / "keys.toml"
    keys = {tenant: add_key(keys_file, KeyPlan(tenant)) for tenant in TENANTS}
    keys["ops"] = add_key(keys_file, KeyPlan("ops", role="operator"))
    pool = {**sim_pool(**{"base_ms": STEP_MS, "per_token_us": 10.0, **plant.sim}), **plant.pool}
    sections = {"auth": {"keys_file": str(keys_file)}, "tenants": plant.tenants}
    async with running_stack(
        folder,
        routers=plant.routers,
        replicas=plant.replicas,
        pools={"demo": pool},
        queue={**FAST_QUEUE, **plant.queue},
        sections=sections,
        engine=plant.engine,
        router=plant.router,
    ) as stack:
        scene = Scene(stack, keys)
        try:
            if plant.warm:
                await scene.warm()
            yield scene
        finally:
            await scene.close()
