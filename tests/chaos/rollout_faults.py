"""Roll-outs, as something that is done to a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client import AsyncClient, PenstockClientError, Rollout
from tests.chaos.cluster import POOL, ChaosCluster
from tests.chaos.node import HOST


@dataclass(frozen=True, slots=True)
class BeginRollout:
    """A roll-out begins."""

    router: str
    changes: Mapping[str, Any]
    judge_s: float = 1.0
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        async with _client(cluster, self.router) as client:
            await client.start_rollout(POOL, self.changes, judge_s=self.judge_s, timeout=5.0)

    async def proof(self, cluster: ChaosCluster) -> str:
        found = await _read(cluster, self.router)
        return f"the roll-out is {found.state}" if found is not None else ""


@dataclass(frozen=True, slots=True)
class RolloutEnds:
    """Nothing done: shows that a roll-out has ended, and that all replicas have the revision that it says."""

    router: str
    states: tuple[str, ...]
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        pass

    async def proof(self, cluster: ChaosCluster) -> str:
        if (found := await _read(cluster, self.router)) is None:
            return ""
        wanted = found.new_revision if found.state == "done" else found.old_revision
        here = [one.revision for one in found.replicas]
        cluster.doubt = f"{found.state}: {here}; {'; '.join(step.text for step in found.steps)}"
        whole = [wanted] * cluster.plan.replicas == here
        return f"{found.state}: {here}" if found.state in self.states and whole else ""


def _client(cluster: ChaosCluster, router: str) -> AsyncClient:
    return AsyncClient(f"{HOST}:{cluster.nodes[router].facts['port']}")


async def _read(cluster: ChaosCluster, router: str) -> Rollout | None:
    async with _client(cluster, router) as client:
        try:
            return await client.rollout(POOL, timeout=5.0)
        except PenstockClientError:
            return None
