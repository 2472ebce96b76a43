"""Pools that come and go, as something that is done to a cluster, and what must hold of them in the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import psutil

from cluster.queue.redis.keys import pool_keys
from penstock.client import PenstockClientError, RegistryEdit, RolloutState
from tests.chaos.adapter_faults import client_of, edited
from tests.chaos.cluster import ChaosCluster
from tests.chaos.node import lives
from tests.support.waiting import until

EXTRA = "extra"
"""The pool that comes and goes."""
READY_S = 60.0
LEFT_OVER = ("entries", "line", "owners", "slots", "routers", "replicas")
"""Keys of a pool that hold nothing once it has gone."""


def settings(replicas: int, start_s: float = 0.0) -> dict[str, Any]:
    """Describe the pool."""
    return {"engine": "sim", "replicas": replicas, "sim": {"base_ms": 20.0, "max_num_seqs": 8, "start_s": start_s}}


def processes(cluster: ChaosCluster) -> list[psutil.Process]:
    """Return the processes of the pool's replicas, whoever started them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        ours = any(word.startswith(str(cluster.folder)) for word in words)
        if ours and "deployments.process" in words and EXTRA in words and lives(process):
            found.append(process)
    return found


async def state_of(cluster: ChaosCluster, router: str) -> str:
    """Return the state of the pool as a router tells it."""
    async with client_of(cluster, router) as client:
        entries = await client.registry("pool", name=EXTRA, timeout=5.0)
    return entries[0].state if entries else "unknown"


async def serves(cluster: ChaosCluster, replicas: int) -> bool:
    """Return whether the pool serves at every router, with so many replicas and processes."""
    found = [len(processes(cluster))]
    for router in cluster.routers:
        async with client_of(cluster, router) as client:
            try:
                answer = await client.generate(EXTRA, [1, 2, 3], max_tokens=2, ignore_eos=True, timeout=5.0)
                status = await client.cluster_status(timeout=5.0)
            except PenstockClientError as error:
                cluster.doubt = f"{router}: {error}"
                return False
        found += [len(pool.replicas) for pool in status.pools if pool.name == EXTRA]
        found += [replicas] * (len(answer.choices[0].token_ids) == 2)
    cluster.doubt = f"replicas: {found}"
    return found == [replicas] * (1 + 2 * len(cluster.routers))


@dataclass(frozen=True, slots=True)
class AddPool:
    """The pool is added. `waits`: it serves before anything else happens."""

    router: str
    replicas: int
    start_s: float = 0.0
    waits: bool = True
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        """Add it; see `Fault`, as for all below."""
        edit = RegistryEdit("pool", EXTRA, {"settings": settings(self.replicas, self.start_s)})
        await until(lambda: _taken(cluster, self.router, edit), READY_S)
        if self.waits:
            await until(lambda: serves(cluster, self.replicas), READY_S)

    async def proof(self, cluster: ChaosCluster) -> str:
        found = len(processes(cluster))
        return f"{found} processes, {await state_of(cluster, self.router)}" if found else ""


async def _taken(cluster: ChaosCluster, router: str, edit: RegistryEdit) -> bool:
    # Until the launcher has looked, routers refuse it.
    cluster.doubt = await edited(cluster, router, edit)
    return not cluster.doubt


@dataclass(frozen=True, slots=True)
class RollPool:
    """The pool has a roll-out, whose record stays."""

    router: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        async with client_of(cluster, self.router) as client:
            await client.start_rollout(EXTRA, {"sim": {"max_num_seqs": 4}}, judge_s=0.0, timeout=5.0)

            async def ended() -> bool:
                found = await client.rollout(EXTRA, timeout=5.0)
                return found is not None and found.state is RolloutState.DONE

            await until(ended, READY_S)

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"revisions {await _revisions(cluster, self.router)}"


