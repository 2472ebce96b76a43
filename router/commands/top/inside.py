"""Everything about one row: a replica, or a decision. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.plural import counted
from penstock.client import Budget, Decision, PoolStatus, ReplicaState, TenantQuota
from router.commands.top.lines import Line, Look, Span, line, span
from router.commands.top.looked import ReplicaRow
from router.commands.top.tables import DRAINS, change, itl, period, quota, time_of, used_part
from router.commands.top.words import NOTHING, milliseconds, number, percent, span_of


def replica_lines(row: ReplicaRow, pool: PoolStatus) -> list[Line]:
    """Return all that is known of a replica."""
    replica = row.replica
    state = [span(replica.state.value)]
    if replica.state is ReplicaState.DRAINING:
        why = DRAINS[replica.drain_reason]
        state = [span(f"draining for {span_of(replica.draining_for)}{': ' if why else ''}{why}", Look.WARN)]
    if replica.state is ReplicaState.STANDBY:
        asleep = "its engine sleeps" if replica.asleep else "its engine is awake and has no work"
        state = [span(f"standby: {asleep}", Look.DIM)]
    why = f": {replica.link_error}" if replica.link_error else ""
    link = "" if replica.linked else span(f", this router has no link to it{why}", Look.BAD)
    speculated = (
        f", {number(replica.accepted_draft_tokens)} of them speculated" if replica.accepted_draft_tokens else ""
    )
    facts: Sequence[tuple[str, Sequence[Span | str]]] = (
        ("state", [*state, link]),
        ("batch", [f"{counted(replica.running, 'sequence')} of at most {replica.batch_limit}"]),
        ("inside engine", [f"{counted(replica.engine_waiting, 'sequence')} without a place in the batch"]),
        ("KV cache", [f"{percent(replica.kv_usage)} of {number(replica.kv_tokens)} tokens"]),
        ("prefill window", [f"{number(replica.prefill_window_tokens)} tokens"]),
        ("step", [f"{milliseconds(replica.step_time)} ms, mean of the last seconds"]),
        ("ITL", [f"mean {milliseconds(replica.itl_mean)} ms, 95th percentile ", itl(row), " ms"]),
        ("overloaded", [span("even the smallest batch misses the SLO", Look.BAD) if replica.overloaded else "no"]),
        ("output", [f"{number(row.tokens)} tokens/s, {number(replica.output_tokens)} since its start{speculated}"]),
        ("up", [f"{span_of(replica.up_time)}, its start took {span_of(replica.start_time)}"]),
        ("last wake-up", [NOTHING if replica.wake_time is None else f"took {span_of(replica.wake_time)}"]),
        ("model", [replica.model or NOTHING]),
        ("hardware", [f"{replica.hardware or NOTHING}, {replica.gpus or NOTHING} GPUs, tensor parallel size ",
                      f"{replica.tensor_parallel_size or NOTHING}"]),
        ("price", [f"{replica.cost_per_hour:.2f} per hour of {pool.cost_per_hour:.2f} for the pool"
                   if replica.cost_per_hour else NOTHING]),
        ("group", [replica.group_id]),
        ("address", [f"{replica.address}, metrics on port {replica.metrics_port or NOTHING}"]),
        ("heartbeat", [f"{span_of(replica.heartbeat_age)} ago"]),
    )  # fmt: skip
    return [line(span(f"replica {replica.replica_id}", Look.BOLD)), *_facts(facts)]


def tenant_lines(tenant: str, pools: Sequence[PoolStatus]) -> list[Line]:
    """Return what a tenant has in all pools: what waits and runs, and what is left of its quotas."""
    made = [line(span(f"tenant {tenant}", Look.BOLD))]
    for pool in pools:
        mine = sorted((each for each in pool.line if each.tenant == tenant), key=lambda each: each.request_class)
        made += [
            line(
                f"  {pool.name}, {each.request_class.name.lower()}: {each.waiting} wait",
                f" (the oldest for {span_of(each.oldest_wait)}, weight {number(each.weight)})" if each.waiting else "",
                f", {each.running} run",
            )
            for each in mine
        ]
        for found in pool.quotas:
            if found.tenant == tenant:
                made += _quota_lines(pool.name, found)
        made += [_budget_line(each) for each in pool.budgets if each.tenant == tenant]
    return made


def _budget_line(one: Budget) -> Line:
    spent = span(f"{number(one.used)} of {number(one.limit)}", Look.WARN if one.warned else Look.PLAIN)
    part = f" ({percent(used_part(one))}), renews {one.renews:%Y-%m-%d %H:%M} UTC"
    return line(f"  {one.pool}, budget of {period(one)}: ", spent, part)


def _quota_lines(pool: str, found: TenantQuota) -> list[Line]:
    limits = (
        ("tokens per minute", found.tokens_per_minute, f"{number(found.tokens_left)} left"),
        ("requests per minute", found.requests_per_minute, f"{number(found.requests_left)} left"),
        ("at a time", found.concurrency, f"{found.open} open"),
    )
    made = [line(f"  {pool}, quota: {number(limit)} {name}, {left}") for name, limit, left in limits if limit]
    state = quota(found)
    return [*made, line(f"  {pool}, quota: ", state)] if state.text else made


def decision_lines(made: Decision) -> list[Line]:
    """Return a decision with the steps that led to it."""
    head = line(
        span(f"decision {made.number}", Look.BOLD), f" at {time_of(made.at_ms)}, {made.mode}, {made.leader}: ",
        change(made), f" of {made.needed} needed",
    )  # fmt: skip
    rows = [line(f"  {step.name:<14} {number(step.value):>8}  {step.reason}") for step in made.steps]
    rows += [line(f"  without {each.without}: {counted(each.replicas, 'replica')}") for each in made.counterfactuals]
    rows += [line(span(f"  alarm: {each}", Look.BAD)) for each in made.alarms]
    return [head, *rows]


def _facts(facts: Sequence[tuple[str, Sequence[Span | str]]]) -> list[Line]:
    wide = max(len(name) for name, _ in facts)
    return [line(span(f"  {name:<{wide}}  ", Look.DIM), *parts) for name, parts in facts]
