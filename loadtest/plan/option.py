"""One way to run a model: accelerator, tensor parallel size and precision, and what can be computed on paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from cluster.control.batch_policy import FastRules
from cluster.control.step_model import Shape
from loadtest.plan.engine.points import DEVIATION
from loadtest.plan.engine.precision import is_made
from loadtest.plan.engine.steady import ARRIVAL_S, STEPS_BEFORE, first_token_s, itl_of, prefill_s
from loadtest.plan.engine.steps import StepPrior
from loadtest.plan.traffic import Load

STEP_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
KV_FILL = 0.9
"""Part of the KV cache that is planned for."""
AIM = FastRules()
"""Constants of the batch policy, which lets no batch grow larger."""
TTFT_PART = 0.7
"""Part of the TTFT SLO that the steps of a long prompt may take. The rest is for the queue."""
SLOWED = 1.25
"""Times as long as alone that a long prompt may take beside a batch in any case, if it is in time."""
FEW = 3
"""Long prompts that may meet in a step: so many, or so many times as many as a step has in the mean."""
PROFILE = "profile"
"""What was measured of an engine that a profile describes."""
USE = 0.85
"""Part of a replica's capacity that the first guess of the number of replicas uses."""


CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Promise:
    """The SLO that is planned for."""

    ttft_p99_s: float = 2.0
    itl_p95_s: float = 0.1
    """Bound on a request's gaps between tokens, their 95th percentile; infinity without one."""
    attainment: float = 0.99
    """Part of the requests that keep all bounds."""
    tpot_s: float = math.inf
    """Bound on a request's mean time per output token; infinity without one."""
    confidence: float = CONFIDENCE
    """Probability, over what is known of the engine's speed, that the replicas are enough."""

    @property
    def policy_itl_s(self) -> float:
        """Bound on the gaps that production's batch policy gets. It knows no bound on a mean, so it gets one that
        leaves room for steps with prompts; the batch limit keeps the mean.
        """
        return min(self.itl_p95_s, GAPS * self.tpot_s)

    def looser(self, factor: float) -> Promise:
        """Return the promise with a longer time between tokens."""
        return replace(self, itl_p95_s=factor * self.itl_p95_s, tpot_s=factor * self.tpot_s)


