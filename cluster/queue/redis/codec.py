"""Translation between the queue's values and the arguments and replies of the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import msgpack

from cluster.errors import KeyReusedError, QueueFullError, QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import (
    RETRY_FULL_S,
    Adopted,
    BudgetUse,
    CostLine,
    GpuTime,
    Grant,
    Holding,
    Holdings,
    HourUse,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    Order,
    QueueEntry,
    QueueLimits,
    Settlement,
    Submitted,
    UsageLine,
    Where,
)
from cluster.queue.heartbeats import (
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaRecord,
    ReplicaTimes,
    RouterBeat,
    RouterBeatReply,
    RouterReport,
)
from penstock.models import ReplicaState

_ORDER_KINDS = {b"c": "cancel", b"d": "moved", b"e": "expired", b"f": "preempt"}
_NUMBERS = 6
"""Numbers of a line of usage, and of each hour in it."""
_KINDS = 7
"""Kinds of GPU time in a line of costs."""
_QUOTAS = {1: "tokens_per_minute", 2: "requests_per_minute", 3: "concurrency", 4: "cost_per_day", 5: "cost_per_month"}


def pack_limits(limits: QueueLimits) -> tuple[bytes, ...]:
    """Return the limits as the scripts' leading arguments."""
    numbers = (limits.lease_ms, limits.attach_grace_ms, limits.max_waiting, limits.lookahead, limits.grant_heartbeats)
    more = (
        limits.preempt_after_ms,
        limits.preempt_quantum_ms,
        limits.max_preemptions,
        limits.result_ms,
        limits.max_result_bytes,
        limits.ledger_days,
    )
    shares = (repr(share).encode() for share in limits.class_shares)
    return (*(b"%d" % n for n in numbers), *shares, *(b"%d" % n for n in more))


def pack(*values: object) -> bytes:
    """Pack a script's own arguments. Text and bytes both become msgpack's old raw type, the only one that all Redis
    servers read.
    """
    return msgpack.packb(values, use_bin_type=False)  # type: ignore[no-any-return]


def pack_entry(router_id: str, entry: QueueEntry) -> bytes:
    """Pack the arguments of `submit`."""
    preferred = entry.preferred_replicas
    return pack(
        router_id,
        entry.request_id,
        entry.attempt_base,
        entry.tenant,
        int(entry.request_class),
        entry.prompt_tokens,
        entry.expected_tokens,
        entry.kv_tokens,
        entry.start_within_ms,
        entry.client_key,
        "\0".join(("", *preferred, "")) if preferred else "",
        entry.weight,
        int(entry.resume),
        entry.max_tokens,
        entry.quota.max_waiting,
        (
            entry.quota.tokens_per_minute,
            entry.quota.requests_per_minute,
            entry.quota.concurrency,
            int(entry.quota.strict),
            entry.quota.cost_per_day,
            entry.quota.cost_per_month,
        ),
        entry.digest,
        entry.late_after_ms,
        entry.choices,
        entry.trace,
        entry.tokenizer,
    )


def pack_settlement(router_id: str, request_id: str, attempt: str, settlement: Settlement) -> bytes:
    """Pack the arguments of `release`."""
    return pack(router_id, request_id, attempt, *_used(settlement))


def pack_withdrawal(router_id: str, request_id: str, used: Settlement | None, *, refused: bool) -> bytes:
    """Pack the arguments of `withdraw`."""
    return pack(router_id, request_id, 2 if refused else int(used is not None), *_used(used or Settlement(0)))


def _used(settlement: Settlement) -> tuple[float, ...]:
    once = (settlement.output_tokens, settlement.requests, settlement.prompt_tokens, settlement.cached_tokens)
    return *once, settlement.gpu_seconds, settlement.cost


def pack_router_beat(beat: RouterBeat) -> bytes:
    """Pack the arguments of `heartbeat_router`."""
    started = _flat(beat.started)
    return pack(
        beat.router_id,
        beat.connected,
        started,
        beat.registry_version,
        beat.report,
        beat.positions_of,
        int(beat.busy),
    )


def pack_replica_beat(beat: ReplicaBeat) -> bytes:
    """Pack the arguments of `heartbeat_replica`."""
    windows = beat.windows
    return pack(
        beat.replica_id,
        beat.record,
        beat.state.value,
        windows.sequences,
        windows.kv_tokens,
        windows.prefill_tokens,
        -1 if beat.kv_tokens is None else beat.kv_tokens,
        msgpack.packb(dict(beat.stats)),
        _flat(beat.running),
        beat.prefilled,
        beat.produced,
        -1 if beat.batch_slots is None else beat.batch_slots,
        _times(beat.times),
        _times(beat.told),
    )


def pack_account(replica_id: str, times: ReplicaTimes, told: ReplicaTimes | None) -> bytes:
    """Pack the arguments of `account`."""
    return pack(replica_id, _times(times), _times(told))


