"""What a cluster's accounts of GPU time say."""

from __future__ import annotations

import asyncio

from penstock.client import AsyncClient
from tests.chaos.cluster import FAST, ChaosCluster
from tests.chaos.history import Bill


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
    await asyncio.sleep(2 * FAST["queue"]["heartbeat_s"] + 0.1)
    after = await read_bill(cluster)
    return Bill(*(now - then for now, then in zip(after, before, strict=True)))