GAPS = 4.0
"""Times that a gap may be longer than the mean time per token where only the mean is bounded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Split of a replica beside tensor parallelism. Each part has a batch and a KV cache of its own."""

    pipeline: int = 1
    """Stages of layers. As many batches are under way at a time, one in each stage."""
    data: int = 1
    """Groups that share the experts: attention is computed by each group for its own requests."""

    @property
    def lanes(self) -> int:
        """Batches beside each other."""
        return self.pipeline * self.data

    def words(self, tensor_parallel: int) -> str:
        """Return the accelerators of a replica and the split in words."""
        return f"{tensor_parallel * self.lanes} ({self.split})" if self.split else str(tensor_parallel)

    @property
    def split(self) -> str:
        """The split in words; empty for tensor parallelism alone."""
        if self.data > 1:
            return f"DP {self.data}, EP"
        return f"PP {self.pipeline}" if self.pipeline > 1 else ""


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
    """Origin of the step times, in words."""
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
    ttft_error: float | None = None
    """Mean relative error of a first token's time without a queue; None where it is that of step times."""
    layout: Layout = field(default_factory=Layout)
    kv_element_bytes: float = 2.0
    fallback: str = ""
    """How it runs where the accelerator has no units for its precision; empty where it has them."""
    shifted: tuple[float, float] = (1.0, 1.0)
    """Factors that observations of earlier plans put on step times and on the time to a first token."""
    measured: str = ""
    """What was measured of its step times, in a word or two; empty where they are only expected."""
    whole_prompts: bool = False
    """Whether one step must compute a prompt, so that none is smaller than the context."""
    untold_context: int = 0
    """Context that it takes where nobody tells it one; 0 for the model's own."""
    native: str = ""
    """Precision of the published weights; empty where it is not known."""

    @property
    def name(self) -> str:
        """GPUs of a replica, how the model is split over them, and the precision in words."""
        return f"{self.layout.words(self.tensor_parallel)} x {self.gpu}, {self.precision}"

    @property
    def gpus(self) -> int:
        """Accelerators of one replica."""
        return self.tensor_parallel * self.layout.lanes

    @property
    def quantized(self) -> bool:
        """Whether the engine makes its weights of the published ones at its start, and must be told so."""
        return is_made(self.native, self.precision)

    def context_for(self, longest: int) -> int | None:
        """Return the context that it must be started with, so that it takes requests of up to `longest` tokens; None
        where nobody need tell it one. Engines with a KV cache smaller than their context don't start.
        """
        room, untold = int(KV_FILL * self.kv_tokens), self.untold_context or self.context
        if longest <= untold <= room:
            return None
        return min(self.context, max(min(untold, room), longest))

    @property
    def lanes(self) -> int:
        """Batches that a replica runs beside each other. Limits and KV tokens are those of one."""
        return self.layout.lanes

    def scaled(self, a: float, b: float, g: float, first: float = 1.0) -> Engine:
        """Return the engine with step times scaled by `a` per step and read, `b` per token, `g` per KV token, and the
        time to a first token beyond that by `first`.
        """
        return replace(self, steps=self.steps.times(a, b, g, first))

    def at(self, quantile: float) -> Engine:
        """Return the engine that is as slow as a part `quantile` of what is known of it would have it at most."""
        factor, first = self.margin(quantile)
        return self.scaled(factor, factor, factor, first / factor)

    def margin(self, quantile: float) -> tuple[float, float]:
        """Return how many times as long as predicted steps and the first token of `at` take."""
        z = NormalDist().inv_cdf(quantile) * DEVIATION
        return math.exp(z * self.error), math.exp(z * (self.ttft_error or self.error))

    @property
    def careful(self) -> Engine:
        """The engine, as slow as it is with the usual confidence."""
        return self.at(CONFIDENCE)


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
    twenty has a prompt in it, of this or of another group, that is the length of such a step.
    """
    own = max(1.0, shape.prompt_tokens - shape.cached_tokens)
    chunks = max(1, math.ceil(own / max(1.0, step_tokens - batch)))
    per_step = batch * chunks / max(1.0, shape.output_tokens)
    context = batch * shape.mix.kv_tokens
    if engine.groups * per_step <= 1 - AIM.aim_part:
        return engine.step(batch, batch, context)
    room = max(1.0, step_tokens - batch)
    # All parts but the last fill their steps.
    prompt = min(room, max(1.0, per_step) * min(own, room))
    # Where prompts are rare, the other groups have none in the same step.
    alone = prompt * max(0.0, 1.0 - per_step)
    return engine.step(batch + 1, batch + prompt, context, prompt * (shape.cached_tokens + own / 2), alone=alone)


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
    least = shape_within(load, promise.attainment)
    alone = steps.step(1, 1, max(shape.mix.kv_tokens, least.prompt_tokens))
    bound = min(promise.itl_p95_s, promise.tpot_s)
    if alone > bound:
        return Impossible(
            f"one sequence alone takes {1e3 * alone:.1f} ms per token, and the SLO is {1e3 * bound:.1f} ms"
        )
    first = alone_s(engine, least, largest)
    if first > promise.ttft_p99_s:
        return Impossible(
            f"a prompt of {least.prompt_tokens:,.0f} tokens alone takes {first:.2f} s on an idle replica, and the "
            f"TTFT SLO is {promise.ttft_p99_s:.2f} s: more replicas do not help; a TTFT SLO of more than "
            f"{first:.2f} s, more GPUs per replica, faster ones, or prefixes in the cache would"
        )
    budgets = [each for each in STEP_TOKENS if each < largest] + [largest]
    budgets = [each for each in budgets if each >= engine.context or not engine.whole_prompts]
    # Steps in which such a prompt alone is too late stay too slow with any number of replicas.
    quick = [each for each in budgets if alone_s(engine, least, each) <= promise.ttft_p99_s]
    # Each bound only takes choices away, so a looser promise never has a worse best one.
    sized = [_with_budget(engine, load, promise, budget, most) for budget in quick]
    return max(sized, key=lambda each: (each.rate, each.step_tokens))


def shape_within(load: Load, part: float) -> Shape:
    """Return the mean request with the shortest of the prompts that must be in time where only a part of them may be
    late. Prefixes that a trace shares differ from prompt to prompt, so its mean stands for all.
    """
    if load.trace and load.shares_prefixes:
        return load.shape
    prompt = load.prompt_within(part)
    shape = load.shape
    return replace(shape, prompt_tokens=prompt, cached_tokens=shape.cached_tokens * prompt / shape.prompt_tokens)


def alone_s(engine: Engine, shape: Shape, step_tokens: int) -> float:
    """Return the seconds to a first token on an idle replica."""
    known = replace(engine.steps.first, overhead_s=engine.overhead_s, steps=0.0)
    return first_token_s(replace(engine.steps, first=known), 0, shape, step_tokens)


def _by_ttft(engine: Engine, load: Load, promise: Promise, budget: int, most: int) -> float:
    """Return the largest batch beside which the longest prompt that must be in time is."""
    least = shape_within(load, promise.attainment)

    def seconds(batch: float) -> float:
        return prefill_s(engine.steps, batch, least, budget) + engine.overhead_s

    # Where hardly any time is left, more replicas keep the batch below its limit.
    bound = max(TTFT_PART * promise.ttft_p99_s, min(promise.ttft_p99_s, SLOWED * seconds(1)))
    return _largest(seconds, bound, most)


def _by_itl(engine: Engine, load: Load, promise: Promise, budget: int, most: int) -> float:
    """Return the largest batch that keeps the bound on gaps, in a step with a few long prompts too. However short steps
    are on average, in an answer of fewer than twenty tokens a single gap over the SLO is a miss, which more replicas do
    not help. Only where such steps are too rare to be a request's 95th percentile may they be longer.
    """
    shape, steps, aimed = load.shape, engine.steps, AIM.aim * promise.itl_p95_s
    least = shape_within(load, promise.attainment)
    few = FEW * max(1.0, least.prompt_tokens - least.cached_tokens)

    def full(batch: float) -> float:
        prompts = min(max(1.0, budget - batch), few * max(1.0, batch / max(1.0, shape.output_tokens)))
        return steps.step(batch + 1, batch + prompts, batch * shape.mix.kv_tokens, prompts * shape.prompt_tokens / 2)

    kept = max(_largest(full, promise.itl_p95_s, most), _with_rare_prompts(engine, shape, budget, promise.attainment))
    return min(
        kept,
        _largest(lambda batch: itl_p95(steps, batch, shape, budget), aimed, most),
        # Where steps with prompts are rarer than the percentile they are in the mean still.
        _largest(lambda batch: itl_of(steps, batch, shape, budget), aimed, most),
    )


def _with_rare_prompts(engine: Engine, shape: Shape, budget: int, attainment: float) -> float:
    """Return the largest batch in which a part of the requests meets so few prompts of others that the steps with them
    are above the 95th percentile of its gaps. Prompts come at random, so more than the mean must be.
    """
    own = max(1.0, shape.prompt_tokens - shape.cached_tokens)
    may_be = (1 - AIM.aim_part) * shape.output_tokens // math.ceil(own / budget)
    # The mean of a Poisson distribution with this quantile, by its normal approximation.
    z = NormalDist().inv_cdf(attainment)
    mean = (max(0.0, math.sqrt(z * z + 4 * may_be) - z) / 2) ** 2
    return (1 + mean) / engine.steps.groups


def _with_budget(engine: Engine, load: Load, promise: Promise, budget: int, most: int) -> Operation:
    shape, steps = load.shape, engine.steps
    by_kv = KV_FILL * engine.kv_tokens / shape.peak_tokens
    by_tpot = _largest(lambda batch: itl_of(steps, batch, shape, budget), AIM.aim * promise.tpot_s, most)
    # More sequences bring more prompt tokens than steps of this size can take.
    by_step = budget / shape.mix.tokens
    bounds = {
        "engine's batch limit": float(most),
        "KV cache": by_kv,
        "ITL SLO": _by_itl(engine, load, promise, budget, most),
        "TPOT SLO": by_tpot,
        "TTFT SLO": _by_ttft(engine, load, promise, budget, most),
        "tokens per step": by_step,
    }
    binding = min(bounds, key=lambda name: bounds[name])
    batch = max(1, int(bounds[binding]))
    if binding == "tokens per step" and budget < engine.step_limits[0]:
        # A larger budget would take more tokens, but its steps are too long.
        binding = "ITL SLO" if math.isfinite(promise.itl_p95_s) else "TPOT SLO"
    itl = itl_of(steps, batch, shape, budget)
    return Operation(batch, budget, itl, rate_of(steps, batch, shape, budget), binding)


def rate_of(steps: StepPrior, batch: float, shape: Shape, step_tokens: int) -> float:
    """Return the requests per second that a full batch completes."""
    itl = itl_of(steps, batch, shape, step_tokens)
    return batch / (shape.output_tokens * itl + prefill_s(steps, batch, shape, step_tokens))


def _largest(seconds: Callable[[float], float], bound: float, most: int) -> float:
    """Return the largest batch, `most` at most, whose time stays within a bound."""
    if seconds(most) <= bound:
        return float(most)
    low, high = 0.0, float(most)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) <= bound else (low, middle)
    return low


def replicas_for(operation: Operation, rate: float, lanes: int = 1) -> int:
    """Return a first guess of the replicas that a load needs."""
    return max(1, math.ceil(rate / (USE * operation.rate * lanes)))