def _times(times: ReplicaTimes | None) -> tuple[float, ...] | str:
    # The order of the fields is that of M_* in names.lua.
    if times is None:
        return ""
    # The last release stored its time of the report as the ninth value, so what is new comes behind it.
    *known, standby = astuple(times)
    return (*known, 0, standby)


def read_submitted(pool: str, max_waiting: int, entry: QueueEntry, reply: Sequence[Any]) -> Submitted:
    """Read the answer of `submit`.

    Raises:
        QueueFullError: the queue, or the tenant's part of it, is full.
        QuotaExceededError: the tenant's quota does not allow it.
        KeyReusedError: the client key belongs to another request.
    """
    match reply:
        case [1, attempt, replica, marks, *use]:
            grant = Grant(entry.request_id, attempt.decode(), replica.decode())
            return Submitted(grant, 0, marks=marks, budget=_budget(use))
        case [0, position, marks, *use]:
            return Submitted(None, position, marks=marks, budget=_budget(use))
        case [2, request_id, result, live]:
            return Submitted(None, 0, KnownRequest(request_id.decode(), result, bool(live)))
        case [-2, which, retry_ms, limit]:
            quota = _QUOTAS[which]
            if retry_ms >= 0:
                raise QuotaExceededError(pool, entry.tenant, quota, limit, retry_ms / 1000)
            # Without a retry time the request never fits. With tokens only a strict quota says so: it takes max_tokens.
            each = entry.prompt_tokens + entry.max_tokens if quota == "tokens_per_minute" else 1
            raise QuotaExceededError(pool, entry.tenant, quota, limit, None, each * entry.choices)
        case [-2, which, renews_ms, limit, used]:
            raise QuotaExceededError(
                pool, entry.tenant, _QUOTAS[which], float(limit), renews_ms / 1000, used=float(used)
            )
        case [-3]:
            raise QueueFullError(pool, entry.quota.max_waiting, RETRY_FULL_S, tenant=entry.tenant)
        case [-4, request_id]:
            raise KeyReusedError(entry.client_key, request_id.decode())
        case [-5]:
            return Submitted(None, 0, elsewhere=True)
        case _:
            raise QueueFullError(pool, max_waiting, RETRY_FULL_S)


def _budget(use: Sequence[Any]) -> BudgetUse | None:
    if not use:
        return None
    which, renews_ms, limit, used = use
    return BudgetUse(_QUOTAS[which], float(used), float(limit), renews_ms)


def read_known(client_key: str, reply: Sequence[Any] | None) -> KnownRequest | None:
    """Read the answer of `find_key`.

    Raises:
        KeyReusedError: the client key belongs to another request.
    """
    match reply:
        case [2, request_id, result, live]:
            return KnownRequest(request_id.decode(), result, bool(live))
        case [_, request_id]:
            raise KeyReusedError(client_key, request_id.decode())
        case _:
            return None


def read_adopted(request_id: str, reply: Sequence[Any] | None) -> Adopted | None:
    """Read the answer of `adopt`."""
    match reply:
        case [1, age_ms, trace, tokenizer, attempt, replica, started]:
            grant = Grant(request_id, attempt.decode(), replica.decode())
            return Adopted(grant, 0, bool(started), age_ms, trace.decode(), tokenizer.decode())
        case [_, age_ms, trace, tokenizer, position]:
            return Adopted(None, position, age_ms=age_ms, trace=trace.decode(), tokenizer=tokenizer.decode())
        case _:
            return None


def read_usage(reply: Sequence[Any]) -> tuple[bytes, list[UsageLine]]:
    """Read the answer of `usage`: where the next call continues (empty at the end), and lines."""
    following, fields = reply
    lines = []
    for field, packed in fields:
        day, tenant = field.decode().split("\0")
        numbers = msgpack.unpackb(packed)
        starts = range(_NUMBERS, len(numbers), _NUMBERS + 1)
        hours = tuple(HourUse(*numbers[start : start + _NUMBERS + 1]) for start in starts)
        requests, prompt, output, cached, gpu_seconds, cost = numbers[:_NUMBERS]
        lines.append(UsageLine(int(day), tenant, requests, prompt, output, cached, gpu_seconds, cost, hours))
    return following, lines


def read_costs(reply: Sequence[Any]) -> tuple[int, list[CostLine]]:
    """Read the answer of `read_costs`: the next hour to read (-1 at the end), and lines."""
    following, found = reply
    lines = []
    for hour, packed in found:
        numbers = msgpack.unpackb(packed)
        total, *parts = map(GpuTime, numbers[:_KINDS], numbers[_KINDS : 2 * _KINDS])
        requests, starting, idle, draining, lost, running = parts
        charged, *standby = numbers[2 * _KINDS :]  # a line of the last release has no standbys
        stood = GpuTime(*(standby or (0.0, 0.0)))
        lines.append(CostLine(hour, total, requests, starting, idle, draining, lost, running, stood, charged))
    return following, lines


