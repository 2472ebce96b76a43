"""The batch policy: chooses how many sequences a replica batches, once a second, from what the replica measured.

The policy replays the steps of the last seconds with other batch sizes, and takes the size that keeps the inter-token
latency (ITL) within its SLO. A small trim corrects errors of the step model. The trim goes down by a factor when a
settled batch shows a latency over the SLO, and back up slowly when the latency is well below. Time to first token is
not a signal here: it depends on the requests that wait elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.control.replay import Replay, itl_of
from cluster.control.snapshot import BatchSnapshot
from cluster.control.step_model import BatchMix, StepModel
from cluster.plural import counted
from penstock.values.steps import Relief, Step

ITL_PART = 0.95
"""Percentile that ITL SLOs are about."""


@dataclass(frozen=True, slots=True)
class FastRules:
    """Constants of the batch policy."""

    aim: float = 0.98
    """Part of the SLO that the batch is chosen for. It is below 1 because measurements scatter around the aim."""
    aim_part: float = 0.953
    """Part of the tokens that is to stay within the aim. The SLO itself asks for `ITL_PART`."""
    slack: float = 0.85
    """Part of the SLO below which the trim recovers."""
    trim_floor: float = 0.5
    trim_down: float = 0.9
    """Largest cut of the trim in one tick."""
    trim_up: float = 0.02
    fall: float = 0.2
    """Largest part of the limit that one tick takes away."""
    rise: float = 0.1
    """Largest part of the limit that one tick adds."""
    far_rise: float = 0.5
    """Largest part that one tick adds while the model allows at least twice the limit."""
    start_rise: float = 1.0
    """Largest part that one tick adds before the first fit: the limit may double while the latency is well below its
    SLO."""
    settled: float = 0.1
    """A step counts as one at the limit when its batch differs from the limit by at most this part."""
    disturbed_floor: float = 1 / 3
    """Disturbed steps reduce the batch at most to this part of what undisturbed steps would allow."""
    rate_floor: float = 1 / 3
    """Steps that compute prompts reduce the throughput at most to this part. An ITL SLO below the length of such a step
    could only be held by letting in very few prompts, and then every request would wait to begin."""
    kv_fill: float = 0.9
    """Part of the KV cache that is planned for."""
    kv_slack: float = 0.85
    """KV usage below which the trim recovers."""
    min_steps: int = 20
    """Steps that a percentile needs."""
    follow: float = 0.3
    """Part of the way to a new replay's result that one tick goes. Prompts come at random, so each replay differs."""
    jump: float = 0.3
    """A change larger than this part is not chance. The policy follows it at once."""
    band: float = 0.04
    """A change of the limit by less than this part is not worth making."""
    quantum_s: float = 1.0
    """Seconds of interactive arrivals that batch work leaves room for."""


_USUAL = FastRules()
_TO_THE_EDGE = FastRules(aim=1.0, aim_part=ITL_PART)
"""Constants without the margins that keep the latency below its SLO in spite of chance."""


def rules_under(relief: Relief) -> FastRules:
    """Return the constants for what the pool gives up. Every relief begins with latency, so all but none are alike."""
    return _USUAL if relief is Relief.NONE else _TO_THE_EDGE


@dataclass(frozen=True, slots=True)
class FastBounds:
    """Bounds of the batch limit, in sequences."""

    smallest: int
    largest: int

    def clamp(self, limit: float) -> int:
        """Return the nearest whole limit within the bounds."""
        return max(self.smallest, min(self.largest, round(limit)))


@dataclass(frozen=True, slots=True)
class FastState:
    """What the policy remembers from tick to tick."""

    trim: float = 1.0
    model: StepModel | None = None
    """Step model that the trim belongs to."""
    feed_forward: float | None = None
    """Average over the last ticks."""


@dataclass(frozen=True, slots=True)
class FastDecision:
    """Result of one tick."""

    limit: int
    batch_class_limit: int
    """Sequences of class BATCH that leave room for interactive ones that come."""
    feed_forward: float | None
    """What model and KV cache allow, before the trim. None without a model or without enough steps."""
    overloaded: bool
    """Whether the SLO is missed with the smallest batch. More replicas are needed then."""
    given_up: bool
    """Whether steps with prompts miss the SLO in any batch. The limit keeps a part of the throughput instead."""
    steps: tuple[Step, ...]
    state: FastState = field(default_factory=FastState)

    @property
    def cause(self) -> str:
        """Name of the step that decided the limit."""
        for step in reversed(self.steps):
            if step.name not in ("limit", "batch_class", "trimmed", "smoothed", "trim", "model_moved"):
                return step.name
        return "limit"


