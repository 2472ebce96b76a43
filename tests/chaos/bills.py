"""What a cluster's accounts of GPU time say."""

from __future__ import annotations

from collections import defaultdict

from cluster.redis.keys import pool_key
from penstock.client import AsyncClient
from tests.chaos.cluster import POOL, ChaosCluster
from tests.chaos.history import Bill
from tests.support.waiting import until

BEATS = 2
BEATS_S = 30.0


async def read_bill(cluster: ChaosCluster) -> Bill:
    """Ask a router for all that is known so far."""
    async with AsyncClient(cluster.targets) as client:
        lines = (await client.costs()).lines
    return Bill(
        sum(line.total.gpu_seconds for line in lines),
        sum(part.gpu_seconds for line in lines for part in line.parts),
        sum(line.requests.gpu_seconds for line in lines),
        sum(line.lost.gpu_seconds for line in lines),
    )


async def bill_since(cluster: ChaosCluster, before: Bill) -> Bill:
    """Return what was added since, once what has ended is in the accounts: after two heartbeats of everybody."""
    leases: defaultdict[bytes, set[bytes]] = defaultdict(set)

    async def heard() -> bool:
        live = await _leases(cluster)
        for name, lease in live.items():
            leases[name].add(lease)
        # The first one is of a heartbeat before.
        return all(len(leases[name]) > BEATS for name in live)

    await until(heard, BEATS_S)
    after = await read_bill(cluster)
    return Bill(*(now - then for now, then in zip(after, before, strict=True)))


async def _leases(cluster: ChaosCluster) -> dict[bytes, bytes]:
    """Return the end of each router's and replica's lease, which every heartbeat moves."""
    found: dict[bytes, bytes] = {}
    for kind in ("routers", "replicas"):
        flat = await cluster.redis("ZRANGE", pool_key(POOL, kind), "0", "-1", "WITHSCORES")
        found.update(zip(flat[::2], flat[1::2], strict=True))
    return found
