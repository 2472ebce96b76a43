"""The autoscaler on real parts: Redis, Ray Serve's external scaler, replicas that come and go under load."""

from __future__ import annotations

import asyncio
import inspect
import time
import urllib.request
from typing import Any

import pytest

from penstock.client import AsyncClient, Decision, FinishReason, RequestClass, Sampling
from penstock.client import GenerateOptions as Options
from tests.support.running import ClusterThread
from tests.support.waiting import Deadline, TimedOutError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOKENS = 40
RATE = 8.0
"""Requests per second that keep several replicas busy."""


class Load:
    """Sends requests at a rate that may change; every one must end well."""

    def __init__(self, client: AsyncClient, pool: str) -> None:
        self.rate = 1.0
        self._pool = pool
        self.ended = 0
        self.failed: list[BaseException] = []
        self.replicas: set[str] = set()
        self._client = client
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send until cancelled."""
        due = time.monotonic()
        while True:
            task = asyncio.create_task(self._one())
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            due = max(due + 1 / self.rate, time.monotonic() - 0.5)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self) -> None:
        try:
            done = await self._client.generate(
                self._pool, "What is Penstock?", Sampling(max_tokens=TOKENS, ignore_eos=True),
                options=Options(request_class=RequestClass.INTERACTIVE), timeout=600,
            )  # fmt: skip
            [choice] = done.choices
            assert (FinishReason.LENGTH, TOKENS) == (choice.finish_reason, len(choice.token_ids))
            assert 1 == len(done.receipt.attempts)
            self.replicas |= {attempt.replica_id for attempt in done.receipt.attempts}
            self.ended += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells of it
            self.failed.append(error)

    async def finish(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._open, return_exceptions=True)


async def follow(cluster: ClusterThread, pool: str, *, top: int) -> tuple[Decision, Decision, Load]:
    """Raise the load until there are `top` replicas, and lower it until there is one; returns the decisions then."""
    async with AsyncClient(cluster.target()) as client:
        load = Load(client, pool)
        sending = asyncio.create_task(load.run())

        async def reached(replicas: int) -> Decision:
            found: list[Decision] = []

            async def there() -> bool:
                assert not load.failed, load.failed[0]
                found[:] = (await client.decisions(pool, limit=1)).decisions
                return any((one.ready, one.starting, one.replicas) == (replicas, 0, replicas) for one in found)

            await waited(there, lambda: f"{found}")
            return found[0]

        try:
            await reached(1)
            load.rate = RATE
            busy = await reached(top)
            # Whose links come up may answer a moment later.
            await waited(lambda: len(load.replicas) >= top, lambda: f"{load.replicas}")
            # Trickles on, so that those who have to go have streams to finish.
            load.rate = RATE / 4
            quiet = await reached(1)
        finally:
            sending.cancel()
            await load.finish()
    assert [] == load.failed
    assert len(load.replicas) >= top
    return busy, quiet, load


@pytest.mark.cluster
async def test_replicas_follow_the_load_and_no_request_fails(engines: ClusterThread) -> None:
    # A request takes 0.8 s, four run at a time: a replica serves five a second.
    busy, quiet, load = await follow(engines, "elastic", top=3)

    assert load.ended > 30
    assert {"demand", "fallback"} & {step.name for step in busy.steps}
    assert (1, 0) == (quiet.ready, quiet.starting)
    # What was measured, not what the settings guess.
    assert busy.cold_start not in (0.0, 4.0)
    page = metrics(engines)
    assert 'penstock_autoscaler_leading{pool="elastic"} 1.0' in page
    assert 'penstock_autoscaler_replicas_target{pool="elastic"} 1.0' in page


@pytest.mark.cluster
async def test_a_standby_starts_sleeps_and_serves_when_it_is_needed(engines: ClusterThread) -> None:
    async with AsyncClient(engines.target()) as client:
        asleep: list[Decision] = []

        async def rests() -> bool:
            asleep[:] = (await client.decisions("dozing", limit=1)).decisions
            return any((one.replicas, one.ready, one.standby, one.standing_by) == (1, 1, 1, 1) for one in asleep)

        await waited(rests, lambda: f"{asleep}")
        made = (await client.decisions("dozing", limit=1000)).decisions
    # A standby that has just started takes work until it is told to rest. It is never counted among those that serve.
    assert {1} == {one.replicas for one in made if one.number <= asleep[0].number}
    busy, _, load = await follow(engines, "dozing", top=2)
    assert (0, 0) == (busy.standby, busy.standing_by)
    assert len(load.replicas) == 2
    async with AsyncClient(engines.target()) as client:
        await waited(rests, lambda: f"{asleep}")


@pytest.mark.cluster
async def test_an_autoscaler_that_is_killed_is_replaced_and_goes_on(engines: ClusterThread) -> None:
    cluster = engines.cluster
    async with AsyncClient(engines.target()) as client:
        [before] = (await client.decisions("elastic", limit=1)).decisions
        killed = cluster.autoscaler
        assert killed is not None
        killed.kill()
        await waited(lambda: not killed.running)
        await asyncio.to_thread(engines.run, cluster.restart_autoscaler())

        async def goes_on() -> bool:
            [newest] = (await client.decisions("elastic", limit=1)).decisions
            return newest.fence > before.fence and newest.replicas == 1

        await waited(goes_on)


async def waited(condition: Any, tell: Any = lambda: "") -> None:
    deadline = Deadline(90.0)
    while True:
        holds = condition()
        if asyncio.iscoroutine(holds):
            holds = await holds
        if holds:
            return
        if deadline.passed():
            raise TimedOutError(tell() or inspect.getsource(condition).strip())
        await asyncio.sleep(0.1)


def metrics(cluster: ClusterThread) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.cluster.autoscaler_port}/metrics", timeout=5) as reply:
        text: str = reply.read().decode()
    return text
