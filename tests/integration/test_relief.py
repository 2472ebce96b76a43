"""Where no more replicas may come: the autoscaler says what is given up, and routers refuse what would be late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.client import AsyncClient, Decision, PenstockClientError, RequestClass, RetryPolicy, Sampling
from penstock.client import GenerateOptions as Options
from penstock.values.steps import Relief
from tests.integration.conftest import PATIENCE
from tests.support.running import ClusterThread, running_cluster

pytestmark = [pytest.mark.engine, pytest.mark.cluster, pytest.mark.timeout(300)]

TOKENS = 40
"""A request takes 0.8 s and four run at a time, so the one replica serves five a second."""
PER_S = 12.0
TTFT_S = 2.0
SETTLED = 24
"""So many refusals, and the line that came before the first of them is gone, or nearly so, and both routers refuse."""
ENOUGH = 60
"""Requests let in after that."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    """A cluster whose one pool has one simulated replica and may have no more."""
    sections: dict[str, Any] = {
        "cluster": {"state_dir": str(tmp_path_factory.mktemp("cluster"))},
        "router": {"port": 0, "processes": 2, "drain_s": 2.0},
        "replica": {"drain_s": 2.0},
        # Relief ends by itself after three ticks, and a tick may take a second on a busy machine.
        "autoscaler": {"tick_s": 2.0, "lease_s": 6.0},
        "pools": {
            "full": {
                "engine": "sim",
                "model": "demo",
                "sim": {"base_ms": 20.0, "per_token_us": 1.0, "max_num_seqs": 4},
                "slo": {"interactive": {"ttft_p99_s": TTFT_S}},
                "autoscale": {"mode": "active", "max_replicas": 1, **PATIENCE},
            }
        },
    }
    with running_cluster(sections) as running:
        yield running


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


async def test_who_is_let_in_keeps_the_slo_and_the_rest_is_told_when_to_retry(full: ClusterThread) -> None:
    async with AsyncClient(full.target(), retry=RetryPolicy(max_attempts=1)) as client:
        crowd = Crowd(client)

        async def relieved(relief: Relief) -> Decision:
            async with asyncio.timeout(90):
                while True:
                    newest = (await client.decisions("full", limit=1)).decisions
                    if newest and newest[0].relief is relief:
                        return newest[0]
                    assert not crowd.failed, crowd.failed[0]
                    await asyncio.sleep(0.1)

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
        # Without refusals nearly nobody would, without a margin for the estimate's error half of them. The rest is for
        # machines that stand still for a second.
        assert kept >= 0.8, sorted(crowd.ttft_s)[-10:]
        # Nothing is refused for good.
        await relieved(Relief.NONE)
        done = await client.generate("full", "Still there?", Sampling(max_tokens=4), timeout=60)
        assert done.choices
