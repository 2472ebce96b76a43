"""Prefix caches by tier: hits, capacity, order of eviction, and the time of loads."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.errors import SettingsError
from cluster.settings import AffinitySettings, SimSettings
from deployments.engines.sim.kv import KvHold
from loadtest.benchmarks.data import data_folder
from loadtest.simulate.parts.core import LoadedBlocks
from loadtest.simulate.parts.prefixes import reuse_of, share
from loadtest.simulate.parts.settings import Parts, SharedPrefix, Tier
from loadtest.simulate.parts.tiers import Found, Link, TierStore
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Death, Setup
from loadtest.traces import TraceRequest, read_trace
from router.affinity import Affinity

BLOCK = 64
ENDLESS = 10**9
SMALL = SimSettings(
    base_ms=5.0, per_token_us=20.0, per_kv_token_us=0.1, kv_tokens=8_000, max_num_seqs=8, max_num_batched_tokens=512
)


def draw_trace(seed: int, requests: int = 150, gap_s: float = 0.1) -> list[TraceRequest]:
    """Return talks of several turns. Each prompt begins with the one before it, and ends in a part of a block."""
    rnd = random.Random(seed)
    talks: list[list[int]] = [[number] for number in range(12)]
    free, at, trace = 100, 0.0, []
    for number in range(requests):
        at += gap_s * rnd.expovariate(1.0)
        talk = rnd.choice(talks)
        if len(talk) > 20:
            del talk[1:]
        more = rnd.randint(1, 6)
        talk.extend(range(free, free + more))
        free += more
        tokens = BLOCK * (len(talk) - 1) + rnd.randint(1, BLOCK - 1)
        trace.append(
            TraceRequest(
                number, at, tokens, rnd.randint(1, 20), session=str(talk[0]), block_ids=tuple(talk), block_tokens=BLOCK
            )
        )
    return trace


def tiers(cpu: int = 0, disk: int = 0, gb_per_s: float = math.inf) -> Parts:
    every = (("cpu", cpu), ("disk", disk))
    return Parts(tiers=tuple(Tier(name, tokens, gb_per_s) for name, tokens in every if tokens))


def simulate(
    trace: Sequence[TraceRequest], parts: Parts, engine: SimSettings = SMALL, *, routed: bool = False, **more: object
) -> SimulatedRun:
    setup = Setup(engine, parts=parts, **more)  # type: ignore[arg-type]
    return Simulation(trace, setup, affinity=(lambda: Affinity(AffinitySettings())) if routed else None).run()


def cached(run: SimulatedRun) -> int:
    return int(run.outcomes.column("cached_tokens").sum())


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_hits_are_never_more_than_the_reuse_in_the_trace(seed: int, routed: bool) -> None:
    trace = draw_trace(seed)
    parts = tiers(cpu=2_000 * (1 + seed), disk=20_000)
    found = simulate(trace, parts, routed=routed, replicas=1 + seed % 3, max_replicas=3).parts["prefix_cache"]
    assert 0 < found["hit"] <= found["reuse_in_trace"]
    assert pytest.approx(found["hit"]) == sum(found["hit_by_tier"].values())


@pytest.mark.parametrize("seed", range(3))
def test_an_endless_cache_finds_all_that_comes_again(seed: int) -> None:
    """One after the other, because a beginning that is computed twice at once is found by nobody."""
    trace = draw_trace(seed, gap_s=100.0)
    run = simulate(trace, tiers(cpu=ENDLESS))
    assert reuse_of(trace).reused_tokens == cached(run)
    assert run.parts["prefix_cache"]["hit_by_tier"]["cpu"] > 0


def test_a_tier_without_delay_is_as_good_as_a_larger_gpu() -> None:
    trace = draw_trace(1, gap_s=100.0)
    large = simulate(trace, Parts(), replace_kv(ENDLESS))
    small = simulate(trace, tiers(cpu=ENDLESS))
    assert large.outcomes == small.outcomes


def replace_kv(tokens: int) -> SimSettings:
    return SMALL.model_copy(update={"kv_tokens": tokens})


def test_a_gpu_with_room_for_all_needs_no_tier() -> None:
    trace = draw_trace(2)
    without = simulate(trace, Parts(), replace_kv(10**7))
    found = simulate(trace, tiers(cpu=ENDLESS, gb_per_s=1.0), replace_kv(10**7))
    assert (0, without.outcomes) == (found.parts["prefix_cache"]["loads"], found.outcomes)


def test_more_room_finds_more_and_a_second_tier_finds_what_the_first_lost() -> None:
    trace = draw_trace(3, requests=300, gap_s=100.0)
    hits = [cached(simulate(trace, tiers(cpu=tokens))) for tokens in (BLOCK, 4_000, 16_000, ENDLESS)]
    assert sorted(hits) == hits
    assert hits[0] < hits[-1]
    both = simulate(trace, tiers(cpu=12_000, disk=ENDLESS))
    assert hits[-1] == cached(both)
    assert all(both.parts["prefix_cache"]["hit_by_tier"][name] > 0 for name in ("gpu", "cpu", "disk"))


def test_a_slower_tier_delays_first_tokens_by_its_loads() -> None:
    trace = draw_trace(4, gap_s=100.0)
    fast, slow = (simulate(trace, tiers(cpu=ENDLESS, gb_per_s=each)) for each in (math.inf, 0.5))
    loads = slow.parts["prefix_cache"]
    later = sum(b.ttft_s - a.ttft_s for a, b in zip(fast.outcomes, slow.outcomes, strict=True))
    assert loads["loads"] > 0
    assert pytest.approx(loads["loads"] * loads["load_mean_s"]) == later


def test_requests_of_a_dead_replica_are_served_though_their_load_was_under_way() -> None:
    trace = draw_trace(5, gap_s=0.2)
    deaths = tuple(Death(at_s) for at_s in (3.0, 7.5, 12.0))
    slow = replace(tiers(cpu=ENDLESS, gb_per_s=0.02))
    run = simulate(trace, slow, replicas=2, max_replicas=2, min_replicas=2, deaths=deaths, cold_start_s=2.0)
    assert {"completed"} == {each.end for each in run.outcomes}


def test_transfers_follow_each_other() -> None:
    link = Link(1.0, 0.25)
    assert [1.25, 3.25, 10.25] == [link.send(10**9, 0.0), link.send(2 * 10**9, 0.5), link.send(10**9, 9.0)]


def test_the_block_that_was_used_last_stays() -> None:
    store = TierStore([Tier("cpu", 2 * BLOCK, 1.0)], BLOCK, 1)
    store.use([1, 2])
    store.use([1, 3])
    assert [Found("cpu", BLOCK)] == store.find([1, 2])
    assert [Found("cpu", 2 * BLOCK)] == store.find([1, 3])


def test_the_end_of_a_prompt_goes_first() -> None:
    store = TierStore([Tier("cpu", 2, 1.0)], 1, 1)
    blocks, hold = LoadedBlocks(10, 1, store), KvHold()
    blocks.grow(hold, 3)
    blocks.publish(hold, [1, 2, 3], 3)
    blocks.release(hold)
    assert [Found("cpu", 2)] == store.find([1, 2, 3])


def test_a_load_takes_the_bytes_of_each_tier_over_its_own_link() -> None:
    store = TierStore([Tier("cpu", BLOCK, 1.0), Tier("disk", ENDLESS, 0.5, 0.1)], BLOCK, 10**7)
    store.use([1, 2, 3])
    found = store.find([3, 2, 1, 9])
    assert [Found("cpu", BLOCK), Found("disk", 2 * BLOCK)] == found
    assert pytest.approx(7.0 + 2 * 0.64 / 0.5 + 0.1) == store.load(found, 7.0)


def test_made_up_beginnings_are_before_the_longer_prompts() -> None:
    trace = [TraceRequest(n, float(n), 100 + n, 1) for n in range(200)]
    shared = share(trace, SharedPrefix(160, 0.5, 3), 16, seed=1)
    begins = [tuple(each.block_ids[:10]) for each in shared if each.prompt_tokens > 160]
    often = [begin for begin in set(begins) if begins.count(begin) > 1]
    assert 3 == len(often)
    assert 0.35 < sum(begins.count(begin) for begin in often) / len(begins) < 0.65
    assert all(len(each.block_ids) == -(-each.prompt_tokens // 16) for each in shared)
    ids = [block for each in shared for block in each.block_ids]
    assert len(set(ids)) == len(ids) - 10 * sum(begins.count(begin) - 1 for begin in often)
    assert [(each.arrival_s, each.prompt_tokens) for each in trace] == [
        (each.arrival_s, each.prompt_tokens) for each in shared
    ]


@pytest.mark.parametrize(
    ("shared", "trace", "words"),
    [
        (SharedPrefix(15), [TraceRequest(0, 0.0, 100, 1)], "must be at least one block of 16 tokens, got 15"),
        (SharedPrefix(100), [TraceRequest(0, 0.0, 100, 1)], "must be shorter than the trace's longest prompt"),
        (SharedPrefix(16), draw_trace(1, 1), "has no effect on a trace that tells which prompts begin alike"),
    ],
)
def test_beginnings_that_nothing_shares_are_refused(
    shared: SharedPrefix, trace: list[TraceRequest], words: str
) -> None:
    with pytest.raises(SettingsError, match=f"shared-prefix {words}"):
        share(trace, shared, 16, seed=1)


def test_reuse_is_what_was_published_of_a_recorded_load() -> None:
    """Of Mooncake's conversations 36.6 % of the blocks come again, with those that a prompt fills in part."""
    file = data_folder() / "mooncake_conversation.jsonl"
    if not file.exists():
        pytest.skip(f"there is no {file}")
    trace = read_trace(file)
    whole = [replace(each, prompt_tokens=len(each.block_ids) * each.block_tokens) for each in trace]
    found = reuse_of(whole)
    assert 36.6 == round(100 * found.reused_tokens / found.prompt_tokens, 1)
