"""How an engine process tells what each step computed. vLLM's statistics have a free table of counts, for connectors
that fetch KV entries; ours travel in it under names of their own.
"""

from __future__ import annotations

from typing import Any

TOKENS = "penstock.tokens"
KV_TOKENS = "penstock.kv_tokens"


def put_work(stats: Any, tokens: int, kv_tokens: int) -> None:
    """Write into vLLM's SchedulerStats."""
    stats.num_kv_fetch_reqs_by_stage[TOKENS] = tokens
    stats.num_kv_fetch_reqs_by_stage[KV_TOKENS] = kv_tokens


def work_of(stats: Any) -> tuple[int | None, int | None]:
    """Read tokens computed and context tokens read; None where the scheduler is not ours."""
    counts = stats.num_kv_fetch_reqs_by_stage
    return counts.get(TOKENS), counts.get(KV_TOKENS)
