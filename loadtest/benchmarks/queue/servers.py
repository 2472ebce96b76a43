"""A Redis Cluster of several servers for one run, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.redis_server import find_server

_SLOTS = 16_384
_PATIENCE_S = 30.0
_LOOK_S = 0.05


@contextlib.asynccontextmanager
async def redis_cluster(servers: int, folder: Path, binary: str = "") -> AsyncIterator[list[redis.asyncio.Redis]]:
    """Run so many primaries, each with as many slots, while the block runs. Yield a client of each."""
    program, ports = binary or find_server(), [_free_port() for _ in range(servers)]
    processes, clients = list[ChildProcess](), list[redis.asyncio.Redis]()
    try:
        for port in ports:
            home = folder / str(port)
            home.mkdir(parents=True)
            command = [program, "--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes"]
            command += ["--dir", str(home), "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
            processes.append(await ChildProcess.start(f"redis-{port}", command, home / "redis.log"))
            clients.append(redis.asyncio.Redis(host="127.0.0.1", port=port, protocol=2, decode_responses=True))
        async with asyncio.timeout(_PATIENCE_S):
            await _join(clients, ports)
        yield clients
    finally:
        for client in clients:
            await client.aclose()
        for process in processes:
            await process.stop(grace_s=10.0)


def cluster_url(clients: list[redis.asyncio.Redis]) -> str:
    """Return the URL of a cluster, as in the setting redis.url."""
    ports = [client.connection_pool.connection_kwargs["port"] for client in clients]
    return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)


async def _join(clients: list[redis.asyncio.Redis], ports: list[int]) -> None:
    bounds = [number * _SLOTS // len(clients) for number in range(len(clients) + 1)]
    for number, client in enumerate(clients):
        await _answer(client)
        # One by one, because Redis 6.2 takes no ranges.
        await _call(client, "CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        await _call(client, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for port in ports[1:]:
        await _call(clients[0], "CLUSTER", "MEET", "127.0.0.1", port)
    for client in clients:
        whole = False
        while not whole:
            # A server tells nobody when it knows the others.
            await asyncio.sleep(_LOOK_S)
            whole = await _whole(client, len(clients))


async def _whole(client: redis.asyncio.Redis, servers: int) -> bool:
    found = await _call(client, "CLUSTER", "INFO")
    fields = found if isinstance(found, dict) else dict(line.split(":") for line in found.split() if ":" in line)
    return (fields["cluster_state"], int(fields["cluster_known_nodes"])) == ("ok", servers)


async def _call(client: redis.asyncio.Redis, *words: object) -> Any:
    return await client.execute_command(*words)  # type: ignore[no-untyped-call]  # missing in the stubs


async def _answer(client: redis.asyncio.Redis) -> None:
    while True:
        try:
            await client.ping()
            return
        except RedisError:
            # It does not listen yet.
            await asyncio.sleep(_LOOK_S)


def _free_port() -> int:
    """Return a port that is free, and so is the one of the cluster's bus."""
    while True:
        with socket.socket() as found, socket.socket() as bus:
            found.bind(("127.0.0.1", 0))
            port: int = found.getsockname()[1]
            if port >= 55_535:
                continue
            with contextlib.suppress(OSError):
                bus.bind(("127.0.0.1", port + 10_000))
                return port
