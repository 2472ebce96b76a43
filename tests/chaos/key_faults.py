"""Keys that are revoked, as something that is done to a cluster, and what must hold of them in the end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from penstock.client import NewKey, PenstockClientError, RegistryEdit, UnauthenticatedError
from tests.chaos.adapter_faults import ACKNOWLEDGED, client_of, edited, ends_of
from tests.chaos.cluster import POOL, ChaosCluster

LIVELY_S = 1.0
"""A stream that goes on has output within this time."""
LONG = 30_000
"""Output tokens of a stream that ends with its key only."""


@dataclass(slots=True)
class KeyedStream:
    """A stream of a key at one router."""

    router: str
    heard_at: float = 0.0
    """Monotonic seconds of the last output."""
    end: str | None = None
    """Code and reason of its end; None while it goes on."""

    async def run(self, cluster: ChaosCluster, key: str) -> None:
        """Read it to its end."""
        try:
            async with (
                client_of(cluster, self.router, key) as client,
                client.stream(POOL, [1, 2, 3], max_tokens=LONG, ignore_eos=True) as stream,
            ):
                async for _ in stream:
                    self.heard_at = time.monotonic()
            self.end = "OK"
        except PenstockClientError as error:
            self.end = f"{error.code.name} {error.reason}".strip()

    @property
    def goes_on(self) -> bool:
        """Whether it has output."""
        return self.end is None and time.monotonic() - self.heard_at < LIVELY_S


@dataclass(slots=True)
class KeyInUse:
    """A key and what it has begun."""

    made: NewKey
    streams: list[KeyedStream] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UseKeys:
    """Keys are made, and each begins a stream at every router."""

    router: str
    count: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        """Make the keys; see `Fault`, as for all below."""
        for number in range(self.count):
            async with client_of(cluster, self.router) as admin:
                key = KeyInUse(await admin.create_key(f"tenant-{number}", timeout=10.0))
            cluster.keys.append(key)
            for router in cluster.routers:
                stream = KeyedStream(router)
                key.streams.append(stream)
                cluster.calls[f"{key.made.id} {router}"] = asyncio.create_task(stream.run(cluster, key.made.key))

    async def proof(self, cluster: ChaosCluster) -> str:
        streams = [stream for key in cluster.keys for stream in key.streams]
        return f"{len(streams)} streams" if all(stream.goes_on for stream in streams) else ""


@dataclass(frozen=True, slots=True)
class RevokeKeys:
    """The keys are revoked with what they have begun, each by a call of its own, one shortly after the other."""

    router: str
    gap_s: float
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        for number, key in enumerate(cluster.keys):
            cluster.calls[key.made.id] = asyncio.create_task(self._revoke(cluster, key, number * self.gap_s))

    async def _revoke(self, cluster: ChaosCluster, key: KeyInUse, pause_s: float) -> str:
        await asyncio.sleep(pause_s)
        return await edited(cluster, self.router, RegistryEdit("key", key.made.id, None, end_streams=True))

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"{sum(not cluster.calls[key.made.id].done() for key in cluster.keys)} calls have not ended"


@dataclass(frozen=True, slots=True)
class KeysWhole:
    """Nothing done: shows that each key is refused at every router and that its streams have ended, or that it is as it
    was. One whose revocation succeeded is refused.
    """

    dead: str = ""
    """Router that died: streams there have ended in any case."""
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        pass

    async def proof(self, cluster: ChaosCluster) -> str:
        calls = [cluster.calls[key.made.id] for key in cluster.keys]
        if not all(call.done() for call in calls):
            cluster.doubt = "a call has not ended"
            return ""
        valid = [await self._valid(cluster, key) for key in cluster.keys]
        acknowledged = [call.result() == ACKNOWLEDGED for call in calls]
        streams = [[stream.end for stream in key.streams] for key in cluster.keys]
        cluster.doubt = f"valid {valid}; calls: {ends_of(calls)}; streams: {streams}"
        if None in valid or any(said and still for said, still in zip(acknowledged, valid, strict=True)):
            return ""
        for key, still in zip(cluster.keys, valid, strict=True):
            if any(self._is_torn(stream, still=bool(still)) for stream in key.streams):
                return ""
        for key in cluster.keys:
            # Nobody reads on: what is left of them now is too much.
            for router in cluster.routers:
                cluster.calls[f"{key.made.id} {router}"].cancel()
        return f"{valid.count(False)} revoked, {valid.count(True)} as they were; calls: {ends_of(calls)}"

    async def _valid(self, cluster: ChaosCluster, key: KeyInUse) -> bool | None:
        """Return whether a key is as it was; None where only some say so."""
        found = set[bool]()
        for router in cluster.routers:
            async with client_of(cluster, router) as admin:
                listed = bool(await admin.registry("key", name=key.made.id, timeout=5.0))
            async with client_of(cluster, router, key.made.key) as client:
                try:
                    await client.generate(POOL, [1, 2, 3], max_tokens=1, timeout=5.0)
                    found |= {listed, True}
                except UnauthenticatedError:
                    found |= {listed, False}
        return found.pop() if len(found) == 1 else None

    def _is_torn(self, stream: KeyedStream, *, still: bool) -> bool:
        if stream.router == self.dead:
            return stream.end is None
        return not stream.goes_on if still else stream.end != "UNAUTHENTICATED KEY_REVOKED"
