"""Disaggregation of prefill and decode: what each replica computes, and what transfers take."""

from __future__ import annotations

import math
import random

import pytest

from cluster.errors import SettingsError
from cluster.settings import SimSettings
from loadtest.simulate.autoscalers.contract import ReplicaSnapshot
from loadtest.simulate.parts.disaggregation import Transfers
from loadtest.simulate.parts.settings import Parts, Speculation, Split, Tier
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Death, Setup
from loadtest.traces import TraceRequest

ENGINE = SimSettings(
    base_ms=10.0,
    per_token_us=50.0,
    per_kv_token_us=0.0,
    kv_tokens=60_000,
    max_num_seqs=16,
    max_num_batched_tokens=512,
)


class Looks:
    """Batch policy that keeps the limit. A run with one keeps whole logs of steps."""

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        return snapshot.limit


def draw_trace(seed: int = 1, requests: int = 150, gap_s: float = 0.05) -> list[TraceRequest]:
    rnd = random.Random(seed)
    return [TraceRequest(n, gap_s * n, rnd.randint(1, 900), rnd.randint(1, 60)) for n in range(requests)]


def simulate(
    trace: list[TraceRequest],
    split: Split | None,
    engine: SimSettings = ENGINE,
    parts: Parts | None = None,
    **more: object,
) -> SimulatedRun:
    made = parts or Parts(kv_bytes=1_000_000, split=split)
    count = 1 if made.split is None else made.split.decode_replicas
    bounds = {"replicas": count, "min_replicas": count, "max_replicas": count}
    return Simulation(trace, Setup(engine, parts=made, **bounds, **more), fast=Looks).run()  # type: ignore[arg-type]


ENDLESS = Split(6, 4, math.inf)


@pytest.mark.parametrize("seed", range(3))
def test_prefill_never_delays_a_decode_step(seed: int) -> None:
    trace = draw_trace(seed)
    run = simulate(trace, ENDLESS)
    assert {"completed"} == {each.end for each in run.outcomes}
    logs = [member.replica.log for member in run.fleet.members.values()]
    assert all(log.tokens == log.sequences for log in logs)
    full_s = 0.010 + 16 * 50e-6
    assert max(max(log.seconds) for log in logs) <= full_s + 1e-12
    together = simulate(trace, None)
    assert max(max(member.replica.log.seconds) for member in together.fleet.members.values()) > full_s


def test_a_lone_request_takes_prefill_transfer_and_decode() -> None:
    alone = [TraceRequest(0, 0.0, 500, 11)]
    plain = simulate(alone, None).outcomes[0]
    split = simulate(alone, Split(1, 1, 2.0, 0.003)).outcomes[0]
    transfer_s = 500 * 1_000_000 / 2e9 + 0.003
    # The replica that decodes computes the prompt's last token again.
    step_s = 0.010 + 50e-6
    assert pytest.approx(plain.ttft_s + transfer_s + step_s) == split.ttft_s
    assert pytest.approx(plain.itl_mean_s) == split.itl_mean_s


@pytest.mark.parametrize("seed", range(2))
def test_a_slower_link_makes_first_tokens_later(seed: int) -> None:
    trace = draw_trace(seed, gap_s=0.2)
    means = [
        float(simulate(trace, Split(2, 2, each)).outcomes.column("ttft_s").mean()) for each in (math.inf, 50, 10, 3)
    ]
    assert sorted(means) == means
    assert means[0] < means[-1]


