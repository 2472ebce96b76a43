"""Times of an engine's steps: a step model, and where parts of a step overlap, the longer of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.control.step_model import Experts, Shape, StepModel

_SAMPLES = (4, 128)
"""Batches through which a linear model is laid."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time of a first token beside the steps that an idle batch would take."""

    overhead_s: float = 0.015
    """Seconds from the client to the scheduler and back: HTTP or gRPC, tokenizing, detokenizing."""
    steps: float = 1.5
    """Steps that pass before the prompt's own: the one that runs, and those already prepared behind it."""
    prefill: float = 1.0
    """Factor on the time of the prompt's own arithmetic. Prompts come in bursts, and kernels must warm up to them."""
    scale: float = 1.0
    """Factor on all of it, where it was measured or is drawn."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Reads of weights and arithmetic on them. Either hides behind the other, so the longer one counts."""

    dense_read_s: float
    """Seconds to read all weights but the experts'."""
    dense_token_s: float
    """Seconds of arithmetic per token."""
    expert_read_s: float = 0.0
    """Seconds to read all experts."""
    expert_token_s: float = 0.0
    expert_fixed_s: float = 0.0
    """Seconds of arithmetic if all experts have work, however little: rows are filled up, weights are widened."""
    experts: Experts | None = None
    gathering: float = 1.0
    """Exponent on a step's tokens: those of one batch choose similar experts, so fewer are read than by chance."""
    sharpness: float = 4.5
    """Exponent of the smooth maximum: with 1 the times add up, with infinity only the longer counts."""
    groups: int = 1
    """Groups of requests whose tokens meet the same experts in a step."""
    exchange_s: float = 0.0
    """Seconds per token of each group to bring the rows of all groups to every server, and the results back."""

    def seconds(self, tokens: float, alone: float = 0.0) -> float:
        """Return the seconds that a step with so many tokens takes for them.

        Args:
            tokens: of a group.
            alone: of these, tokens of a prompt that the other groups have none of. All share the work of its experts,
                and the links to them.
        """
        met = tokens - alone * (1 - 1 / self.groups)
        return self.dense_s(tokens) + self.experts_s(met) + self.exchange_s * met

    def dense_s(self, tokens: float) -> float:
        """Return the part of all weights but the experts'."""
        return _longer(self.dense_read_s, self.dense_token_s * tokens, self.sharpness)

    def experts_s(self, tokens: float) -> float:
        """Return the part of the routed experts."""
        if self.experts is None or tokens <= 0:
            return 0.0
        share = self.experts.share_read((tokens * self.groups) ** self.gathering)
        work = self.expert_token_s * tokens + self.expert_fixed_s * share
        return _longer(self.expert_read_s * share, work, self.sharpness)

    def times(self, read: float, arithmetic: float) -> Roofline:
        """Return the times of an engine that takes so many times as long."""
        return replace(
            self,
            dense_read_s=self.dense_read_s * read,
            expert_read_s=self.expert_read_s * read,
            dense_token_s=self.dense_token_s * arithmetic,
            expert_token_s=self.expert_token_s * arithmetic,
            expert_fixed_s=self.expert_fixed_s * arithmetic,
            exchange_s=self.exchange_s * arithmetic,
        )


def _longer(one: float, other: float, sharpness: float) -> float:
    long = max(one, other)
    if long <= 0:
        return 0.0
    return float(long * (1 + (min(one, other) / long) ** sharpness) ** (1 / sharpness))


@dataclass(frozen=True, slots=True)
class StepPrior:
    """Steps of one (model, accelerator, parallelism, precision)."""

    steps: StepModel
    """Parts that add up. Without a roofline, all of them."""
    request_s: float
    """Seconds per sequence in the step, beside its tokens."""
    roofline: Roofline | None = None
    attention_s: float = 0.0
    """Seconds per computed token of a prompt and token of the context before it."""
    first: FirstToken = field(default_factory=FirstToken)

    @property
    def groups(self) -> int:
        """Groups of requests that step together and share the experts."""
        return self.roofline.groups if self.roofline else 1

    def step(
        self, sequences: float, tokens: float, kv_tokens: float, attended: float = 0.0, alone: float = 0.0
    ) -> float:
        """Return the seconds that a step takes.

        Args:
            sequences: in the batch.
            tokens: computed, of decodes and prompts.
            kv_tokens: context tokens read.
            attended: sum over the computed tokens of prompts of the context before each.
            alone: tokens of a prompt that other groups have none of.
        """
        seconds = self.steps.predict(tokens, kv_tokens) + self.request_s * sequences + self.attention_s * attended
        return seconds + self.roofline.seconds(tokens, alone) if self.roofline else seconds

    def prompt_work_s(self, tokens: float) -> float:
        """Return the seconds of arithmetic on a prompt alone: what grows with it, without the reads of weights."""
        work = self.steps.b * tokens + self.attention_s * tokens * tokens / 2
        roofline = self.roofline
        if roofline is None:
            return work
        return work + (roofline.dense_token_s + roofline.expert_token_s + roofline.exchange_s) * tokens

    def for_shape(self, shape: Shape) -> StepModel:
        """Return a step model for such requests, as production's policies take it.

        The cost of a sequence is spread over the tokens that it brings. Reads and arithmetic that overlap become a line
        through a small and a large batch.
        """
        steps, mix = self.steps, shape.mix
        prompt = max(0.0, shape.prompt_tokens - shape.cached_tokens)
        # Prompts attend to themselves once in `output_tokens` steps.
        attended = self.attention_s * prompt * prompt / 2 / max(1.0, shape.output_tokens)
        b = steps.b + (self.request_s + attended) / mix.tokens
        if self.roofline is None:
            return replace(steps, b=b)
        low, high = (each * mix.tokens for each in _SAMPLES)
        line = (self.roofline.dense_s(high) - self.roofline.dense_s(low)) / (high - low)
        start = max(0.0, self.roofline.dense_s(low) - line * low)
        roofline = self.roofline
        # Past the batch that reads all experts only their arithmetic grows.
        read = roofline.experts_s(low) / max(1e-9, roofline.experts.share_read(low)) if roofline.experts else 0.0
        grown = max(0.0, roofline.experts_s(high) - (read if roofline.experts else 0.0)) / high
        return StepModel(steps.a + start, b + line + grown + roofline.exchange_s, steps.g, read, roofline.experts)

    def times(self, a: float, b: float, g: float, first: float = 1.0) -> StepPrior:
        """Return the engine that takes `a` times as long per step and read, `b` per token, `g` per KV token, and
        `first` times as long to a first token beyond that.
        """
        s = self.steps
        return StepPrior(
            replace(s, a=s.a * a, b=s.b * b, g=s.g * g, m=s.m * a),
            self.request_s * a,
            self.roofline.times(a, b) if self.roofline else None,
            self.attention_s * b,
            replace(self.first, scale=self.first.scale * first),
        )
