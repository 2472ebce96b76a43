"""The report of each step's computed work from an engine process.

vLLM's statistics have an open table of counts, meant for connectors that fetch KV entries. Our counts travel in it
under names of our own.
"""

from __future__ import annotations

from typing import Any

TOKENS = "penstock.tokens"
KV_TOKENS = "penstock.kv_tokens"


def put_work(stats: Any, tokens: int, kv_tokens: int) -> None:
    """Write the work into vLLM's SchedulerStats."""
    stats.num_kv_fetch_reqs_by_stage[TOKENS] = tokens
    stats.num_kv_fetch_reqs_by_stage[KV_TOKENS] = kv_tokens


def work_of(stats: Any) -> tuple[int | None, int | None]:
    """Return the tokens computed and the context tokens read; None where the scheduler is not ours."""
    counts = stats.num_kv_fetch_reqs_by_stage
    return counts.get(TOKENS), counts.get(KV_TOKENS)
