"""A replica under a steady number of clients: TPOT and TTFT in closed form.

Prompts are computed in a few long steps between many short ones. The mean over both is exact for all terms but that of
experts. The batch reads experts in every step, and prompts read them only in their own steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.control.step_model import Shape
from loadtest.plan.engine.prior import StepPrior

ARRIVAL_S = 0.015
"""Seconds from the client to the scheduler and back: HTTP or gRPC, tokenizing, detokenizing."""
STEPS_BEFORE = 1.5
"""Steps that pass before the prompt's own: the one that runs, and the one already prepared behind it."""
TOGETHER = 0.06
"""Part of the other clients' prompts that a closed loop puts ahead of a prompt: all begin at the same moment."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Figures of a steady load, in seconds."""

    itl_s: float
    ttft_s: float
    batch: float
    """Mean number of sequences in the batch."""
    queue_s: float
    """Part of the TTFT in which the KV cache or the batch limit had no room."""

    def tokens_per_s(self, output_tokens: float) -> float:
        """Return the output tokens per second of the replica."""
        return self.batch * output_tokens / (output_tokens * self.itl_s + self.ttft_s - self.queue_s)


def itl_of(engine: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the mean time between tokens of a steady batch, seconds."""
    model, mix = engine.steps, shape.mix
    dense = engine.request_s * batch + model.a + batch * (model.b * mix.tokens + model.g * mix.kv_tokens)
    if model.experts is None or not model.m:
        return dense
    prompt = max(0.0, shape.prompt_tokens - shape.cached_tokens)
    chunks = math.ceil(prompt / step_tokens) if prompt else 0
    part = min(1.0, batch * chunks / max(1.0, shape.output_tokens))
    decode = model.experts.share_read(batch)
    mixed = model.experts.share_read(batch + prompt / max(1, chunks))
    return dense + model.m * ((1 - part) * decode + part * mixed)


def prefill_s(engine: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the seconds of the steps that compute one prompt beside a batch that decodes."""
    prompt = max(1.0, shape.prompt_tokens - shape.cached_tokens)
    chunks = max(1, math.ceil(prompt / max(1.0, step_tokens - batch)))
    return chunks * engine.step(batch + 1, batch + prompt / chunks, batch * shape.mix.kv_tokens)


def steady(
    engine: StepPrior, clients: float, shape: Shape, *, kv_tokens: float, step_tokens: int, max_sequences: int
) -> Steady:
    """Predict a closed loop: each client sends its next request when it has its answer.

    Args:
        engine: its steps.
        clients: number of clients, at least 1.
        shape: a mean request.
        kv_tokens: size of the KV cache.
        step_tokens: token budget of a step.
        max_sequences: the batch limit.
    """
    room = kv_tokens / (shape.prompt_tokens + shape.output_tokens / 2)
    batch = max(1.0, min(clients, room, max_sequences))
    itl = itl_of(engine, batch, shape, step_tokens)
    others = TOGETHER * (batch - 1) * engine.steps.b * max(0.0, shape.prompt_tokens - shape.cached_tokens)
    decoding = engine.step(batch, batch, batch * shape.mix.kv_tokens)
    ttft = ARRIVAL_S + STEPS_BEFORE * decoding + others + prefill_s(engine, batch, shape, step_tokens)
    queue = (clients / batch - 1) * (shape.output_tokens * itl + ttft) if clients > batch else 0.0
    return Steady(itl, ttft + queue, batch, queue)