def test_too_few_prefill_replicas_hold_first_tokens_up_and_no_decode_step() -> None:
    trace = draw_trace(2, requests=300, gap_s=0.02)
    few, many = (simulate(trace, Split(each, 4, math.inf)) for each in (1, 8))
    assert few.outcomes.column("ttft_s").mean() > 2 * many.outcomes.column("ttft_s").mean()
    assert few.parts["disaggregation"]["prefill_busy"] > many.parts["disaggregation"]["prefill_busy"]
    assert max(max(member.replica.log.seconds) for member in few.fleet.members.values()) <= 0.0108 + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_requests_are_served_though_replicas_die_and_the_cache_is_full(seed: int) -> None:
    deaths = tuple(Death(1.3 * n + 0.21 * seed + 0.5) for n in range(5))
    engine = ENGINE.model_copy(update={"kv_tokens": 2_000})
    trace = draw_trace(seed, gap_s=0.08)
    run = simulate(trace, Split(2, 2, 5.0, 0.01), engine, deaths=deaths, cold_start_s=1.0)
    assert {"completed"} == {each.end for each in run.outcomes}
    assert len(trace) == len(run.outcomes)
    for each in run.outcomes:
        assert pytest.approx(each.itl_mean_s * (each.output_tokens - 1), abs=1e-9) == each.e2e_s - each.ttft_s


def test_a_prompt_that_waits_for_room_is_not_computed_again() -> None:
    """The fifth finds too few free blocks when it arrives."""
    trace = [TraceRequest(n, 0.1 * n, 390, 100) for n in range(5)]
    engine = ENGINE.model_copy(update={"kv_tokens": 2_000})
    run = simulate(trace, Split(1, 1, math.inf), engine, expected_output_tokens=1)
    (log,) = (member.replica.log for member in run.fleet.members.values())
    assert ([0] * 5, log.sequences) == ([each.preemptions for each in run.outcomes], log.tokens)
    assert run.outcomes[4].ttft_s > 0.5 > run.outcomes[3].ttft_s


def test_prefill_replicas_count_in_the_hours() -> None:
    run = simulate(draw_trace(), Split(3, 2, math.inf))
    assert pytest.approx(5 * run.seconds / 3600) == run.hours(run.seconds)


def test_beginnings_are_found_where_prompts_are_computed() -> None:
    rnd = random.Random(3)
    talks = [rnd.randint(0, 4) for _ in range(60)]
    trace = [
        TraceRequest(n, 2.0 * n, 900, 20, block_ids=tuple(range(100 * talk, 100 * talk + 15)), block_tokens=64)
        for n, talk in enumerate(talks)
    ]
    parts = Parts(tiers=(Tier("cpu", 10**6, math.inf),), split=Split(1, 2, math.inf))
    run = simulate(trace, None, ENGINE.model_copy(update={"kv_tokens": 2_000}), parts)
    found = run.parts["prefix_cache"]
    assert (60 - len(set(talks))) * 14 * 64 == run.outcomes.column("cached_tokens").sum()
    assert pytest.approx(found["reuse_in_trace"]) == found["hit"] == sum(found["hit_by_tier"].values())


def test_drafts_are_verified_where_requests_decode() -> None:
    parts = Parts(speculation=Speculation(3, 1.0, verify_s=0.0), split=ENDLESS)
    run = simulate([TraceRequest(0, 0.0, 300, 41)], None, parts=parts)
    outcome = run.outcomes[0]
    assert pytest.approx(10 * (0.010 + 50e-6)) == outcome.e2e_s - outcome.ttft_s


def test_transfers_of_the_same_replica_follow_each_other() -> None:
    transfers = Transfers(Split(2, 2, 1.0, 0.5), 10**6)
    assert 1.5 == transfers.send(0, "a", 1_000, 0.0)
    assert 2.5 == transfers.send(0, "b", 1_000, 0.0)
    assert 2.5 == transfers.send(1, "a", 1_000, 0.0)
    assert 10.5 == transfers.send(1, "b", 1_000, 9.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 1, 1.0), "prefill_replicas must be at least 1, got 0"),
        ((1, 0, 1.0), "decode_replicas must be at least 1, got 0"),
        ((1, 1, 0.0), "kv-link must have a bandwidth above 0 GB/s, got 0"),
        ((1, 1, 1.0, math.inf), "kv-link must have a latency of at least 0 s, got inf"),
    ],
)
def test_settings_out_of_range_are_refused(values: tuple[float, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Split(*values)  # type: ignore[arg-type]
