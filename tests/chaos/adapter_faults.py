"""Adapters that are put, as something that is done to a cluster, and what must hold of them in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client import (
    AsyncClient,
    GenerateOptions,
    InvalidArgumentError,
    PenstockClientError,
    RegistryEdit,
    RetryPolicy,
)
from tests.chaos.cluster import POOL, ChaosCluster
from tests.chaos.node import HOST

WAIT_S = 20.0
"""How long a put waits for the replicas."""
ACKNOWLEDGED = ""
"""End of a call without an error."""


def client_of(cluster: ChaosCluster, router: str, key: str | None = None) -> AsyncClient:
    """Return a client of one router, without a proxy and without a second try."""
    address = f"{HOST}:{cluster.nodes[router].facts['port']}"
    return AsyncClient(address, api_key=key, allow_plaintext_key=True, retry=RetryPolicy(1))


@dataclass(frozen=True, slots=True)
class PutAdapters:
    """Adapters are put, each by a call of its own that waits until it is loaded. They load one after the other."""

    router: str
    watcher: str
    """Router that is asked what loads."""
    names: tuple[str, ...]
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        """Begin the calls; see `Fault`, as for all below."""
        source = cluster.folder / "adapter"
        source.mkdir(exist_ok=True)
        (source / "adapter_config.json").write_text("{}", encoding="utf-8")
        (source / "adapter_model.safetensors").write_bytes(b"weights")
        for name in self.names:
            edit = RegistryEdit("adapter", name, {"pool": POOL, "source": str(source)})
            cluster.calls[name] = asyncio.create_task(edited(cluster, self.router, edit))

    async def proof(self, cluster: ChaosCluster) -> str:
        async with client_of(cluster, self.watcher) as client:
            entries = await client.registry("adapter", timeout=5.0)
        states = sorted(f"{each.state} at {each.replica}" for entry in entries for each in entry.replicas)
        return ", ".join(states) if any(state.startswith("loading") for state in states) else ""


async def edited(cluster: ChaosCluster, router: str, edit: RegistryEdit) -> str:
    """Change an entry; return how the call ended."""
    try:
        async with client_of(cluster, router) as client:
            result = await client.edit_registry([edit], wait=WAIT_S, timeout=WAIT_S + 10.0)
    except PenstockClientError as error:
        return f"{error.code.name} {error.reason}: {error}".strip()
    late = [each.replica for each in result.adapters if each.state != "loaded"]
    return f"late or failed at {', '.join(late)}" if late else ACKNOWLEDGED


def ends_of(calls: Sequence[asyncio.Task[str]]) -> str:
    """Return how calls ended, and how many in the same way."""
    ends = Counter(call.result() or "OK" for call in calls)
    return ", ".join(f"{count} {end}" for end, count in ends.items())


@dataclass(frozen=True, slots=True)
class AdaptersWhole:
    """Nothing done: shows that each adapter is at every replica and usable at every router, or nowhere. One whose put
    succeeded is everywhere. No replica has files of others.
    """

    names: tuple[str, ...]
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        pass

    async def proof(self, cluster: ChaosCluster) -> str:
        if not all(cluster.calls[name].done() for name in self.names):
            cluster.doubt = "a call has not ended"
            return ""
        cluster.doubt = ""
        there = {name: await _there(cluster, name) for name in self.names}
        acknowledged = [name for name in self.names if cluster.calls[name].result() == ACKNOWLEDGED]
        ends = ends_of([cluster.calls[name] for name in self.names])
        cluster.doubt += f"; copies {_copies(cluster)}; calls: {ends}"
        if None in there.values() or not all(there[name] for name in acknowledged):
            return ""
        everywhere = sum(map(bool, there.values()))
        if any(copies != everywhere for copies in _copies(cluster)):
            return ""
        return f"{everywhere} everywhere, {len(there) - everywhere} nowhere; calls: {ends}"


async def _there(cluster: ChaosCluster, name: str) -> bool | None:
    """Return whether an adapter is everywhere; None where it is at some places only."""
    found = set[bool]()
    for router in cluster.routers:
        async with client_of(cluster, router) as client:
            entries = await client.registry("adapter", name=name, timeout=5.0)
            listed = name in (await client.get_model(POOL, timeout=5.0)).lora_adapters
            states = {each.replica: each.state for entry in entries for each in entry.replicas}
            whole = dict.fromkeys(cluster.replicas, "loaded")
            usable = await _usable(client, name)
        if listed and usable and states == whole:
            found.add(True)
        elif not listed and not usable and not entries:
            found.add(False)
        else:
            cluster.doubt += f"{name} at {router}: listed {listed}, usable {usable}, {states}; "
            return None
    return found.pop() if len(found) == 1 else None


async def _usable(client: AsyncClient, name: str) -> bool:
    try:
        await client.generate(POOL, [1, 2, 3], options=GenerateOptions(lora_adapter=name), max_tokens=1, timeout=5.0)
    except InvalidArgumentError:
        return False
    return True


def _copies(cluster: ChaosCluster) -> list[int]:
    """Count the copies of adapters that each replica has on its disk, those of its dead predecessors too."""
    homes = [cluster.folder / "state" / name / "adapters" for name in cluster.replicas]
    return [len(list(home.glob("replica-*/*"))) for home in homes]
