"""The report of each step's computed work from an engine process.

vLLM's statistics have an open table of counts, meant for connectors that fetch KV entries. Our counts travel in it
under names of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deployments.engines.meter import StepMeter
    from deployments.engines.vllm.sequence import VllmSequence

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


def count_step(meter: StepMeter, stats: Any, ended: Sequence[VllmSequence], ended_at: float) -> None:
    """Count a step by vLLM's SchedulerStats. `ended`: the sequences that ended in it."""
    # vLLM counts after it removed the sequences that ended in this step.
    in_step = stats.num_running_reqs + sum(sequence.left_engine for sequence in ended)
    tokens, kv_tokens = work_of(stats)
    meter.step(
        ended_at,
        in_step,
        running=stats.num_running_reqs,
        kv_usage=stats.kv_cache_usage,
        tokens=tokens,
        kv_tokens=kv_tokens,
        # A vector takes one step, which is mostly the first one after an idle time.
        began=min((each.scheduled_at for each in ended if each.vectors and each.scheduled_at), default=None),
    )
    if (speculation := stats.spec_decoding_stats) is not None:
        meter.drafted(speculation.num_draft_tokens, speculation.num_accepted_tokens)
