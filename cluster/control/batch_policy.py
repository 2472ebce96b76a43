"""The fast loop: how many sequences a replica batches, once a second, from what it measured itself.

The last seconds' steps, replayed with other batch sizes, say which one keeps the inter-token latency (ITL) within its
SLO; a small trim corrects what the step model gets wrong: down by a part when the latency that a settled batch shows is
over the SLO, back up slowly when it is well below. Time to first token is no signal here: it depends on who waits
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.control.replay import Replay, itl_of
from cluster.control.snapshot import BatchSnapshot
from cluster.control.step_model import BatchMix, StepModel, StepSample
from cluster.plural import counted
from penstock.values.steps import Relief, Step

ITL_PART = 0.95
"""The percentile that ITL SLOs are about."""


@dataclass(frozen=True, slots=True)
class FastRules:
    """Are the loop's constants."""

    aim: float = 0.98
    """The batch is chosen for this part of the SLO: what is measured scatters around what was aimed at."""
    aim_part: float = 0.953
    """And so that this part of the tokens stays within it, where `ITL_PART` must."""
    slack: float = 0.85
    """Below this part of the SLO the trim recovers."""
    trim_floor: float = 0.5
    trim_down: float = 0.9
    """Largest cut of the trim in one tick."""
    trim_up: float = 0.02
    fall: float = 0.2
    """Largest part of the limit that one tick takes away."""
    rise: float = 0.1
    """Largest part of the limit that one tick adds."""
    far_rise: float = 0.5
    """The same while the model allows twice the limit or more."""
    start_rise: float = 1.0
    """The same before the first fit: the limit may double while the latency is well below its SLO."""
    settled: float = 0.1
    """A step shows what a limit does when its batch is so near to it, relative."""
    disturbed_floor: float = 1 / 3
    """Steps that something else holds up take no more of the batch than down to this part."""
    rate_floor: float = 1 / 3
    """Steps that compute prompts take no more of the throughput than down to this part: an ITL SLO below what such a
    step takes could only be held by letting so few in that prompts are rare, and then everybody waits to begin."""
    kv_fill: float = 0.9
    """Part of the KV cache that is planned for."""
    kv_slack: float = 0.85
    """The trim recovers below this KV usage only."""
    min_steps: int = 20
    """Steps that a percentile needs."""
    follow: float = 0.3
    """How far one tick follows what the replay says: prompts come at random, so it says something else each time."""
    jump: float = 0.3
    """Larger changes are no chance, and followed at once; relative."""
    band: float = 0.04
    """Smaller changes of the limit are not worth making, relative."""
    quantum_s: float = 1.0
    """Interactive arrivals of so long are what batch work leaves room for."""


_USUAL = FastRules()
_TO_THE_EDGE = FastRules(aim=1.0, aim_part=ITL_PART)
"""Without the margins that keep the latency below its SLO in spite of chance."""


def rules_under(relief: Relief) -> FastRules:
    """Return the constants while a pool gives something up: latency goes first, with whatever else."""
    return _USUAL if relief is Relief.NONE else _TO_THE_EDGE


@dataclass(frozen=True, slots=True)
class FastBounds:
    """Bounds the batch limit, in sequences."""

    smallest: int
    largest: int

    def clamp(self, limit: float) -> int:
        """Return the nearest whole limit within the bounds."""
        return max(self.smallest, min(self.largest, round(limit)))


@dataclass(frozen=True, slots=True)
class FastState:
    """Is what the loop remembers from tick to tick."""

    trim: float = 1.0
    model: StepModel | None = None
    """The one that the trim belongs to."""
    feed_forward: float | None = None
    """Averaged over the last ticks."""


@dataclass(frozen=True, slots=True)
class FastDecision:
    """Is one tick's result."""

    limit: int
    batch_class_limit: int
    """Sequences of class BATCH that leave room for interactive ones to come."""
    feed_forward: float | None
    """What model and KV cache allow, before the trim; None without a model or steps."""
    overloaded: bool
    """The SLO is not held although the batch is as small as it may be: more replicas are needed."""
    given_up: bool
    """Steps with prompts miss the SLO in any batch; the limit keeps a part of the throughput instead."""
    steps: tuple[Step, ...]
    state: FastState = field(default_factory=FastState)

    @property
    def cause(self) -> str:
        """The name of the step that decided the limit."""
        for step in reversed(self.steps):
            if step.name not in ("limit", "batch_class", "trimmed", "smoothed", "trim", "model_moved"):
                return step.name
        return "limit"


