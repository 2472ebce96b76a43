"""What can be done to the cells of a pool on a Redis Cluster; see `faults.Fault`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from redis.crc import key_slot
from redis.exceptions import RedisError

from cluster.queue.cells.names import cell_name
from cluster.queue.redis.keys import pool_keys
from tests.chaos.cluster import POOL, ChaosCluster
from tests.chaos.masters import Masters
from tests.support.waiting import until

LOOK_S = 0.05


def slot_of(cell: int) -> int:
    """Return the slot of a cell of the pool."""
    return key_slot(pool_keys(cell_name(POOL, cell))[0].encode())


def _masters(cluster: ChaosCluster) -> Masters:
    if cluster.masters is None:
        raise ValueError("the scenario's cluster has no Redis Cluster")
    return cluster.masters


async def owner_of(cluster: ChaosCluster, cell: int) -> str:
    """Return the name of the server that has a cell."""
    return await _masters(cluster).owner(slot_of(cell))


@dataclass(frozen=True, slots=True)
class KillOwner:
    """SIGKILL of the server that has a cell."""

    cell: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        name = await owner_of(cluster, self.cell)
        cluster.victim = name
        cluster.kill(name)

    async def proof(self, cluster: ChaosCluster) -> str:
        node = cluster.nodes[cluster.victim]
        return "" if node.running else f"{cluster.victim} with cell {self.cell} is gone"


@dataclass(frozen=True, slots=True)
class StartOwner:
    """The server that was killed starts again, with what is in its file."""

    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        await cluster.start_node(cluster.victim)

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"{cluster.victim} answers" if await _masters(cluster).answers(cluster.victim) else ""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Nothing done: shows that a follower of the server that was killed has the cell in time, and serves it."""

    cell: int
    within_s: float
    """Longest time since the server was killed."""
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        masters, key = _masters(cluster), pool_keys(cell_name(POOL, self.cell))[0]

        async def serves() -> bool:
            await asyncio.sleep(LOOK_S)
            owner = await masters.owner(slot_of(self.cell))
            with contextlib.suppress(RedisError, OSError):
                return owner != cluster.victim and await masters.call(owner, "EXISTS", key) is not None
            return False

        await until(serves, self.within_s)
        cluster.notes["away_s"] = time.monotonic() - (cluster.nodes[cluster.victim].died_at or 0.0)

    async def proof(self, cluster: ChaosCluster) -> str:
        owner = await owner_of(cluster, self.cell)
        role, *_ = await _masters(cluster).call(owner, "ROLE")
        return f"{owner} has cell {self.cell} after {cluster.notes['away_s']:.1f} s" if role == b"master" else ""


@dataclass(frozen=True, slots=True)
class PauseOwner:
    """SIGSTOP of the server that has a cell: its connections stay up and say nothing."""

    cell: int
    heals: bool = False

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.victim = await owner_of(cluster, self.cell)
        cluster.pause(cluster.victim)

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"{cluster.victim} is stopped" if cluster.state(cluster.victim) == "T" else ""


@dataclass(frozen=True, slots=True)
class ContinueOwner:
    """SIGCONT of it."""

    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        cluster.resume(cluster.victim)

    async def proof(self, cluster: ChaosCluster) -> str:
        return f"{cluster.victim} answers" if await _masters(cluster).answers(cluster.victim) else ""


@dataclass(frozen=True, slots=True)
class MoveSlot:
    """A cell's slot moves to another server, key by key."""

    cell: int
    to: str
    heals: bool = True

    async def apply(self, cluster: ChaosCluster) -> None:
        masters = _masters(cluster)
        cluster.notes["moved"] = await masters.move(slot_of(self.cell), self.to)

    async def proof(self, cluster: ChaosCluster) -> str:
        moved = cluster.notes.get("moved", 0)
        if await owner_of(cluster, self.cell) != self.to or not moved:
            return ""
        return f"{moved:.0f} keys of cell {self.cell} are at {self.to}"
