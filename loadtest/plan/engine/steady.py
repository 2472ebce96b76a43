"""A replica under a steady number of clients: TPOT and TTFT in closed form.

Prompts are computed in a few long steps between many short ones. Times of both are averaged, because they are not
linear: the batch reads experts in every step, and prompts read them only in their own steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.control.step_model import Shape
from loadtest.plan.engine.steps import FirstToken, StepPrior

ARRIVAL_S = FirstToken().overhead_s
STEPS_BEFORE = FirstToken().steps
TOGETHER = 0.055
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
    context = batch * shape.mix.kv_tokens
    decode = engine.step(batch, batch, context)
    prompt = max(0.0, shape.prompt_tokens - shape.cached_tokens)
    if not prompt:
        return decode
    chunks, each, attended = _chunks(shape, batch, step_tokens)
    # Where prompts fill more than every step, their work goes on in all steps. Groups wait for each other's prompts.
    part = engine.groups * batch * chunks / max(1.0, shape.output_tokens)
    mixed = engine.step(batch, batch + each, context, attended, alone=each)
    return decode + part * (mixed - decode)


def _chunks(shape: Shape, batch: float, step_tokens: int) -> tuple[int, float, float]:
    """Return the steps that compute a prompt beside a batch, the prompt's tokens in each, and what they attend to."""
    prompt = max(1.0, shape.prompt_tokens - shape.cached_tokens)
    chunks = max(1, math.ceil(prompt / max(1.0, step_tokens - batch)))
    attended = prompt * (shape.cached_tokens + prompt / 2)
    return chunks, prompt / chunks, attended / chunks


@dataclass(frozen=True, slots=True)
class GroupWaits:
    """Waits of a group for prompts of the groups that it steps together with, in the mean. A step ends with the slowest
    group.
    """

    parts_per_s: float
    """Parts of prompts that the other groups compute per second."""
    part_s: float
    """Seconds by which such a part makes a step longer."""

    def longer(self, seconds: float) -> float:
        """Return how long a step of a group without prompts takes. The longer it is, the more likely another group has
        a part of a prompt in it.
        """
        found = seconds + self.part_s
        for _ in range(_ROUNDS):
            found = seconds + self.part_s * -math.expm1(-self.parts_per_s * found)
        return found


_ROUNDS = 8
"""Rounds from above. They converge on the longest step that agrees with itself."""


def waits_of(engine: StepPrior, batch: float, shape: Shape, step_tokens: int, rate: float) -> GroupWaits | None:
    """Return the waits of each of the groups that share experts; None for an engine without groups.

    Args:
        engine: its steps.
        batch: of each group.
        shape: a mean request.
        step_tokens: token budget of a group's step.
        rate: requests per second of each group.
    """
    if engine.groups == 1:
        return None
    chunks, each, attended = _chunks(shape, batch, step_tokens)
    context = batch * shape.mix.kv_tokens
    mixed = engine.step(batch, batch + each, context, attended, alone=each)
    return GroupWaits((engine.groups - 1) * rate * chunks, max(0.0, mixed - engine.step(batch, batch, context)))


def prefill_s(engine: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the seconds of the steps that compute one prompt beside a batch that decodes."""
    chunks, each, attended = _chunks(shape, batch, step_tokens)
    return chunks * engine.step(batch + 1, batch + each, batch * shape.mix.kv_tokens, attended, alone=each)


def first_token_s(engine: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the seconds to a first token beside a batch that decodes, without a queue."""
    chunks, _, _ = _chunks(shape, batch, step_tokens)
    decode = engine.step(batch, batch, batch * shape.mix.kv_tokens)
    whole = prefill_s(engine, batch, shape, step_tokens)
    first = engine.first
    # Only the prompt's own work is slower than the same work of many prompts.
    own = chunks * decode + first.prefill * (whole - chunks * decode)
    return first.scale * (first.overhead_s + first.steps * decode + own)


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
    prompt = max(0.0, shape.prompt_tokens - shape.cached_tokens)
    first = engine.first
    others = TOGETHER * (batch - 1) * engine.prompt_work_s(prompt) * first.prefill * first.scale
    ttft = first_token_s(engine, batch, shape, step_tokens) + others
    queue = (clients / batch - 1) * (shape.output_tokens * itl + ttft) if clients > batch else 0.0
    return Steady(itl, ttft + queue, batch, queue)
