"""What can be done to Redis; see `faults.Fault`."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import RedisError

from tests.chaos.cluster import ChaosCluster


@dataclass(frozen=True, slots=True)
class FlushAll:
    """Redis forgets everything."""

    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.redis("FLUSHALL")

    async def proof(self, cluster: ChaosCluster) -> str:
        calls = await _calls(cluster, "flushall")
        return f"{calls} FLUSHALL in INFO commandstats" if calls else ""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Redis hangs for some seconds: DEBUG SLEEP."""

    seconds: float
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.redis_nowait("DEBUG", "SLEEP", str(self.seconds))

    async def proof(self, cluster: ChaosCluster) -> str:
        try:
            calls = await _calls(cluster, "debug")
        except (RedisError, OSError):
            # It sleeps.
            return ""
        return f"{calls} DEBUG in INFO commandstats" if calls else ""


@dataclass(frozen=True, slots=True)
class Configure:
    """CONFIG SET, such as maxmemory 1."""

    name: str
    value: str
    heals: bool = False
    error: str = ""
    """The error that shows it worked, as INFO errorstats names it, such as OOM."""

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.redis("CONFIG", "SET", self.name, self.value)

    async def proof(self, cluster: ChaosCluster) -> str:
        if not self.error:
            return f"{self.name} is {self.value}"
        return await _errors(cluster, self.error)


@dataclass(frozen=True, slots=True)
class Demote:
    """REPLICAOF: the Redis becomes a read-only follower of a server that isn't there."""

    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.redis("REPLICAOF", "127.0.0.1", "1")

    async def proof(self, cluster: ChaosCluster) -> str:
        return await _errors(cluster, "READONLY") or await _errors(cluster, "MASTERDOWN")


@dataclass(frozen=True, slots=True)
class Promote:
    """REPLICAOF NO ONE."""

    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.redis("REPLICAOF", "NO", "ONE")

    async def proof(self, cluster: ChaosCluster) -> str:
        info = await cluster.redis("INFO", "replication")
        return "its role is master" if info.get("role") == "master" else ""


@dataclass(frozen=True, slots=True)
class TruncateAof:
    """The last bytes of the append-only file are gone, as after a power cut. Only while Redis is down."""

    bytes: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        path = cluster.aof()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(max(0, size - self.bytes))
        cluster.notes["aof_cut"] = size - path.stat().st_size

    async def proof(self, cluster: ChaosCluster) -> str:
        cut = cluster.notes.get("aof_cut", 0)
        return f"{cut:.0f} bytes cut off" if cut else ""


@dataclass(frozen=True, slots=True)
class FillDisk:
    """Redis can't write its file, as with a full disk: it refuses writes with MISCONF."""

    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        # A folder in the place of the file; space can't be taken from Redis alone.
        (cluster.folder / "redis" / "dump.rdb").mkdir()
        await cluster.redis("CONFIG", "SET", "save", "3600 1")
        await cluster.redis("BGSAVE")

    async def proof(self, cluster: ChaosCluster) -> str:
        return await _errors(cluster, "MISCONF")


@dataclass(frozen=True, slots=True)
class EmptyDisk:
    """Redis can write its file again."""

    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        (cluster.folder / "redis" / "dump.rdb").rmdir()
        await cluster.redis("BGSAVE")

    async def proof(self, cluster: ChaosCluster) -> str:
        info = await cluster.redis("INFO", "persistence")
        good = info.get("rdb_last_bgsave_status") == "ok" and not info.get("rdb_bgsave_in_progress")
        return "its last save is ok" if good else ""


async def _calls(cluster: ChaosCluster, command: str) -> int:
    info = await cluster.redis("INFO", "commandstats")
    return int(info.get(f"cmdstat_{command}", {}).get("calls", 0))


async def _errors(cluster: ChaosCluster, error: str) -> str:
    info = await cluster.redis("INFO", "errorstats")
    count = info.get(f"errorstat_{error}", {}).get("count", 0)
    return f"Redis answered {error} {count} times" if count else ""
