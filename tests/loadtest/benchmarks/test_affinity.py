"""The affinity benchmark's own claims, on a small load: it counts right, and the production policy pays."""

from __future__ import annotations

import json
import random

import pytest

from cluster.settings import AffinitySettings, SimSettings
from loadtest.benchmarks.affinity.simulation import AffinityResult, AffinitySimulation, ArrivalPattern
from loadtest.benchmarks.affinity.trace import BLOCK_TOKENS, TraceRequest, ideal_hit_rate, load_trace
from router.affinity import Affinity

ENGINE = SimSettings(kv_tokens=120_000, max_num_seqs=6, max_num_batched_tokens=4_096, max_model_len=32_768)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[TraceRequest]:
    """A hundred conversations of about six turns; everybody begins with the same block."""
    rnd = random.Random(1)
    talks = [[0, 1_000 * talk] for talk in range(1, 101)]
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    with path.open("w") as file:
        for number in range(600):
            talk = rnd.choice(talks)
            talk += [talk[-1] + 1, talk[-1] + 2]
            tokens = len(talk) * BLOCK_TOKENS - 100
            file.write(
                json.dumps({"timestamp": number, "input_length": tokens, "output_length": 50, "hash_ids": talk}) + "\n"
            )
    return load_trace(path, 600, ENGINE.max_model_len)


async def simulate(trace: list[TraceRequest], routers: int, **settings: bool) -> AffinityResult:
    simulation = AffinitySimulation(
        trace,
        ArrivalPattern(waiting=24),
        replicas=4,
        routers=routers,
        settings=ENGINE,
        policy=lambda: Affinity(AffinitySettings.model_validate(settings)),
    )
    return await simulation.run()


def test_a_trace_becomes_prompts_that_share_what_it_says(trace: list[TraceRequest]) -> None:
    one = next(request for request in trace if request.session == "s1000")
    two = next(request for request in trace if request.session == "s1000" and request.number > one.number)

    assert one.prompt_tokens == len(one.token_ids())
    shared = len(one.block_ids) * BLOCK_TOKENS - 100
    assert one.token_ids()[:shared] == two.token_ids()[:shared]
    assert 0.5 < ideal_hit_rate(trace) < 1


@pytest.mark.slow
async def test_affinity_finds_more_of_the_cache_than_chance_and_answers_sooner(trace: list[TraceRequest]) -> None:
    none = await simulate(trace, 2, prefix=False, session=False)
    both = await simulate(trace, 2)

    assert none.hits + none.misses == 0
    assert both.hits > both.misses
    rate = both.cached_tokens / both.prompt_tokens
    assert rate >= 1.3 * none.cached_tokens / none.prompt_tokens
    assert rate <= ideal_hit_rate(trace)
    assert sorted(both.ttft)[len(both.ttft) // 2] < sorted(none.ttft)[len(none.ttft) // 2]


@pytest.mark.slow
async def test_four_routers_keep_most_of_what_one_achieves(trace: list[TraceRequest]) -> None:
    """They share nothing; the first guess by rendezvous is what they have in common."""
    one, four = await simulate(trace, 1), await simulate(trace, 4)

    assert four.cached_tokens / four.prompt_tokens >= 0.75 * one.cached_tokens / one.prompt_tokens
