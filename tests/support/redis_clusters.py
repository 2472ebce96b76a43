"""A Redis Cluster of three primaries and one replica, all real and on this machine."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.crc import key_slot

from tests.cluster.queue.servers import require_binary, wait_answer
from tests.support.ports import free_port
from tests.support.waiting import until_sync

SLOTS = 16_384


@dataclass
class RedisCluster:
    """A running cluster."""

    ports: list[int]
    """Of the primaries; the first one owns the key's slot, and has the replica."""
    replica_port: int
    slot: int
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Names a server that does not own the slot."""
        return f"redis+cluster://127.0.0.1:{self.ports[1]}"

    @property
    def primary(self) -> subprocess.Popen[bytes]:
        """The process that owns the slot at first."""
        return self.processes[self.ports[0]]

    def replica(self) -> redis.Redis:
        """Open a client of its replica, to be closed by the caller."""
        return redis.Redis(port=self.replica_port, protocol=2)

    def call(self, port: int, *words: object) -> object:
        """Send one command to one server."""
        with contextlib.closing(redis.Redis(port=port, protocol=2, decode_responses=True)) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def role(self, port: int) -> list[object]:
        """Return what a server says that it is."""
        found = self.call(port, "ROLE")
        assert isinstance(found, list)
        return found

    def name(self, port: int) -> str:
        """Return a server's own id."""
        return str(self.call(port, "CLUSTER", "MYID"))

    def keys(self, port: int) -> list[str]:
        """Return the names of all keys that one server has."""
        found = self.call(port, "KEYS", "*")
        assert isinstance(found, list)
        return found

    def begin_move(self, source: int, target: int) -> None:
        """Have the slot on its way, and its first key there."""
        self.call(target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.name(source))
        self.call(source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.name(target))
        self._move(source, target, 1)

    def end_move(self, source: int, target: int) -> None:
        """Have the whole slot at its new owner."""
        while self._move(source, target, 100):
            pass
        for port in (target, source, *self.ports):
            self.call(port, "CLUSTER", "SETSLOT", self.slot, "NODE", self.name(target))

    def _move(self, source: int, target: int, count: int) -> int:
        keys = self.call(source, "CLUSTER", "GETKEYSINSLOT", self.slot, count)
        assert isinstance(keys, list)
        if keys:
            self.call(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)
        return len(keys)


@contextlib.contextmanager
def running_redis_cluster(key: str, silent_ms: int = 500) -> Iterator[RedisCluster]:
    """Run one in a folder of its own; a primary is replaced after so long a silence."""
    binary = require_binary("7.0")
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    *primaries, replica = (free_port() for _ in range(4))
    cluster = RedisCluster(primaries, replica, key_slot(key.encode()))
    try:
        for port in (*primaries, replica):
            home = folder / str(port)
            home.mkdir()
            command = (
                *(binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home)),
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(silent_ms)),
                *("--repl-diskless-sync-delay", "0"),
                # A busy machine is late, and a failover must not fail for it.
                *("--cluster-replica-validity-factor", "0"),
            )
            cluster.processes[port] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in cluster.processes:
            with contextlib.closing(redis.Redis(port=port, protocol=2)) as client:
                wait_answer(client)
        _join(cluster)
        yield cluster
    finally:
        for process in cluster.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _join(cluster: RedisCluster) -> None:
    first, second, third = cluster.ports
    bounds = (0, SLOTS // 3, 2 * SLOTS // 3, SLOTS)
    ranges = [[low, high - 1] for low, high in itertools.pairwise(bounds)]
    own = next(index for index, (low, high) in enumerate(ranges) if low <= cluster.slot <= high)
    for port, (low, high) in zip((first, second, third), [ranges[own], *ranges[:own], *ranges[own + 1 :]], strict=True):
        cluster.call(port, "CLUSTER", "ADDSLOTSRANGE", low, high)
    for epoch, port in enumerate(cluster.processes, start=1):
        cluster.call(port, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
        if port != first:
            cluster.call(port, "CLUSTER", "MEET", "127.0.0.1", first)

    def met() -> bool:
        return all(str(cluster.call(port, "CLUSTER", "NODES")).count(" connected") == 4 for port in cluster.processes)

    until_sync(met, 20)
    cluster.call(cluster.replica_port, "CLUSTER", "REPLICATE", cluster.name(first))

    def whole() -> bool:
        states = [str(cluster.call(port, "CLUSTER", "INFO")) for port in cluster.processes]
        return all("cluster_state:ok" in state for state in states) and "connected" in str(
            cluster.role(cluster.replica_port)
        )

    until_sync(whole, 30)
