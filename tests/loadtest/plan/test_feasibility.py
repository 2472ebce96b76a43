"""What is said to be possible must be: over many models, accelerators, loads and promises."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from cluster.control.step_model import Shape
from loadtest.plan.engine.architectures import KNOWN, load_shape
from loadtest.plan.engine.gpus import GPUS
from loadtest.plan.engine.memory import size
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.steady import steady
from loadtest.plan.option import KV_FILL, Layout, Operation, Promise, itl_p95, operate, replicas_for
from loadtest.plan.search import engines, on_paper, simulate
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import production, try_out

PRECISIONS = ("bf16", "fp8", "int4")
RANKS = (1, 2, 4, 8)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_fits_has_room_for_weights_overhead_and_every_kv_token(precision: str) -> None:
    for model in KNOWN:
        shape = load_shape(model)
        if shape.encoder:
            continue
        weights = weights_of(shape, precision).total_bytes + 2 * shape.tower
        for gpu in GPUS.values():
            short = float("inf")
            for ranks in RANKS:
                room = size(shape, gpu, ranks, precision)
                taken = weights / ranks + room.overhead + room.kv_tokens * shape.kv_bytes_per_rank(ranks)
                assert not room.fits or taken <= 0.9 * gpu.memory < gpu.memory, (model, gpu.name, ranks)
                assert room.fits or room.kv < 16 * shape.kv_bytes_per_rank(ranks)
                # More accelerators never have less room, nor does a smaller step.
                assert room.short_by <= short
                assert size(shape, gpu, ranks, precision, step_tokens=512).kv_tokens >= room.kv_tokens
                short = room.short_by


@pytest.mark.parametrize("model", [name for name in KNOWN if load_shape(name).encoder])
@pytest.mark.parametrize("gpu", ["l4", "t4", "h100"])
def test_a_model_that_only_reads_has_each_text_in_one_step(model: str, gpu: str) -> None:
    """Engines refuse to start one with fewer tokens per step than its context, or in stages: plans for bge-m3 on L4 had
    2,048 of 8,194.
    """
    shape = load_shape(model)
    load = steady_load(20.0, shape.context / 8, 1.0).within(shape.context)
    found, _ = engines(shape, [GPUS[gpu]], ["bf16"], prices={})
    operations = [operate(each, load, Promise(5.0, math.inf)) for each in found]
    assert all(isinstance(each, Operation) and each.step_tokens >= shape.context for each in operations)
    assert {1} == {each.layout.pipeline for each in found}
    asked = engines(shape, [GPUS[gpu]], ["bf16"], prices={}, parallel=(1,), layouts=[Layout(pipeline=2)])
    assert ([], ["engines run models that only read in one stage"]) == (asked[0], [each.why for each in asked[1]])


def test_a_model_is_split_only_as_its_heads_can_be() -> None:
    """Engines refuse the others when they start."""
    shape = load_shape("qwen3-32b")
    found, lost = engines(shape, [GPUS["h100"]], ["bf16"], prices={}, parallel=(2, 3))

    assert ["2 x h100, bf16"] == [each.name for each in found]
    assert ["64 attention heads can't be split over 3 GPUs"] == [each.why for each in lost]


@pytest.mark.parametrize(
    ("model", "sizes"), [("phi-4", [1, 2]), ("llama-3.1-8b", [1, 2, 4, 8]), ("qwen2.5-3b", [1, 2, 4, 8])]
)
def test_heads_of_keys_and_values_are_split_or_copied_evenly(model: str, sizes: list[int]) -> None:
    """An engine of vLLM does not start otherwise: Phi-4 has 10 of them, Qwen2.5-3B has 2."""
    found, lost = engines(load_shape(model), [GPUS["h200"]], ["bf16"], prices={})
    assert sizes == [each.tensor_parallel for each in found]
    assert all("heads of keys and values can't be split evenly over" in each.why for each in lost)
    assert len(lost) == 4 - len(sizes)


def test_what_is_planned_on_paper_keeps_every_bound() -> None:
    rnd, possible = random.Random(1), 0
    for _ in range(150):
        load = steady_load(rnd.uniform(0.5, 50), rnd.choice([64, 500, 2000, 12000]), rnd.choice([16, 200, 1000]))
        promise = Promise(rnd.choice([0.3, 2.0, 10.0]), rnd.choice([0.01, 0.03, 0.1, 0.5]))
        options, _ = engines(
            load_shape(rnd.choice(list(KNOWN))), [rnd.choice(list(GPUS.values()))], [rnd.choice(PRECISIONS)], prices={}
        )
        for engine in options:
            found = operate(engine.careful, load, promise)
            if not isinstance(found, Operation):
                continue
            possible += 1
            steps, shape = engine.careful.steps, load.shape
            assert load.longest <= min(engine.kv_tokens, engine.context)
            assert 1 <= found.batch <= engine.step_limits[1]
            assert found.batch == 1 or found.batch * shape.peak_tokens <= KV_FILL * engine.kv_tokens
            assert found.batch == 1 or itl_p95(steps, found.batch, shape, found.step_tokens) <= promise.itl_p95_s
            # A batch as full as the limit brings no more than decoding alone would.
            assert found.rate <= found.batch / (shape.output_tokens * steps.step(found.batch, found.batch, 0))
            assert replicas_for(found, load.rate) * found.rate >= load.rate
    assert possible > 100


def test_more_clients_than_the_cache_holds_wait_and_bring_nothing() -> None:
    """Saturation: beyond it throughput stays, and the wait grows with the clients."""
    (engine, *_), _ = engines(load_shape("llama-3.1-70b"), [GPUS["h100"]], ["fp8"], prices={}, parallel=[2])
    shape = steady_load(1.0, 4000, 500).shape
    seen = [
        steady(engine.steps, clients, shape, kv_tokens=engine.kv_tokens, step_tokens=8192, max_sequences=1024)
        for clients in (8, 64, 256, 512, 1024)
    ]
    room = engine.kv_tokens / (4000 + 250)
    assert max(each.batch for each in seen) <= room < 256
    assert seen[2].queue_s < seen[3].queue_s < seen[4].queue_s
    assert seen[4].tokens_per_s(500) == pytest.approx(seen[2].tokens_per_s(500))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "rate", "prompt", "output"),
    [("llama-3.1-8b", "l40s", 6.0, 1000, 100), ("gpt-oss-20b", "h100", 20.0, 500, 150)],
)
def test_what_holds_in_the_plan_holds_on_other_draws_of_the_load(
    model: str, gpu: str, rate: float, prompt: int, output: int
) -> None:
    load, promise = steady_load(rate, prompt, output), Promise(1.0, 0.1, 0.97)
    shape = load_shape(model)
    options, _ = engines(shape, [GPUS[gpu]], [shape.native], prices={}, parallel=[1])
    best = simulate(on_paper(options, load, promise)[0][0], load, promise, draws=2)
    assert best.holds
    careful, policy = best.engine.careful, production(best.engine.careful, load, promise)
    seen = [
        try_out(careful, best.candidate.operation, load, promise, best.candidate.replicas, seed=seed, fast=policy)
        for seed in (101, 102)
    ]
    assert min(each.attainment for each in seen) >= promise.attainment - 0.02


@pytest.mark.slow
def test_a_full_step_keeps_the_itl_slo_where_prompts_scatter_and_answers_are_short() -> None:
    rnd = random.Random(1)
    pairs = [(rnd.choice([100, 300, 1000, 4000]), rnd.choice([10, 40, 400])) for _ in range(500)]
    shape = Shape(fmean(prompt for prompt, _ in pairs), fmean(output for _, output in pairs))
    load, promise = Load("scattered", 20.0, shape, 4400, pairs=pairs), Promise()
    (engine, *_), _ = engines(load_shape("llama-3.1-8b"), [GPUS["h100"]], ["bf16"], prices={}, parallel=[1])

    found = operate(engine.careful, load, promise)
    assert isinstance(found, Operation)
    full = engine.careful.steps.step(found.batch, found.batch + found.step_tokens, found.batch * shape.mix.kv_tokens)
    assert full <= promise.itl_p95_s
    fast = production(engine.careful, load, promise)
    assert try_out(engine.careful, found, load, promise, 3, fast=fast).attainment >= 0.99
