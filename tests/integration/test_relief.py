"""Where no more replicas may come: the autoscaler says what is given up, and routers refuse what would be late."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from cluster.control.decision import Relief
from router.client import AsyncClient, Decision, PenstockClientError, RequestClass, RetryPolicy, Sampling
from router.client import GenerateOptions as Options
from tests.support.running import ClusterThread

pytestmark = [pytest.mark.engine, pytest.mark.cluster, pytest.mark.timeout(300)]

TOKENS = 40
"""A request takes 0.8 s and four run at a time, so the one replica serves five a second."""
PER_S = 12.0
TTFT_S = 2.0
SETTLED = 8
"""So many refusals, and the line that came before the first of them is gone, or nearly so."""
ENOUGH = 60
"""Requests let in after that."""


@dataclass
class Crowd:
    """Sends more than the pool can serve, and notes what became of it."""

    client: AsyncClient
    refused: list[PenstockClientError] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    """Of those let in while requests were refused, by the client's clock."""
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Send until cancelled."""
        due = time.monotonic()
        while True:
            task = asyncio.create_task(self._one())
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            due = max(due + 1 / PER_S, time.monotonic() - 0.5)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self) -> None:
        counts = len(self.refused) >= SETTLED
        try:
            done = await self.client.generate(
                "full", "What is Penstock?", Sampling(max_tokens=TOKENS, ignore_eos=True),
                options=Options(request_class=RequestClass.INTERACTIVE), timeout=120,
            )  # fmt: skip
        except PenstockClientError as error:
            (self.refused if error.reason == "NOT_IN_TIME" else self.failed).append(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells of it
            self.failed.append(error)
        else:
            first = done.receipt.time_to_first_token
            assert first is not None
            if counts:
                self.ttft_s.append(first)

    async def finish(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._open, return_exceptions=True)


async def test_who_is_let_in_keeps_the_slo_and_the_rest_is_told_when_to_retry(engines: ClusterThread) -> None:
    async with AsyncClient(engines.target(), retry=RetryPolicy(max_attempts=1)) as client:
        crowd = Crowd(client)

        async def newest() -> Decision:
            return (await client.decisions("full", limit=1)).decisions[0]

        async def relieved(relief: Relief) -> Decision:
            async with asyncio.timeout(90):
                while (found := await newest()).relief is not relief:
                    assert not crowd.failed, crowd.failed[0]
                    await asyncio.sleep(0.1)
            return found

        sending = asyncio.create_task(crowd.run())
        try:
            shedding = await relieved(Relief.SHED)
            async with asyncio.timeout(90):
                while len(crowd.ttft_s) < ENOUGH:
                    assert not crowd.failed, crowd.failed[0]
                    await asyncio.sleep(0.1)
        finally:
            sending.cancel()
            await crowd.finish()
        assert not crowd.failed
        # It says so, and why no replica comes.
        assert 1 == shedding.replicas < shedding.needed
        assert {"relief_shed", "max_replicas"} <= {step.name for step in shedding.steps}
        # Whoever is refused hears which promise it is refused for, and when to come again.
        [bound] = {error.details.metadata["bound"] for error in crowd.refused}
        assert "ttft_p99_s" == bound
        assert all(error.retry_after for error in crowd.refused)
        kept = sum(first <= TTFT_S for first in crowd.ttft_s) / len(crowd.ttft_s)
        assert kept >= 0.9, sorted(crowd.ttft_s)[-10:]
        # Nothing is refused for good.
        await relieved(Relief.NONE)
        done = await client.generate("full", "Still there?", Sampling(max_tokens=4), timeout=60)
        assert done.choices
