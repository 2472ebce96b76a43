"""The tables of a picture: pools, replicas, decisions. Pure."""

from __future__ import annotations

import datetime

from penstock.client import Budget, Decision, DrainReason, LineEntry, PoolStatus, Relief, ReplicaState, TenantQuota
from router.commands.top.lines import Column, Look, Span, span
from router.commands.top.looked import ReplicaRow
from router.commands.top.rates import Rates
from router.commands.top.words import milliseconds, number, percent, span_of

FULL = 0.95
"""Used part of a KV cache from which it is marked."""
SILENT_S = 2.5
"""Age of a heartbeat from which it is marked; replicas beat once a second."""
DRAINS = {
    DrainReason.STOPPED: "its host stops it",
    DrainReason.ENGINE_LOST: "its engine is dead",
    DrainReason.SUPERSEDED: "a newer Ray cluster has taken over",
    None: "",
}


def pool_columns(rates: Rates) -> list[Column[PoolStatus]]:
    """Return the columns of the list of pools."""
    return [
        Column("POOL", lambda pool: span(pool.name, Look.BOLD), left=True, most=24),
        Column("WAIT", lambda pool: span(pool.waiting)),
        Column("RUN", lambda pool: span(pool.running)),
        Column("REPLICAS", _replicas),
        Column("STARTS", lambda pool: span(pool.starting or "", Look.WARN), 2),
        Column("DRAINS", lambda pool: span(_drains(pool) or "", Look.WARN), 3),
        Column("TOK/S", lambda pool: span(number(rates.tokens(pool)))),
        Column("REQ/S", lambda pool: span(number(rates.requests(pool))), 1),
        Column("IN SLO", lambda pool: attainment(pool, rates.met(pool)), 1),
        Column("PER HOUR", lambda pool: span(f"{pool.cost_per_hour:.2f}" if pool.cost_per_hour else ""), 4),
        Column("RELIEF", _relief, left=True),
    ]


def _ready(pool: PoolStatus) -> int:
    return sum(each.state is ReplicaState.READY for each in pool.replicas)


def _drains(pool: PoolStatus) -> int:
    return sum(each.state is ReplicaState.DRAINING for each in pool.replicas)


def _replicas(pool: PoolStatus) -> Span:
    ready = _ready(pool)
    standing = sum(each.state is ReplicaState.STANDBY for each in pool.replicas)
    text = f"{ready}/{pool.wanted_replicas}" + (f"+{standing}" if standing else "")
    return span(text, Look.PLAIN if ready >= pool.wanted_replicas else Look.WARN)


def attainment(pool: PoolStatus, part: float | None) -> Span:
    """Return a part of requests within their SLO. One below the promise has a mark."""
    if part is None or pool.operating_point.empty:
        return span(percent(part, 1))
    low = part < pool.operating_point.attainment
    return span(percent(part, 1) + ("!" if low else ""), Look.BAD if low else Look.GOOD)


def _relief(pool: PoolStatus) -> Span:
    if not pool.reachable:
        return span("queue not reachable", Look.BAD)
    return span("" if pool.relief is Relief.NONE else pool.relief.value, Look.WARN)


def replica_columns() -> list[Column[ReplicaRow]]:
    """Return the columns of the list of replicas."""
    return [
        Column("REPLICA", lambda row: span(row.replica.replica_id), left=True, most=28),
        Column("STATE", _state, left=True),
        Column("RUN/LIMIT", lambda row: span(f"{row.replica.running}/{row.replica.batch_limit}")),
        Column("INSIDE", lambda row: span(row.replica.engine_waiting or ""), 5),
        Column("KV", _kv),
        Column("STEP ms", lambda row: span(milliseconds(row.replica.step_time)), 1),
        Column("ITL95/SLO ms", itl),
        Column("TOK/S", lambda row: span(number(row.tokens)), 1),
        Column("UP", lambda row: span(span_of(row.replica.up_time)), 2),
        Column("STARTED IN", lambda row: span(span_of(row.replica.start_time)), 6),
        Column("GPUS", lambda row: span(row.replica.gpus or ""), 4),
        Column("TP", lambda row: span(row.replica.tensor_parallel_size or ""), 6),
        Column(
            "PER HOUR", lambda row: span(f"{row.replica.cost_per_hour:.2f}" if row.replica.cost_per_hour else ""), 4
        ),
        Column("MODEL", lambda row: span(row.replica.model), 5, left=True, most=32),
        Column("HARDWARE", lambda row: span(row.replica.hardware), 7, left=True, most=24),
        Column("ADDRESS", lambda row: span(row.replica.address), 8, left=True),
    ]


