"""What was last seen of a cluster, and the rows that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.client import ClusterStatus, Decision, LineEntry, PoolStatus, ReplicaState, ReplicaStatus
from router.commands.top.rates import Rates
from router.commands.top.view import Page, View


@dataclass(frozen=True, slots=True)
class Looked:
    """The newest answers of a router."""

    status: ClusterStatus
    target: str
    rates: Rates = field(default_factory=Rates)
    clock_ms: int = 0
    """Time of the status, milliseconds since the Unix epoch."""
    decisions: tuple[Decision, ...] = ()
    """Decisions of the chosen pool, newest first; empty unless they are looked at."""
    trouble: str = ""
    """Reason why there is no newer answer; empty while answers come."""
    silent_s: float = 0.0
    """Seconds since the last answer."""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica with its rate."""

    replica: ReplicaStatus
    tokens: float | None
    """Output tokens per second."""
    itl_slo_s: float | None
    """Tightest SLO of the inter-token latency."""


_STATES = (ReplicaState.DRAINING, ReplicaState.STARTING, ReplicaState.READY, ReplicaState.STANDBY)
_ORDERS: dict[str, Callable[[ReplicaRow], float]] = {
    "state": lambda row: _STATES.index(row.replica.state),
    "running": lambda row: -row.replica.running,
    "kv": lambda row: -row.replica.kv_usage,
    "step": lambda row: -row.replica.step_time,
    "itl": lambda row: -row.replica.itl_p95,
    "tokens": lambda row: -(row.tokens or 0.0),
    "up": lambda row: -row.replica.up_time,
}


def line_key(entry: LineEntry) -> str:
    """Return the key of a row of the line."""
    return f"{entry.request_class.name}/{entry.tenant}"


def pool_of(looked: Looked, view: View) -> PoolStatus | None:
    """Return the chosen pool; the first one where that is gone, and None where there are no pools."""
    pools = looked.status.pools
    return next((each for each in pools if each.name == view.pool), pools[0] if pools else None)


def links_down(pool: PoolStatus) -> dict[str, list[str]]:
    """Return the reasons why links of the router that answered are down, with the replicas that each keeps away."""
    reasons: dict[str, list[str]] = {}
    for each in pool.replicas:
        if not each.linked and each.link_error:
            reasons.setdefault(each.link_error, []).append(each.replica_id)
    return reasons


def replica_rows(looked: Looked, pool: PoolStatus, view: View) -> list[ReplicaRow]:
    """Return a pool's replicas in the order of the view."""
    slo = pool.operating_point.itl_p95_s
    rows = [ReplicaRow(each, looked.rates.tokens(pool, each.replica_id), slo) for each in pool.replicas]
    if order := _ORDERS.get(view.sort):
        # Python's sort keeps the order by name among equal rows.
        rows.sort(key=order)
    return rows[::-1] if view.turned else rows


def row_keys(looked: Looked, view: View) -> Sequence[str]:
    """Return the keys of the rows of the view's page, in the order shown."""
    pool = pool_of(looked, view)
    if pool is None:
        return ()
    match view.page:
        case Page.REPLICAS:
            return [row.replica.replica_id for row in replica_rows(looked, pool, view)]
        case Page.DECISIONS:
            return [str(each.number) for each in looked.decisions]
        case Page.LINE:
            return [line_key(each) for each in pool.line]
