"""Quotas of tenants; mirrors redis/lua/quota.lua, which has the reasons."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

from cluster.errors import QuotaExceededError
from cluster.queue.entries import QueueEntry, Quota
from cluster.queue.memory.state import KEYS_PER_CALL, Entry, PoolState, Used

BUCKETS = 32
EDGES = tuple(accumulate(1 if i < 4 else 2 ** ((i - 2) // 2) for i in range(BUCKETS)))
"""First count of tokens above each bucket: 1 2 3 4 6 8 12 16 ..."""


def take_quota(pool: PoolState, entry: Entry) -> None:
    """Take an entry's part of its tenant's quota.

    Raises:
        QuotaExceededError: the quota does not allow it now, or ever.
    """
    request, quota = entry.request, entry.request.quota
    tenant, choices = request.tenant, request.choices
    if quota.concurrency:
        _check_alone(pool, tenant, "concurrency", choices, quota.concurrency)
        if pool.open_counts.get(tenant, 0) + max(1, choices) > quota.concurrency:
            raise QuotaExceededError(pool.name, tenant, "concurrency", quota.concurrency, 1.0)
    if quota.tokens_per_minute or quota.requests_per_minute:
        used = _used_of(pool, tenant, quota.tokens_per_minute, quota.requests_per_minute)
        if quota.requests_per_minute and choices:
            _check_alone(pool, tenant, "requests_per_minute", choices, quota.requests_per_minute)
            _check(pool, tenant, "requests_per_minute", used.requests + choices, quota.requests_per_minute)
        if quota.tokens_per_minute:
            need = _take_tokens(pool, entry, used, quota)
            used.tokens += need * choices
            if quota.strict:
                entry.strict_tokens = need
            else:
                entry.held_tokens = need
        if quota.requests_per_minute:
            used.requests += choices
        _put_used(pool, tenant, used, quota.tokens_per_minute)
    if quota.concurrency:
        pool.open_counts[tenant] = pool.open_counts.get(tenant, 0) + 1
        entry.counted_open = True


def _take_tokens(pool: PoolState, entry: Entry, used: Used, quota: Quota) -> int:
    request, limit = entry.request, quota.tokens_per_minute
    need = _need_of(pool, request)
    asked = need * request.choices
    if quota.strict:
        _check_alone(pool, request.tenant, "tokens_per_minute", asked, limit)
    else:
        asked = min(asked, limit)
    if request.choices:
        _check(pool, request.tenant, "tokens_per_minute", used.tokens + asked, limit)
    return need


def _need_of(pool: PoolState, request: QueueEntry) -> int:
    most = request.max_tokens
    if request.quota.tokens_per_minute and not request.quota.strict:
        most = min(most, likely_output(pool, request.tenant, request.expected_tokens))
    return request.prompt_tokens + most


def return_part(pool: PoolState, request: QueueEntry) -> None:
    """Give back an entry's part of the quota: the queue refuses it, although its request's quota was taken before."""
    tokens, requests = request.quota.tokens_per_minute, request.quota.requests_per_minute
    if not tokens and not requests:
        return
    used = _used_of(pool, request.tenant, tokens, requests)
    used.tokens = max(0, used.tokens - _need_of(pool, request))
    used.requests = max(0, used.requests - 1)
    _put_used(pool, request.tenant, used, tokens)


def _check_alone(pool: PoolState, tenant: str, which: str, asked: int, limit: int) -> None:
    if asked > limit:
        raise QuotaExceededError(pool.name, tenant, which, limit, None, asked)


def _check(pool: PoolState, tenant: str, which: str, would_be: float, limit: int) -> None:
    if would_be > limit:
        retry_ms = math.ceil((would_be - limit) / limit * 60000)
        raise QuotaExceededError(pool.name, tenant, which, limit, retry_ms / 1000)


def settle_quota(pool: PoolState, entry: Entry, tokens: int) -> None:
    """Replace the tokens that an entry holds of a quota by those that it used."""
    if not entry.held_tokens:
        return
    held_at, tenant = entry.request.quota.tokens_per_minute, entry.request.tenant
    used = _used_of(pool, tenant, 0, 0)
    rate = used.token_rate or held_at
    used.tokens, used.tokens_at, used.token_rate = (
        _brought(pool, used.tokens, used.tokens_at, rate, rate),
        pool.now,
        rate,
    )
    used.tokens = max(0, used.tokens + (tokens - entry.held_tokens) * min(1, rate / held_at))
    entry.held_tokens = 0
    _put_used(pool, tenant, used, rate)


def leave_tenant(pool: PoolState, entry: Entry) -> None:
    """Give back what a removed entry holds of its tenant's quota."""
    if not entry.number:
        if entry.strict_tokens:
            rate = entry.request.quota.tokens_per_minute
            entry.held_tokens = max(0, entry.strict_tokens - (pool.now - entry.submitted) / 60000 * rate)
        settle_quota(pool, entry, 0)
    if entry.counted_open:
        tenant = entry.request.tenant
        pool.open_counts[tenant] -= 1
        if pool.open_counts[tenant] <= 0:
            del pool.open_counts[tenant]


def tidy_tenants(pool: PoolState) -> None:
    """Forget tenants whose time in `tenant_due` has come, at most KEYS_PER_CALL."""
    for tenant in pool.tenant_due.up_to(pool.now, KEYS_PER_CALL):
        pool.quotas.pop(tenant, None)
        pool.outputs.pop(tenant, None)
        pool.tenant_due.discard(tenant)


def note_output(pool: PoolState, tenant: str, tokens: int) -> None:
    """Count an output in its tenant's histogram. The counts are halved when they reach 256, so it follows changes."""
    counts = pool.outputs.setdefault(tenant, [0] * BUCKETS)
    counts[min(bisect_right(EDGES, tokens), BUCKETS - 1)] += 1
    if sum(counts) >= 256:
        counts[:] = [count // 2 for count in counts]


def likely_output(pool: PoolState, tenant: str, default: int) -> int:
    """Return the 95th percentile of a tenant's outputs in tokens, or `default` with fewer than 20 outputs."""
    counts = pool.outputs.get(tenant, ())
    total = sum(counts)
    if total < 20:
        return default
    return next(EDGES[i] for i, seen in enumerate(accumulate(counts)) if seen >= 0.95 * total)


def _brought(pool: PoolState, used: float, as_of: int, old: int, new: int) -> float:
    old = old or new
    used = max(0, used - (pool.now - as_of) / 60000 * old)
    return used * new / old if new < old else used


def _used_of(pool: PoolState, tenant: str, tokens_per_minute: int, requests_per_minute: int) -> Used:
    used = pool.quotas.get(tenant)
    if used is None:
        return Used(0, pool.now, 0, pool.now, tokens_per_minute, requests_per_minute)
    used = replace(used)
    if tokens_per_minute:
        used.tokens = _brought(pool, used.tokens, used.tokens_at, used.token_rate, tokens_per_minute)
        used.tokens_at, used.token_rate = pool.now, tokens_per_minute
    if requests_per_minute:
        used.requests = _brought(pool, used.requests, used.requests_at, used.request_rate, requests_per_minute)
        used.requests_at, used.request_rate = pool.now, requests_per_minute
    return used


def _put_used(pool: PoolState, tenant: str, used: Used, tokens_per_minute: int) -> None:
    pool.quotas[tenant] = used
    drained = math.ceil(used.tokens / tokens_per_minute * 60000) if tokens_per_minute else 0
    pool.tenant_due.add(tenant, pool.now + max(3_600_000, drained))
