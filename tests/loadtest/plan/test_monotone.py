"""A promise or a load that asks for less never needs more accelerators on paper."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.option import Engine, Impossible, Promise, operate, replicas_for
from loadtest.plan.search import engines
from loadtest.plan.traffic import steady_load

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")
GPUS = ("l4", "a100", "h100", "b200", "mi300x")


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for."""

    ttft_s: float = 2.0
    itl_s: float = 0.1
    tpot_s: float = math.inf
    attainment: float = 0.99
    confidence: float = 0.9
    rate: float = 5.0
    prompt: float = 1000.0
    hit: float = 0.0


@cache
def listed(model: str, gpu: str) -> tuple[Engine, ...]:
    shape = load_shape(model)
    return tuple(engines(shape, [load_gpu(gpu)], [shape.native], prices={})[0])


def replicas(engine: Engine, asked: Asked) -> float:
    """Return the replicas that are needed on paper; infinity where it is impossible."""
    promise = Promise(asked.ttft_s, asked.itl_s, asked.attainment, asked.tpot_s, asked.confidence)
    load = steady_load(asked.rate, asked.prompt, 250.0, prefix_hit=asked.hit)
    found = operate(engine.at(promise.confidence), load, promise)
    return math.inf if isinstance(found, Impossible) else replicas_for(found, load.rate, engine.lanes)


def between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


ASKED = st.builds(
    Asked,
    ttft_s=between(0.3, 20.0),
    itl_s=between(0.01, 0.5) | st.just(math.inf),
    tpot_s=between(0.01, 0.2) | st.just(math.inf),
    attainment=st.sampled_from([0.9, 0.95, 0.99, 0.999]),
    confidence=st.sampled_from([0.5, 0.7, 0.9, 0.95]),
    rate=between(0.5, 500.0),
    prompt=between(4.0, 30_000.0),
    hit=st.sampled_from([0.0, 0.3, 0.8]),
)

LESS = {
    "a later first token": lambda asked, by: replace(asked, ttft_s=asked.ttft_s * by),
    "longer gaps": lambda asked, by: replace(asked, itl_s=asked.itl_s * by),
    "more time per token": lambda asked, by: replace(asked, tpot_s=asked.tpot_s * by),
    "more requests that may miss": lambda asked, by: replace(asked, attainment=asked.attainment / min(by, 1.1)),
    "less confidence": lambda asked, by: replace(asked, confidence=asked.confidence / min(by, 1.3)),
    "a lower rate": lambda asked, by: replace(asked, rate=asked.rate / by),
    "shorter prompts": lambda asked, by: replace(asked, prompt=asked.prompt / by),
    "more of each prompt in the cache": lambda asked, by: replace(asked, hit=1 - (1 - asked.hit) / by),
}


@pytest.mark.parametrize("less", LESS)
@settings(max_examples=25)
@given(st.sampled_from(MODELS), st.sampled_from(GPUS), st.integers(0, 99), ASKED, between(1.01, 4.0))
@example("deepseek-v3", "a100", 0, Asked(), 1.5)
@example("llama-3.1-8b", "l4", -1, Asked(prompt=1500.0), 1.5)
@example("gpt-oss-120b", "l4", -1, Asked(ttft_s=3.0), 1.05)
def test_what_asks_for_less_never_needs_more(
    less: str, model: str, gpu: str, which: int, asked: Asked, by: float
) -> None:
    """Two replicas of DeepSeek-V3 on A100 for first tokens within 2 s, and three within 3 s."""
    options = listed(model, gpu)
    if options:
        engine = options[which % len(options)]
        assert replicas(engine, LESS[less](asked, by)) <= replicas(engine, asked)
