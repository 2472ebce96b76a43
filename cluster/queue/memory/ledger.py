"""Ledger of usage per tenant and day; mirrors redis/lua/ledger.lua."""

from __future__ import annotations

from cluster.queue.entries import Settlement, UsageLine
from cluster.queue.memory.state import KEYS_PER_CALL, PoolState

DAY_MS = 86_400_000


def enter_ledger(pool: PoolState, tenant: str, used: Settlement) -> None:
    """Add use to a tenant's line of today."""
    if not pool.limits.ledger_days:
        return
    line = pool.ledger.setdefault((pool.now // DAY_MS, tenant), [0, 0, 0, 0, 0, 0])
    tokens = (used.prompt_tokens, used.output_tokens, used.cached_tokens)
    more = (used.requests, *tokens, used.gpu_seconds, used.cost)
    for i, amount in enumerate(more):
        line[i] += amount


def tidy_ledger(pool: PoolState) -> None:
    """Remove lines that are older than the settings keep, at most KEYS_PER_CALL."""
    last = pool.now // DAY_MS - pool.limits.ledger_days
    for key in sorted(key for key in pool.ledger if key[0] <= last)[:KEYS_PER_CALL]:
        del pool.ledger[key]


def read_ledger(pool: PoolState, tenant: str, first_day: int, last_day: int, limit: int) -> tuple[UsageLine, ...]:
    """Return lines in order of day and tenant; tenant "" reads all tenants."""
    keys = sorted(key for key in pool.ledger if first_day <= key[0] <= last_day and tenant in ("", key[1]))
    return tuple(_line(day, name, pool.ledger[day, name]) for day, name in keys[:limit])


def _line(day: int, tenant: str, numbers: list[float]) -> UsageLine:
    requests, prompt, output, cached, gpu_seconds, cost = numbers
    return UsageLine(day, tenant, int(requests), int(prompt), int(output), int(cached), gpu_seconds, cost)
