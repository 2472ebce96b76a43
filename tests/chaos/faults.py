"""What can be done to a cluster, and how each of these shows that it really happened."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
from redis.exceptions import RedisError

from tests.chaos.cluster import ChaosCluster
from tests.chaos.proxy import NOTHING, Toxic


class Fault(Protocol):
    """Is something done to a cluster, or taken back."""

    @property
    def heals(self) -> bool:
        """Whether this ends another fault."""
        ...

    async def apply(self, cluster: ChaosCluster) -> None:
        """Do it."""
        ...

    async def proof(self, cluster: ChaosCluster) -> str:
        """Say what shows that it happened; "" while nothing does. Asked repeatedly, for some seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL."""

    node: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        """Kill it; see `Fault`, as for all below."""
        cluster.kill(self.node)

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[self.node]
        if node.running or cluster.state(self.node) not in ("", "Z") or node.orphans():
            return ""
        others = f", with its {len(node.family)} further processes" if node.family else ""
        return f"pid {node.pid} is gone{others}"


@dataclass(frozen=True, slots=True)
class KillEngine:
    """SIGKILL of a real engine's processes; their replica is spared, and ends by itself."""

    node: str
    part: str
    """Part of their names: Worker is a rank, EngineCore its scheduler."""
    most: int = 64
    """Of several ranks so many."""
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.victims = cluster.signal_engine(self.node, self.part, self.most, signal.SIGKILL)

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[self.node]
        if not cluster.victims or any(process.is_running() for process in cluster.victims):
            return ""
        return (
            "" if node.running else f"{len(cluster.victims)} gone, then the replica with status {node.process.status}"
        )


@dataclass(frozen=True, slots=True)
class PauseEngine:
    """SIGSTOP of one of a real engine's processes: the others and their replica are well, and there are no tokens."""

    node: str
    part: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.victims = cluster.signal_engine(self.node, self.part, 1, signal.SIGSTOP)

    async def proof(self, cluster: ChaosCluster) -> str:
        ranks = sum(self.part in process.name() for process in cluster.nodes[self.node].family)
        stopped = [process for process in cluster.victims if process.status() == psutil.STATUS_STOPPED]
        return f"{len(stopped)} of {ranks} in state T in /proc" if stopped and cluster.nodes[self.node].running else ""


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing done: shows that a replica has found its engine dead and ended itself, engine and all."""

    node: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.nodes[self.node].note_end()

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[self.node]
        if node.running or any(process.is_running() for process in cluster.victims):
            return ""
        return f"the replica ended with status {node.process.status}, and its engine with it"


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM; the process drains and ends by itself."""

    node: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.terminate(self.node)

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[self.node]
        if node.running:
            return ""
        return f"pid {node.pid} ended with status 0" if node.process.status == 0 else ""


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP: the process is there and does nothing."""

    node: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.pause(self.node)

    async def proof(self, cluster: ChaosCluster) -> str:
        family = cluster.nodes[self.node].look()
        stopped = cluster.state(self.node) == "T" and all(p.status() == psutil.STATUS_STOPPED for p in family)
        return f"{1 + len(family)} in state T in /proc" if stopped else ""


@dataclass(frozen=True, slots=True)
class Continue:
    """SIGCONT."""

    node: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.resume(self.node)

    async def proof(self, cluster: ChaosCluster) -> str:
        state = cluster.state(self.node)
        return f"state {state} in /proc" if state in ("R", "S", "D") else ""


@dataclass(frozen=True, slots=True)
class Start:
    """A new process in the place of one that ended."""

    node: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.start_node(self.node)

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[self.node]
        return f"pid {node.pid} is ready" if node.running else ""


@dataclass(frozen=True, slots=True)
class RunsFrom:
    """Nothing done: shows from which folder a process has its code."""

    node: str
    folder: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.nodes[self.node].look()

    async def proof(self, cluster: ChaosCluster) -> str:
        folder = Path(psutil.Process(cluster.nodes[self.node].pid).cwd()).name
        return f"in {folder}" if folder == self.folder else ""


@dataclass(frozen=True, slots=True)
class Poison:
    """A toxic on a link, such as "router-0>redis" or "router-0>replica-1"."""

    link: str
    toxic: Toxic
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        proxy, peer = cluster.link(self.link)
        await proxy.poison(self.toxic, peer)

    async def proof(self, cluster: ChaosCluster) -> str:
        proxy, peer = cluster.link(self.link)
        seen = proxy.counters(peer)
        found = {
            "bytes held": seen.held if self.toxic.blackhole else 0,
            "connections refused": seen.refused if self.toxic.refuse else 0,
            "chunks delayed": seen.delayed if self.toxic.latency_s or self.toxic.bytes_per_s else 0,
            "slices": seen.slices if self.toxic.slice_bytes else 0,
        }
        return ", ".join(f"{count} {what}" for what, count in found.items() if count)


@dataclass(frozen=True, slots=True)
class Heal:
    """The end of a toxic."""

    link: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        proxy, peer = cluster.link(self.link)
        await (proxy.poison(NOTHING, peer) if peer else proxy.heal())

    async def proof(self, cluster: ChaosCluster) -> str:
        proxy, peer = cluster.link(self.link)
        return f"{proxy.counters(peer).bytes} bytes passed"


@dataclass(frozen=True, slots=True)
class Reset:
    """RST on every connection of a link."""

    link: str
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        proxy, peer = cluster.link(self.link)
        proxy.reset(peer)

    async def proof(self, cluster: ChaosCluster) -> str:
        proxy, peer = cluster.link(self.link)
        return f"{proxy.counters(peer).resets} connections reset" if proxy.counters(peer).resets else ""


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


@dataclass(frozen=True, slots=True)
class Exhaust:
    """No file descriptors are left for further connections of a process."""

    node: str
    connections: int = 20
    """That are tried then."""
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        process = psutil.Process(cluster.nodes[self.node].pid)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), process.rlimit(psutil.RLIMIT_NOFILE)[1]))
        await cluster.knock(self.node, self.connections)

    async def proof(self, cluster: ChaosCluster) -> str:
        process = psutil.Process(cluster.nodes[self.node].pid)
        limit, used = process.rlimit(psutil.RLIMIT_NOFILE)[0], process.num_fds()
        return f"{used} of {limit} descriptors are in use" if used >= limit else ""


@dataclass(frozen=True, slots=True)
class Relieve:
    """There are file descriptors again."""

    node: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        process = psutil.Process(cluster.nodes[self.node].pid)
        hard = process.rlimit(psutil.RLIMIT_NOFILE)[1]
        process.rlimit(psutil.RLIMIT_NOFILE, (hard, hard))

    async def proof(self, cluster: ChaosCluster) -> str:
        limit = psutil.Process(cluster.nodes[self.node].pid).rlimit(psutil.RLIMIT_NOFILE)[0]
        return f"{limit} descriptors"


async def _calls(cluster: ChaosCluster, command: str) -> int:
    info = await cluster.redis("INFO", "commandstats")
    return int(info.get(f"cmdstat_{command}", {}).get("calls", 0))


async def _errors(cluster: ChaosCluster, error: str) -> str:
    info = await cluster.redis("INFO", "errorstats")
    count = info.get(f"errorstat_{error}", {}).get("count", 0)
    return f"Redis answered {error} {count} times" if count else ""
