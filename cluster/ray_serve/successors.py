"""Replicas of a Ray cluster that another one replaces. Pure.

On Kubernetes a changed pod template makes a second Ray cluster beside the first, and the first is deleted some time
after the second is ready, whatever still runs on it. So the replicas of the older cluster get no new work as soon as
those of a newer one can take it: one of the older gives way for each newer one that takes work, and all of them once
the newer ones are as many as the pool wants. If the newer cluster goes away the older one takes work again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """What counts of one replica."""

    replica_id: str
    cluster: str
    """Name of its Ray cluster; empty for none that anything replaces."""
    started_at: float
    """Start of the cluster, seconds since the epoch."""
    ready: bool
    """Whether it says that it takes work."""
    reached: bool
    """Whether this router can give it work. A successor that it can't reach replaces nothing."""


def superseded(standings: Iterable[Standing], wanted: int | None) -> frozenset[str]:
    """Return the replicas that get no new work.

    Args:
        standings: all replicas of a pool.
        wanted: number of replicas that the pool is to have; None where a newer cluster must have as many as the older.
    """
    clusters: dict[str, list[Standing]] = defaultdict(list)
    for each in standings:
        if each.cluster:
            clusters[each.cluster].append(each)
    # A head that was replaced has a later session. The cluster is as old as its oldest replica says.
    newest_first = sorted(
        clusters, key=lambda name: (min(each.started_at for each in clusters[name]), name), reverse=True
    )
    found: set[str] = set()
    working = 0
    for name in newest_first:
        ready = sorted(each.replica_id for each in clusters[name] if each.ready)
        needed = len(ready) if wanted is None else min(wanted, len(ready))
        gives_way = len(ready) if working >= max(1, needed) else working
        found.update(ready[:gives_way])
        left = frozenset(ready[gives_way:])
        working += sum(each.reached and each.replica_id in left for each in clusters[name])
    return frozenset(found)