def _state(row: ReplicaRow) -> Span:
    replica = row.replica
    if replica.state is ReplicaState.DRAINING:
        why = "dead" if replica.drain_reason is DrainReason.ENGINE_LOST else "drains"
        return span(f"{why} {span_of(replica.draining_for)}", Look.BAD if why == "dead" else Look.WARN)
    if replica.heartbeat_age > SILENT_S:
        return span(f"silent {span_of(replica.heartbeat_age)}", Look.BAD)
    if not replica.linked:
        return span("no link", Look.BAD)
    if replica.state is ReplicaState.STANDBY:
        return span("asleep" if replica.asleep else "standby", Look.DIM)
    return span(
        "overload" if replica.overloaded else replica.state.value, Look.WARN if replica.overloaded else Look.GOOD
    )


def _kv(row: ReplicaRow) -> Span:
    return span(percent(row.replica.kv_usage), Look.WARN if row.replica.kv_usage >= FULL else Look.PLAIN)


def itl(row: ReplicaRow) -> Span:
    """Return the 95th percentile of the inter-token latency and its SLO; one above it has a mark."""
    found, slo = row.replica.itl_p95, row.itl_slo_s
    if slo is None:
        return span(milliseconds(found))
    late = found > slo
    return span(f"{milliseconds(found)}/{slo * 1e3:g}{'!' if late else ''}", Look.BAD if late else Look.PLAIN)


def line_columns(pool: PoolStatus) -> list[Column[LineEntry]]:
    quotas = {each.tenant: each for each in pool.quotas}
    budgets = {each.tenant: each for each in sorted(pool.budgets, key=used_part)}
    return [
        Column("CLASS", lambda one: span(one.request_class.name.lower()), left=True),
        Column("TENANT", lambda one: span(one.tenant), left=True, most=32),
        Column("WAIT", lambda one: span(one.waiting)),
        Column("OLDEST", lambda one: span(span_of(one.oldest_wait) if one.waiting else "")),
        Column("RUN", lambda one: span(one.running)),
        Column("WEIGHT", lambda one: span(number(one.weight) if one.waiting else ""), 2),
        Column("TOKENS AHEAD", lambda one: span(number(one.served_ahead) if one.waiting else ""), 3),
        Column("QUOTA", lambda one: limits(quotas.get(one.tenant), budgets.get(one.tenant)), 1, left=True),
    ]


def quota(found: TenantQuota | None) -> Span:
    """Return the limit that holds a tenant up, and for how long."""
    if found is None:
        return span("")
    if found.blocked_by:
        until = f" for {span_of(found.blocked_for)}" if found.blocked_for is not None else ""
        return span(f"{found.blocked_by.replace('_', ' ')} used up{until}", Look.WARN)
    return span(f"{found.refused} refused in a minute" if found.refused else "", Look.WARN)


def limits(found: TenantQuota | None, spent: Budget | None) -> Span:
    """Return what holds a tenant up, or will soon: its quota, or else its budget."""
    state = quota(found)
    if state.text or spent is None or not spent.warned:
        return state
    return span(f"{percent(used_part(spent))} of {period(spent)}'s budget", Look.WARN)


def used_part(one: Budget) -> float:
    """Return the used part of a budget; 1 or more is all of it."""
    return one.used / one.limit


def period(one: Budget) -> str:
    """Return the time that a budget is for."""
    return f"the {one.name.removeprefix('cost_per_')}"


def decision_columns() -> list[Column[Decision]]:
    """Return the columns of the list of decisions."""
    return [
        Column("NUMBER", lambda made: span(made.number)),
        Column("TIME", lambda made: span(time_of(made.at_ms))),
        Column("REPLICAS", lambda made: change(made), left=True),
        Column("NEEDED", lambda made: span(made.needed), 3),
        Column("READY", lambda made: span(f"{made.ready}+{made.starting}" if made.starting else made.ready), 2),
        Column("WAIT", lambda made: span(f"{made.waiting:.0f}"), 2),
        Column("IN SLO", lambda made: span(percent(made.attainment, 1)), 4),
        Column("MODE", lambda made: span(made.mode), 5, left=True),
        Column(
            "RELIEF", lambda made: span("" if made.relief is Relief.NONE else made.relief.value, Look.WARN), left=True
        ),
        Column("WHY", lambda made: why(made), left=True),
    ]


def time_of(at_ms: int) -> str:
    """Return the time of day in UTC."""
    return f"{datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC):%H:%M:%S}"


def change(made: Decision) -> Span:
    """Return what a decision did to the number of replicas."""
    if made.replicas == made.replicas_before:
        return span(made.replicas)
    return span(f"{made.replicas_before} > {made.replicas}", Look.BOLD)


def why(made: Decision) -> Span:
    """Return a decision's alarm, or else its reason."""
    return span(made.alarms[0], Look.BAD) if made.alarms else span(made.reason)
