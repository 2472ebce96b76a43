"""Starts replicas that ended by themselves again, as Ray Serve does."""

from __future__ import annotations

import asyncio

from tests.chaos.cluster import ChaosCluster

LOOK_S = 0.1
ENDED_ITSELF = 1
"""The exit status of a replica whose engine died; a signal's is negative."""


async def keep(cluster: ChaosCluster, over: asyncio.Event) -> None:
    """Note ends, and start replicas again if the plan says so, until told to stop; what is starting then, gets up."""
    starting: dict[str, asyncio.Task[None]] = {}
    while not over.is_set():
        for name, node in cluster.nodes.items():
            node.note_end()
            ended = cluster.plan.kept and name in cluster.replicas and not node.running
            if ended and (name not in starting or starting[name].done()):
                if name in starting:
                    # A start that was killed is tried again, as here.
                    starting[name].exception()
                starting[name] = asyncio.create_task(cluster.start_node(name), name=f"keep-{name}")
        await asyncio.sleep(LOOK_S)
    await asyncio.gather(*starting.values())


def deaths(cluster: ChaosCluster, since: float) -> int:
    """Count the engines that died since a moment in monotonic seconds."""
    ends = (node for node in (*cluster.nodes.values(), *cluster.dead) if node.process.status == ENDED_ITSELF)
    return sum(node.died_at is not None and node.died_at >= since for node in ends)