def decide(
    itl_slo_s: float, bounds: FastBounds, seen: BatchSnapshot, state: FastState, rules: FastRules | None = None
) -> FastDecision:
    """Choose the next batch limit.

    Args:
        itl_slo_s: the tightest ITL SLO of those who share the batch, 95th percentile, seconds.
        bounds: no limit leaves them.
        seen: what was measured.
        state: the last decision's; `FastState()` at first.
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
    """Is one decision in the making."""

    def __init__(self, itl_slo_s: float, bounds: FastBounds, seen: BatchSnapshot, rules: FastRules) -> None:
        self.slo_s, self.bounds, self.seen, self.rules = itl_slo_s, bounds, seen, rules
        self.steps: list[Step] = []
        self.floor = 0.0
        """Batch that is kept whatever the SLO says; 0 where the SLO is within reach."""
        self.mix = BatchMix.of(seen.samples)
        near = [sample for sample in seen.samples if self._settled(sample)]
        self.p95_s = itl_of(near, ITL_PART) if len(near) >= rules.min_steps else None
        """What the limit in force does to the latency, as far as it can be told; None where the limit does not bind or
        the batch still drains down to it."""

    def note(self, name: str, value: float, reason: str) -> None:
        self.steps.append(Step(name, value, reason))

    def _settled(self, sample: StepSample) -> bool:
        # The limit is a whole number, and a batch is one short whenever a sequence has just ended.
        return abs(sample.sequences - self.seen.limit) <= max(1.0, self.rules.settled * self.seen.limit)

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
        """Forget half of the trim when the model has moved: it corrected another one's error."""
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
        """Keep a part of the throughput where a step with a prompt in it is over the SLO in any batch."""
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
        """Bound what disturbances take. A machine that holds steps up now and then misses the SLO with any batch; to
        shrink the batch to nothing would cost all throughput and help nobody.
        """
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
        # A limit that does not hold the batch back, or that the batch has yet to drain down to, says nothing; to trim
        # then would wind the trim up.
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

    # --- without ------------------------------------------------------------------------------------------------------

    def without_model(self) -> float:
        rules, limit = self.rules, float(self.seen.limit)
        wanted, why = limit, "too few steps with the batch at its limit"
        if self.seen.preemptions:
            wanted, why = limit * rules.trim_down, f"the engine preempted {counted(self.seen.preemptions, 'sequence')}"
        elif self.p95_s is not None:
            # Latency grows at most in proportion to the batch, so this does not overshoot.
            factor = rules.aim * self.slo_s / self.p95_s
            if self.violated:
                wanted, why = limit * max(1 - rules.fall, factor), self._compare("down")
            elif self.slack:
                wanted, why = limit * min(1 + rules.start_rise, max(1.0, factor)), self._compare("up")
            else:
                why = self._compare("kept")
        self.note("no_model", wanted, f"no model to rely on; {why}")
        return wanted

    # --- either way ---------------------------------------------------------------------------------------------------

    def bound(self, wanted: float) -> int:
        limit, rules = self.seen.limit, self.rules
        rise = rules.start_rise
        if self.seen.model is not None:
            rise = rules.far_rise if wanted >= 2 * limit else rules.rise
        # Below ten sequences a tenth is none at all.
        highest, lowest = limit + max(1.0, rise * limit), limit - max(1.0, rules.fall * limit)
        stepped = max(lowest, min(highest, wanted))
        if stepped != wanted:
            self.note("rate", stepped, f"from {limit} in one tick to {lowest:.4g} to {highest:.4g}")
        # Neither rounding nor noise shall move the limit to and fro.
        keep = abs(stepped - limit) < max(1.0, rules.band * limit)
        result = self.bounds.clamp(limit if keep else stepped)
        self.note("limit", result, f"whole, {self.bounds.smallest} to {self.bounds.largest}")
        return result

    def reserve(self, limit: int) -> int:
        mean = self.seen.interactive_arrivals * self.rules.quantum_s
        # The 99th percentile of a Poisson count, near enough.
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
