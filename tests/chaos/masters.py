"""A Redis Cluster under test: masters without followers, each with as many slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import RedisError

from cluster.queue.cells.names import cell_name
from cluster.queue.redis.keys import pool_keys
from tests.chaos.node import HOST
from tests.cluster.queue.servers import find_binary
from tests.support.ports import free_port
from tests.support.waiting import until

SLOTS = 16_384
_SIZES = {b"hash": "HLEN", b"zset": "ZCARD", b"string": "STRLEN"}


class Masters:
    """The servers, named redis-0 and so on."""

    def __init__(self, number: int) -> None:
        self.ports = {f"redis-{index}": free_port() for index in range(number)}

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
            # One that is away must not stop the others: it has no follower.
            *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
            *("--cluster-node-timeout", "2000"),
        )

    @contextlib.asynccontextmanager
    async def client(self, name: str) -> Any:
        """Open a client of one server."""
        client = redis.asyncio.Redis(host=HOST, port=self.ports[name], protocol=2, socket_timeout=2.0)
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
        bounds = [index * SLOTS // len(self.names) for index in range(len(self.names) + 1)]
        for index, name in enumerate(self.names):
            await self.call(name, "CLUSTER", "ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1)
            await self.call(name, "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for name in self.names[1:]:
            await self.call(self.names[0], "CLUSTER", "MEET", HOST, self.ports[name])

        async def whole() -> bool:
            infos = [await self.call(name, "CLUSTER", "INFO") for name in self.names]
            texts = [info if isinstance(info, str) else info.decode() for info in infos]
            known = f"cluster_known_nodes:{len(self.names)}"
            return all("cluster_state:ok" in text and known in text for text in texts)

        await until(whole, 30)

    async def owner(self, slot: int) -> str:
        """Return the server that owns a slot."""
        for name in self.names:
            with contextlib.suppress(RedisError, OSError):
                for first, last, (_, port, *_), *_ in await self.call(name, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(each for each, own in self.ports.items() if own == int(port))
        raise RuntimeError(f"nobody owns slot {slot}")

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
        for name in (target, source, *(name for name in self.names if name not in (source, target))):
            await self.call(name, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        return moved

    async def sizes(self, pool: str, cells: int) -> dict[str, int]:
        """Count what a pool's keys hold in all its cells, by their short names; what is empty is left out."""
        found = Counter[str]()
        parts = await asyncio.gather(*(self._sizes(key) for key in self._keys(pool, cells)))
        for name, size in parts:
            found[name] += size
        return {name: size for name, size in found.items() if size}

    def _keys(self, pool: str, cells: int) -> Iterator[str]:
        for cell in range(cells):
            yield from pool_keys(cell_name(pool, cell))

    async def _sizes(self, key: str) -> tuple[str, int]:
        name = await self.owner(key_slot(key.encode()))
        async with self.client(name) as client:
            kind = await client.type(key)
            size = int(await client.execute_command(_SIZES[kind], key)) if kind in _SIZES else 0
        return key.rsplit("}:", 1)[1], size
