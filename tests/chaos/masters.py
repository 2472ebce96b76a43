"""A Redis Cluster under test: masters, each with as many slots, and with one follower or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from cluster.queue.cells.names import cell_name
from cluster.queue.redis.keys import pool_keys
from tests.chaos.node import HOST, redis_client
from tests.cluster.queue.servers import find_binary
from tests.support.ports import free_port
from tests.support.waiting import until

SLOTS = 16_384
_SIZES = {b"hash": "HLEN", b"zset": "ZCARD", b"string": "STRLEN"}


Ranges = tuple[tuple[int, int, str], ...]
"""First slot, last slot, and the server that owns them."""


class Masters:
    """The servers, named redis-0 and so on; followers come after the masters, in their order."""

    def __init__(self, number: int, *, followers: bool = False) -> None:
        self.ports = {f"redis-{index}": free_port() for index in range(number * (1 + followers))}
        self._first = tuple(self.ports)[:number]
        """Those that are masters at the start."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the servers."""
        return tuple(self.ports)

    @property
    def url(self) -> str:
        """Names all servers."""
        return "redis+cluster://" + ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def command(self, name: str, folder: Path) -> tuple[str, ...]:
        """Return the command that starts a server, again with what is in its file."""
        binary = find_binary("7.0")
        if binary is None:
            raise RuntimeError("there is no redis-server 7.0 on this machine")
        home = folder / name
        home.mkdir(exist_ok=True)
        return (
            *(binary, "--port", str(self.ports[name]), "--bind", HOST, "--dir", str(home), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"),
            # One that is away must not stop the others: it may have no follower, or this takes time.
            *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
            *("--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"),
            # A busy machine is late, and a failover must not fail for it.
            *("--cluster-replica-validity-factor", "0"),
        )

    @contextlib.asynccontextmanager
    async def client(self, name: str) -> Any:
        """Open a client of one server."""
        client = redis_client(self.ports[name], 2.0)
        try:
            yield client
        finally:
            await client.aclose()

    async def call(self, name: str, *command: object) -> Any:
        """Send one command to one server."""
        async with self.client(name) as client:
            return await client.execute_command(*command)

    async def answers(self, name: str) -> bool:
        """Return whether a server answers."""
        with contextlib.suppress(RedisError, OSError):
            return bool(await self.call(name, "PING"))
        return False

    async def join(self) -> None:
        """Make one cluster of servers that have just started for the first time."""
        bounds = [index * SLOTS // len(self._first) for index in range(len(self._first) + 1)]
        for index, name in enumerate(self._first):
            await self.call(name, "CLUSTER", "ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1)
        for index, name in enumerate(self.names):
            await self.call(name, "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for name in self.names[1:]:
            await self.call(self.names[0], "CLUSTER", "MEET", HOST, self.ports[name])

        async def whole() -> bool:
            infos = [await self.call(name, "CLUSTER", "INFO") for name in self.names]
            texts = [info if isinstance(info, str) else info.decode() for info in infos]
            known = f"cluster_known_nodes:{len(self.names)}"
            return all("cluster_state:ok" in text and known in text for text in texts)

        await until(whole, 30)
        followers = self.names[len(self._first) :]
        for master, follower in zip(self._first, followers, strict=bool(followers)):
            await self.call(follower, "CLUSTER", "REPLICATE", await self.call(master, "CLUSTER", "MYID"))
        await until(lambda: self._follow(followers), 30)

    async def _follow(self, names: Sequence[str]) -> bool:
        """Return whether these servers have all that their masters have."""
        roles = await asyncio.gather(*(self.call(name, "ROLE") for name in names))
        return all(b"slave" == role[0] and b"connected" == role[3] for role in roles)

    async def owner(self, slot: int) -> str:
        """Return the server that owns a slot."""
        return _owner(await self._ranges(), slot)

    async def _ranges(self) -> Ranges:
        """Return who owns what, as most of the servers that answer see it: one that was away is late to learn."""
        answers = await asyncio.gather(*(self._seen_by(name) for name in self.names))
        seen = Counter(answer for answer in answers if answer)
        if not seen:
            raise RuntimeError("no server of the cluster answers")
        return seen.most_common(1)[0][0]

    async def _seen_by(self, name: str) -> Ranges:
        names = {port: each for each, port in self.ports.items()}
        with contextlib.suppress(RedisError, OSError):
            slots = await self.call(name, "CLUSTER", "SLOTS")
            return tuple(sorted((first, last, names[int(owner[1])]) for first, last, owner, *_ in slots))
        return ()

    async def move(self, slot: int, target: str) -> int:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does. Return the number of keys."""
        source = await self.owner(slot)
        ids = {name: await self.call(name, "CLUSTER", "MYID") for name in (source, target)}
        await self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        await self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        moved = 0
        while keys := await self.call(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            await self.call(source, "MIGRATE", HOST, self.ports[target], "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        others = {name for _, _, name in await self._ranges()} - {source, target}
        for name in (target, source, *sorted(others)):
            await self.call(name, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        return moved

    async def sizes(self, pool: str, cells: int) -> dict[str, int]:
        """Count what a pool's keys hold in all its cells, by their short names; what is empty is left out.

        Two round trips to each server: clients and proxies live on this loop, and must not wait for it.
        """
        ranges, keys = await self._ranges(), defaultdict[str, list[str]](list)
        for cell in range(cells):
            for key in pool_keys(cell_name(pool, cell)):
                keys[_owner(ranges, key_slot(key.encode()))].append(key)
        found = Counter[str]()
        for part in await asyncio.gather(*(self._sizes(name, own) for name, own in keys.items())):
            found.update(part)
        return {name: size for name, size in found.items() if size}

    async def _sizes(self, name: str, keys: Sequence[str]) -> Counter[str]:
        async with self.client(name) as client:
            kinds = client.pipeline(transaction=False)
            for key in keys:
                kinds.type(key)
            sizes, counted = client.pipeline(transaction=False), []
            for key, kind in zip(keys, await kinds.execute(), strict=True):
                if kind in _SIZES:
                    sizes.execute_command(_SIZES[kind], key)
                    counted.append(key.rsplit("}:", 1)[1])
            found = Counter[str]()
            for key, size in zip(counted, await sizes.execute(), strict=True):
                found[key] += size
            return found


def _owner(ranges: Ranges, slot: int) -> str:
    name = next((name for first, last, name in ranges if first <= slot <= last), None)
    if name is None:
        raise RuntimeError(f"nobody owns slot {slot}")
    return name
