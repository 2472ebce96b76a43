"""One way to run a model: accelerator, tensor parallel size and precision, and what can be computed on paper."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.control.batch_policy import FastRules
from cluster.control.step_model import Shape
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.engine.steady import ARRIVAL_S, STEPS_BEFORE, itl_of, prefill_s
from loadtest.plan.traffic import Load

STEP_TOKENS = (512, 1024, 2048, 4096, 8192)
KV_FILL = 0.9
"""Part of the KV cache that is planned for."""
AIM = FastRules()
"""Constants of the batch policy, which lets no batch grow larger."""
NEAR = 0.5
"""Part of the largest throughput on paper that a step size must bring if a full step of it keeps the ITL SLO. Larger
steps took two to four times as many replicas in trials, or never kept the SLO."""
USE = 0.85
"""Part of a replica's capacity that the first guess of the number of replicas uses."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The SLO that is planned for."""

    ttft_p99_s: float = 2.0
    itl_p95_s: float = 0.1
    attainment: float = 0.99
    """Part of the requests that keep both."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica as it would be."""

    model: str
    gpu: str
    tensor_parallel: int
    precision: str
    steps: StepPrior
    error: float
    """Mean relative error of its step times."""
    source: str
    """Origin of the step times."""
    kv_tokens: int
    step_limits: tuple[int, int]
    """Largest token budget of a step, and largest batch."""
    context: int
    starved: bool = False
    price: float | None = None
    """Price per accelerator and hour."""
    overhead_s: float = ARRIVAL_S
    """Seconds of the way to the first token beside the engine's steps and the queue."""
    overhead_steps: float = STEPS_BEFORE - 0.5
    """Steps that a prompt waits for, beside the rest of the step that runs when it comes: those prepared in advance."""

    @property
    def name(self) -> str:
        """Tensor parallel size, accelerator and precision in words."""
        return f"{self.tensor_parallel} x {self.gpu}, {self.precision}"

    def scaled(self, a: float, b: float, g: float) -> Engine:
        """Return the engine with step times scaled by `a` per step and expert, `b` per token, `g` per KV token."""
        s = self.steps.steps
        model = replace(s, a=s.a * a, b=s.b * b, g=s.g * g, m=s.m * a)
        return replace(self, steps=StepPrior(model, self.steps.request_s * a))

    @property
    def careful(self) -> Engine:
        """The engine, as slow as its error makes likely."""
        factor = 1 + self.error
        return self.scaled(factor, factor, factor)


@dataclass(frozen=True, slots=True)
class Operation:
    """Limits that run a replica best under a promise, and what it then does."""

    batch: int
    """Batch limit, sequences."""
    step_tokens: int
    itl_s: float
    """Mean time between tokens at the full batch."""
    rate: float
    """Requests per second that it completes at the full batch."""
    binding: str
    """Limit that keeps the batch from being larger."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """Reason why something is impossible."""

    why: str


def itl_p95(engine: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the 95th percentile of the time between tokens of a steady batch, seconds. Where more than one step in
    twenty has a prompt in it, that is the length of such a step.
    """
    chunks = max(1, math.ceil((shape.prompt_tokens - shape.cached_tokens) / step_tokens))
    per_step = batch * chunks / max(1.0, shape.output_tokens)
    context = batch * shape.mix.kv_tokens
    if per_step <= 1 - AIM.aim_part:
        return engine.step(batch, batch, context)
    prompt = min(float(step_tokens), max(1.0, per_step) * shape.prompt_tokens / chunks)
    return engine.step(batch + 1, batch + prompt, context)


def operate(engine: Engine, load: Load, promise: Promise) -> Operation | Impossible:
    """Choose batch limit and token budget for the most requests per second that the promise allows."""
    shape, steps = load.shape, engine.steps
    if load.longest > engine.kv_tokens:
        return Impossible(
            f"the longest request has {load.longest:,} tokens, and the KV cache room for {engine.kv_tokens:,}"
        )
    if load.longest > engine.context:
        return Impossible(f"the longest request has {load.longest:,} tokens, and the context is {engine.context:,}")
    largest, most = engine.step_limits
    alone = steps.step(1, 1, shape.mix.kv_tokens)
    if alone > promise.itl_p95_s:
        return Impossible(
            f"one sequence alone takes {1e3 * alone:.1f} ms per token, and the SLO is {1e3 * promise.itl_p95_s:.1f} ms"
        )
    first = prefill_s(steps, 1, shape, largest) + engine.overhead_s
    if first > promise.ttft_p99_s:
        return Impossible(
            f"a mean prompt takes {first:.2f} s on an idle replica, and the TTFT SLO is {promise.ttft_p99_s:.2f} s"
        )
    budgets = [each for each in STEP_TOKENS if each < largest] + [largest]
    found = [_with_budget(engine, load, promise, budget, most) for budget in budgets]
    least = NEAR * max(each.rate for each in found)
    calm = [each for each in found if each.rate >= least and _whole_step_s(engine, each, shape) <= promise.itl_p95_s]
    return max(calm or found, key=lambda each: (each.rate, each.step_tokens))


def _whole_step_s(engine: Engine, operation: Operation, shape: Shape) -> float:
    """Return the seconds of a step whose budget is full. However short steps are on average, a few long prompts fill
    one. In an answer of fewer than twenty tokens a single gap over the SLO is a miss, and more replicas do not help.
    """
    batch = operation.batch
    return engine.steps.step(batch, batch + operation.step_tokens, batch * shape.mix.kv_tokens)


def _with_budget(engine: Engine, load: Load, promise: Promise, budget: int, most: int) -> Operation:
    shape, steps = load.shape, engine.steps
    by_kv = KV_FILL * engine.kv_tokens / shape.peak_tokens
    by_itl = float(most)
    aim = AIM.aim * promise.itl_p95_s
    if itl_p95(steps, most, shape, budget) > aim:
        low, by_itl = 0.0, float(most)
        for _ in range(30):
            middle = (low + by_itl) / 2
            low, by_itl = (middle, by_itl) if itl_p95(steps, middle, shape, budget) <= aim else (low, middle)
    # More sequences bring more prompt tokens than steps of this size can take.
    by_step = budget / shape.mix.tokens
    bounds = {"engine's batch limit": float(most), "KV cache": by_kv, "ITL SLO": by_itl, "tokens per step": by_step}
    binding = min(bounds, key=lambda name: bounds[name])
    batch = max(1, int(bounds[binding]))
    if binding == "tokens per step" and budget < engine.step_limits[0]:
        # A larger budget would take more tokens, but its steps are too long.
        binding = "ITL SLO"
    itl = itl_of(steps, batch, shape, budget)
    rate = batch / (shape.output_tokens * itl + prefill_s(steps, batch, shape, budget))
    return Operation(batch, budget, itl, rate, binding)


def replicas_for(operation: Operation, rate: float) -> int:
    """Return a first guess of the replicas that a load needs."""
    return max(1, math.ceil(rate / (USE * operation.rate)))