def decide(
    itl_slo_s: float, bounds: FastBounds, seen: BatchSnapshot, state: FastState, rules: FastRules | None = None
) -> FastDecision:
    """Choose the next batch limit.

    Args:
        itl_slo_s: the tightest ITL SLO among the requests that share the batch, 95th percentile, seconds.
        bounds: of every limit.
        seen: the measurements.
        state: of the last decision; `FastState()` at first.
        rules: the constants.
    """
    tick = _Tick(itl_slo_s, bounds, seen, rules or FastRules())
    state = tick.follow_model(state)
    feed_forward = tick.feed_forward()
    if feed_forward is None:
        wanted = tick.without_model()
    else:
        feed_forward = tick.smooth(feed_forward, state)
        state = replace(tick.trim(state), feed_forward=feed_forward)
        wanted = max(feed_forward * state.trim, tick.floor)
        tick.note("trimmed", wanted, f"{feed_forward:.4g} sequences times a trim of {state.trim:.2f}")
    limit = tick.bound(wanted)
    reserve = tick.reserve(limit)
    return FastDecision(limit, reserve, feed_forward, tick.overloaded, tick.floor > 0, tuple(tick.steps), state)


class _Tick:
    """One decision in the making."""

    def __init__(self, itl_slo_s: float, bounds: FastBounds, seen: BatchSnapshot, rules: FastRules) -> None:
        self.slo_s, self.bounds, self.seen, self.rules = itl_slo_s, bounds, seen, rules
        self.steps: list[Step] = []
        self.floor = 0.0
        """Batch that is kept although it misses the SLO; 0 where the SLO is within reach."""
        self.mix = BatchMix.of(seen.samples)
        # The limit is a whole number, and a batch lacks one whenever a sequence has just ended.
        limit, off = seen.limit, max(1.0, rules.settled * seen.limit)
        near = [sample for sample in seen.samples if abs(sample.sequences - limit) <= off]
        self.p95_s = itl_of(near, ITL_PART) if len(near) >= rules.min_steps else None
        """ITL at the limit in force. None where the limit does not bind, or where the batch still drains down to it."""

    def note(self, name: str, value: float, reason: str) -> None:
        self.steps.append(Step(name, value, reason))

    @property
    def violated(self) -> bool:
        return self.p95_s is not None and self.p95_s > self.slo_s

    @property
    def slack(self) -> bool:
        return (
            self.p95_s is not None
            and self.p95_s < self.rules.slack * self.slo_s
            and self.seen.kv_usage < self.rules.kv_slack
        )

    @property
    def overloaded(self) -> bool:
        return self.violated and self.seen.limit <= self.bounds.smallest

    # --- with a model -------------------------------------------------------------------------------------------------

    def follow_model(self, state: FastState) -> FastState:
        """Forget half of the trim when the model has moved: it corrected the error of another model."""
        model = self.seen.model
        if model is None or self.mix is None:
            return state
        if state.model is None:
            return replace(state, model=model)
        before, now = state.model.itl(self.seen.limit, self.mix), model.itl(self.seen.limit, self.mix)
        if before <= 0 or abs(now / before - 1.0) <= 0.1:
            return state
        trim = 1.0 + (state.trim - 1.0) / 2
        self.note("model_moved", trim, f"it says {_ms(now)} where it said {_ms(before)}; half of the trim goes")
        return replace(state, model=model, trim=trim)

    def feed_forward(self) -> float | None:
        seen, rules = self.seen, self.rules
        if seen.model is None or self.mix is None:
            return None
        replay = Replay(seen.samples, seen.model, step_tokens=seen.step_tokens)
        if replay.steps < rules.min_steps:
            return None
        value = replay.batch_for_itl(rules.aim * self.slo_s, rules.aim_part, float(self.bounds.largest))
        self.note(
            "itl", value, f"{rules.aim:.0%} of an ITL SLO of {_ms(self.slo_s)}, by {counted(replay.steps, 'step')} "
            f"with {self.mix.tokens:.3g} tokens and {self.mix.kv_tokens:.4g} context tokens per sequence",
        )  # fmt: skip
        value = self._not_disturbed(value, seen.model)
        context = self.mix.kv_tokens
        by_kv = rules.kv_fill * seen.kv_tokens / context if seen.kv_tokens and context > 0 else float("inf")
        if by_kv < value:
            value = by_kv
            self.note("kv", value, f"{rules.kv_fill:.0%} of {seen.kv_tokens} KV tokens at {context:.4g} per sequence")
        return self._not_starved(value, replay, self.mix, min(by_kv, float(self.bounds.largest)))

    def _not_starved(self, value: float, replay: Replay, mix: BatchMix, largest: float) -> float:
        """Keep a part of the throughput where a step with a prompt misses the SLO in any batch."""
        model, aim_s = replay.model, self.rules.aim * self.slo_s
        prompt_s = replay.prompt_step_s(float(self.bounds.smallest))
        if prompt_s <= aim_s:
            return value
        worth = model.batch_for_rate(self.rules.rate_floor, mix, largest)
        self.floor = min(worth, model.batch_for_itl(aim_s, BatchMix(1.0, mix.kv_tokens)))
        if value >= self.floor:
            self.floor = 0.0
            return value
        self.note(
            "given_up", self.floor, f"the ITL SLO of {_ms(self.slo_s)} is out of reach: a step with a prompt takes "
            f"{_ms(prompt_s)} in any batch; {self.rules.rate_floor:.0%} of the throughput is kept for the TTFT",
        )  # fmt: skip
        return self.floor

    def _not_disturbed(self, value: float, model: StepModel) -> float:
        """Bound the effect of disturbances. A machine that delays steps now and then misses the SLO with any batch.
        A tiny batch would cost all throughput and gain nothing.
        """
        if value >= self.rules.disturbed_floor * float(self.bounds.largest):
            # No batch is larger, so the bound below can't be.
            return value
        even = Replay(self.seen.samples, model, step_tokens=self.seen.step_tokens, even=True)
        least = self.rules.disturbed_floor * even.batch_for_itl(
            self.rules.aim * self.slo_s, self.rules.aim_part, float(self.bounds.largest)
        )
        if value >= least:
            return value
        self.note("disturbed", least, f"{self.rules.disturbed_floor:.0%} of what steps without outliers would allow")
        return least

    def smooth(self, value: float, state: FastState) -> float:
        before, rules = state.feed_forward, self.rules
        if not before or abs(value / before - 1.0) > rules.jump:
            return value
        smoothed = before + rules.follow * (value - before)
        self.note("smoothed", smoothed, f"{rules.follow:.0%} of the way from {before:.4g}")
        return smoothed

    def trim(self, state: FastState) -> FastState:
        trim, why = self._next_trim(state.trim)
        self.note("trim", trim, why)
        return replace(state, trim=trim)

    def _next_trim(self, trim: float) -> tuple[float, str]:
        rules = self.rules
        if self.seen.preemptions:
            cut = max(rules.trim_floor, trim * rules.trim_down)
            return cut, f"down: the engine preempted {counted(self.seen.preemptions, 'sequence')}"
        # The latency tells nothing about a limit that does not bind, or that the batch still drains down to. A trim
        # that moved then would run away.
        if self.p95_s is None:
            return trim, "kept: too few steps with the batch at its limit"
        if self.floor:
            return trim, "kept: the SLO is out of reach"
        if self.violated:
            if self.seen.limit <= self.bounds.smallest:
                return trim, "kept: over the SLO with the smallest batch"
            factor = max(rules.trim_down, rules.aim * self.slo_s / self.p95_s)
            return max(rules.trim_floor, trim * factor), self._compare("down")
        if self.slack and trim < 1.0:
            return min(1.0, trim + rules.trim_up), self._compare("up")
        return trim, self._compare("kept")

    # --- without a model ----------------------------------------------------------------------------------------------

    def without_model(self) -> float:
        rules, limit = self.rules, float(self.seen.limit)
        wanted, why = limit, "too few steps with the batch at its limit"
        if self.seen.preemptions:
            wanted, why = limit * rules.trim_down, f"the engine preempted {counted(self.seen.preemptions, 'sequence')}"
        elif self.p95_s is not None:
            # Latency grows at most in proportion to the batch, so this step does not overshoot.
            factor = rules.aim * self.slo_s / self.p95_s
            if self.violated:
                wanted, why = limit * max(1 - rules.fall, factor), self._compare("down")
            elif self.slack:
                wanted, why = limit * min(1 + rules.start_rise, max(1.0, factor)), self._compare("up")
            else:
                why = self._compare("kept")
        self.note("no_model", wanted, f"no model to rely on; {why}")
        return wanted

    # --- with or without a model --------------------------------------------------------------------------------------

    def bound(self, wanted: float) -> int:
        limit, rules = self.seen.limit, self.rules
        rise = rules.start_rise
        if self.seen.model is not None:
            rise = rules.far_rise if wanted >= 2 * limit else rules.rise
        # Below ten sequences a tenth rounds to nothing.
        highest, lowest = limit + max(1.0, rise * limit), limit - max(1.0, rules.fall * limit)
        stepped = max(lowest, min(highest, wanted))
        if stepped != wanted:
            self.note("rate", stepped, f"from {limit} in one tick to {lowest:.4g} to {highest:.4g}")
        # Rounding and noise must not move the limit back and forth.
        keep = abs(stepped - limit) < max(1.0, rules.band * limit)
        result = self.bounds.clamp(limit if keep else stepped)
        self.note("limit", result, f"whole, {self.bounds.smallest} to {self.bounds.largest}")
        return result

    def reserve(self, limit: int) -> int:
        mean = self.seen.interactive_arrivals * self.rules.quantum_s
        # About the 99th percentile of a Poisson count.
        arrivals = mean + 2.33 * mean**0.5 if mean > 0 else 0.0
        room = max(0, int(limit - self.seen.interactive_running - arrivals))
        if arrivals or self.seen.interactive_running:
            self.note(
                "batch_class", room, f"{self.seen.interactive_running} interactive run, up to {arrivals:.1f} come"
            )
        return room

    def _compare(self, verb: str) -> str:
        return f"{verb}: p95 ITL {_ms(self.p95_s or 0.0)}, SLO {_ms(self.slo_s)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
