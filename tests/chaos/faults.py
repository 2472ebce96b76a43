"""What can be done to a cluster, and how each of these shows that it really happened."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from tests.chaos.cluster import ChaosCluster
from tests.chaos.node import lives
from tests.chaos.proxy import NOTHING, Toxic


class Fault(Protocol):
    """Something done to a cluster, or taken back."""

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
        gone = bool(cluster.victims) and not any(lives(process) for process in cluster.victims)
        return f"{len(cluster.victims)} gone" if gone else ""


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
        if node.running or any(lives(process) for process in node.family):
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