def read_marks(reply: Sequence[Any]) -> Marks:
    """Read the answer of `quarantine`."""
    count, flat = reply
    marks = sorted(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    return Marks(count, tuple(Mark(content, incident.decode(), left) for content, incident, left in marks))


def read_grants(reply: Sequence[Sequence[bytes]]) -> Mail:
    """Read the grants that `release`, `requeue`, `withdraw`, `take_out` and `refuse` return."""
    return Mail(tuple(Grant(i.decode(), a.decode(), r.decode()) for i, a, r in reply)) if reply else _NO_MAIL


def read_mailbox(reply: Sequence[bytes]) -> Mail:
    """Read a mailbox: NUL-separated members of `owners` that are mail, as redis/lua/names.lua lists them."""
    grants, orders = [], []
    for member in reply:
        _, letter, request_id, *rest = member.split(b"\0")
        if letter == b"g":
            grants.append(Grant(request_id.decode(), rest[0].decode(), rest[1].decode()))
        else:
            orders.append(Order(request_id.decode(), _ORDER_KINDS[letter]))
    return Mail(tuple(grants), tuple(orders))


def read_router_reply(reply: Sequence[Any]) -> RouterBeatReply:
    """Read the answer of `heartbeat_router`."""
    mail, replicas, version, waiting, running, routers, positions, run_id, granted, time_ms, *told = reply
    return RouterBeatReply(
        mail=read_mailbox(mail),
        replicas=None if replicas is None else _records(replicas),
        registry_version=version,
        waiting=tuple(waiting),
        running=running,
        routers=_names(routers),
        positions={name.decode(): ahead for name, ahead in zip(positions[::2], positions[1::2], strict=True)},
        run_id=run_id.decode(),
        granted=tuple(granted),
        time_ms=time_ms,
        point=told[0],
        relief=told[1].decode(),
        marks=told[2],
    )


def read_replica_reply(reply: Sequence[Any]) -> ReplicaBeatReply:
    """Read the answer of `heartbeat_replica`."""
    order: int = reply[4]
    standby = None if order < 0 else order > 0
    return ReplicaBeatReply(_names(reply[0]), reply[1].decode(), reply[2], reply[3].decode(), standby, reply[5])


_WHERE = {b"w": Where.LINE, b"p": Where.LINE, b"g": Where.GRANT, b"r": Where.SLOT}


def read_holdings(reply: Sequence[Any]) -> Holdings:
    """Read the answer of `holdings`."""
    last, found = reply
    page = zip(found[::3], found[1::3], found[2::3], strict=True)
    return Holdings(
        tuple(
            Holding(name.decode(), _WHERE.get(letter, Where.MAIL), attempt.decode()) for letter, name, attempt in page
        ),
        last,
    )


def read_view(reply: Sequence[Any]) -> PoolView:
    """Read the answer of `observe`."""
    time_ms, run_id, replicas, reports, waiting, longest, running, point, routers = reply
    return PoolView(
        time_ms=time_ms,
        run_id=run_id.decode(),
        replicas=_records(replicas),
        reports=tuple(
            sorted(
                (
                    RouterReport(name.decode(), age, report)
                    for name, age, report in zip(reports[::3], reports[1::3], reports[2::3], strict=True)
                ),
                key=lambda one: one.router_id,
            )
        ),
        waiting=tuple(waiting),
        longest_wait_ms=tuple(longest),
        running=running,
        point=point,
        routers=_names(routers),
    )


def _records(replies: Sequence[Sequence[Any]]) -> tuple[ReplicaRecord, ...]:
    return tuple(sorted(map(_read_record, replies), key=lambda record: record.replica_id))


def _read_record(fields: Sequence[Any]) -> ReplicaRecord:
    name, record, state, sequences, kv, prefill, held, used_kv, used_prefill, age, stats = fields
    return ReplicaRecord(
        replica_id=name.decode(),
        record=record,
        state=_state(state.decode()),
        windows=Windows(sequences, kv, prefill),
        sequences=held,
        kv_tokens=used_kv,
        prefill_tokens=used_prefill,
        heartbeat_age_ms=age,
        stats=msgpack.unpackb(stats),
    )


def _state(name: str) -> ReplicaState:
    try:
        return ReplicaState(name)
    except ValueError:
        # A later release may know more states. Such a replica gets no new work, but stays linked for what runs there.
        return ReplicaState.DRAINING


def _flat(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [part for pair in pairs for part in pair]


def _names(reply: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(sorted(name.decode() for name in reply))


_NO_MAIL = Mail()