async def _revisions(cluster: ChaosCluster, router: str) -> list[int]:
    async with client_of(cluster, router) as client:
        found = await client.rollout(EXTRA, timeout=5.0)
    return [one.revision for one in found.replicas] if found is not None else []


@dataclass(frozen=True, slots=True)
class RemovePool:
    """Each router gets a long stream of the pool, and the pool is removed."""

    router: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        for router in cluster.routers:
            cluster.calls[f"stream {router}"] = asyncio.create_task(self._stream(cluster, router))
        await until(lambda: self._all_run(cluster), READY_S)
        cluster.doubt = await edited(cluster, self.router, RegistryEdit("pool", EXTRA, {"removed": True}))

    async def _all_run(self, cluster: ChaosCluster) -> bool:
        async with client_of(cluster, self.router) as client:
            status = await client.cluster_status(timeout=5.0)
        return [len(cluster.routers)] == [pool.running for pool in status.pools if pool.name == EXTRA]

    async def _stream(self, cluster: ChaosCluster, router: str) -> str:
        try:
            async with client_of(cluster, router) as client:
                await client.generate(EXTRA, [1, 2, 3], max_tokens=30_000, ignore_eos=True, timeout=120.0)
        except PenstockClientError as error:
            return f"{error.code.name} {error.reason} {error}".strip()
        return "OK"

    async def proof(self, cluster: ChaosCluster) -> str:
        state = await state_of(cluster, self.router)
        return f"{state}, {len(processes(cluster))} processes" if state == "draining" else ""


@dataclass(frozen=True, slots=True)
class KillLauncher:
    """SIGKILL of the launcher. Its replicas follow when they have drained, or while they start."""

    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.kill("launcher")

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes["launcher"]
        if node.running or cluster.state("launcher") not in ("", "Z"):
            return ""
        return f"pid {node.pid} is gone, {len(processes(cluster))} of its processes are left"


@dataclass(frozen=True, slots=True)
class PoolServes:
    """Nothing done: shows that the pool serves everywhere with its own replicas and no others. `fresh`: that they have
    the settings of the pool and no revision of an earlier one.
    """

    router: str
    replicas: int
    fresh: bool = False
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        pass

    async def proof(self, cluster: ChaosCluster) -> str:
        if not await serves(cluster, self.replicas) or await state_of(cluster, self.router) != "serving":
            return ""
        async with client_of(cluster, self.router) as client:
            found = await client.rollout(EXTRA, timeout=5.0)
            limits = [
                replica.batch_limit
                for pool in (await client.cluster_status(timeout=5.0)).pools
                if pool.name == EXTRA
                for replica in pool.replicas
            ]
        cluster.doubt = f"roll-out {found.state if found is not None else None}, limits {limits}"
        if self.fresh and (found is not None or limits != [8] * self.replicas):
            return ""
        return f"{self.replicas} replicas at every router, limits {limits}"


@dataclass(frozen=True, slots=True)
class PoolGone:
    """Nothing done: shows that nothing of the pool is left, at no router, as no process and in no key."""

    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        pass

    async def proof(self, cluster: ChaosCluster) -> str:
        states = [await state_of(cluster, router) for router in cluster.routers]
        known = []
        for router in cluster.routers:
            async with client_of(cluster, router) as client:
                known += [one.name for one in (await client.cluster_status(timeout=5.0)).pools]
        left = [key.rsplit("}:", 1)[1] for key in pool_keys(EXTRA) if await cluster.redis("EXISTS", key)]
        left = [key for key in left if key in LEFT_OVER]
        calls = [call for name, call in cluster.calls.items() if name.startswith("stream ")]
        ends = [call.result() if call.done() else "goes on" for call in calls]
        cluster.doubt = f"{states}, pools {known}, {len(processes(cluster))} processes, keys {left}, streams {ends}"
        whole = {"gone"} == set(states) and EXTRA not in known and not processes(cluster) and not left
        return f"nothing is left; streams: {ends}" if whole and "goes on" not in ends else ""
