"""The host of the batch policy (the fast loop). It learns from the engine's steps, asks the policy once a second, and
moves the batch limit.

Everything it needs is in this process, so it works on while Redis, routers and the autoscaler are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from cluster.clock import Clock
from cluster.control.batch_policy import ITL_PART, FastBounds, FastDecision, FastState, decide, rules_under
from cluster.control.replay import itl_of
from cluster.control.settings import ControlMode, batch_control_mode, operating_point
from cluster.control.snapshot import BatchSnapshot
from cluster.control.step_fit import FittedStep, StepFit
from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineDeadError
from cluster.models import Windows
from cluster.settings import ControlSettings, PoolSettings
from deployments.engines.base import Engine
from deployments.engines.limits import token_budget
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief

_LOG = logging.getLogger(__name__)

LEARNED_STEPS = 500
"""Most steps per tick to learn from, evenly chosen. Each costs some 30 us of the replica's event loop."""
REPLAYED_STEPS = 600
"""Most steps of the window that a decision replays. They cost some 7 ms."""
REMEMBERED = 120
"""Number of decisions that are kept."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured and predicted durations of the last tick's steps. The prediction is from before the model learned of
    them.
    """

    measured_s: float = 0.0
    """Mean duration in seconds."""
    predicted_s: float = 0.0
    """Mean prediction in seconds; 0 before there is a model."""


class Governor:
    """Step model and batch limit of a replica. Its methods run on the engine's loop.

    Args:
        engine: source of the steps.
        pool: the SLO that is promised, and the loop's bounds.
        largest: the windows that the engine was started with.
        clock: only its differences count.
        apply: moves the limit and returns the one in force.
        held: number of sequences that hold a slot.
        interactive: number of sequences of class INTERACTIVE that hold a slot, and of all that ever started.
        generates: whether the model generates. Otherwise no latency follows a first token, and the limit stays the
            largest.
    """

    def __init__(
        self,
        engine: Engine,
        pool: PoolSettings,
        largest: Windows,
        clock: Clock,
        apply: Callable[[int], Awaitable[int]],
        held: Callable[[], int],
        *,
        interactive: Callable[[], tuple[int, int]] = lambda: (0, 0),
        generates: bool = True,
    ) -> None:
        self._engine = engine
        self._settings = pool.control
        self._changed = asyncio.Event()
        """Set when a change of the settings waits for its tick."""
        self._largest = largest
        self._clock = clock
        self._apply = apply
        self._held = held
        self._interactive = interactive
        self._arrivals = 0.0
        """Interactive sequences that start per second, averaged over the window."""
        self._arrived = (clock.monotonic(), 0)
        self._window: deque[tuple[float, StepSample]] = deque()
        self._samples: list[StepSample] = []
        """Steps of the window that are replayed."""
        self._state = FastState()
        self._preemptions = 0
        self._told = largest.sequences
        """Limit that the engine was last told. It starts with the largest."""
        self.fit = StepFit()
        self.point = operating_point(pool)
        self._generates = generates
        self.mode = self._mode()
        self.relief = Relief.NONE
        """What the pool gives up while it has too few replicas. Any value but NONE lets batches use the whole SLO."""
        self.times = StepTimes()
        self.itl_p95_s = 0.0
        """Inter-token latency over the window; 0 without steps."""
        self.itl_mean_s = 0.0
        """Inter-token latency over the window, as a mean over tokens."""
        self.step_s = 0.0
        """Mean duration of the window's steps; 0 without steps."""
        self.decision: FastDecision | None = None
        """Last decision; None before the first, and while nothing is promised."""
        self.decisions: deque[tuple[float, FastDecision]] = deque(maxlen=REMEMBERED)
        """Decisions that changed the limit, with their times."""
        self.changes: Counter[str] = Counter()
        """Number of moves of the limit, by the name of the step that decided them."""

    @property
    def bounds(self) -> FastBounds:
        """Bounds of the limit."""
        largest = min(self._settings.max_batch or self._largest.sequences, self._largest.sequences)
        return FastBounds(min(self._settings.min_batch, largest), largest)

    @property
    def model(self) -> StepModel | None:
        """Step model while it can be trusted."""
        return self.fit.trusted

    def change(self, settings: ControlSettings) -> None:
        """Take over settings that have changed. The next tick comes at once."""
        if settings == self._settings:
            return
        self._settings = settings
        self.mode = self._mode()
        self._changed.set()
        _LOG.warning("control.changed", extra={"mode": self.mode.value})

    def set_operating_point(self, point: OperatingPoint, mode: ControlMode | None = None) -> None:
        """Promise another operating point from the next tick on.

        Args:
            point: the new promise.
            mode: whether decisions are applied; None derives it from the settings and the point.
        """
        self.point = point
        self.mode = self._mode() if mode is None else mode

    def _mode(self) -> ControlMode:
        return batch_control_mode(self._settings, self.point) if self._generates else ControlMode.OFF

    def seed(self, fitted: FittedStep) -> None:
        """Start from a model that another replica of the same group learned. Call it before `start`."""
        self.fit = StepFit(fitted.model)

    async def start(self) -> None:
        """Set the first limit. Where decisions act it is the largest with a seed, else a low one, because the engine's
        speed is not known.

        Raises:
            EngineDeadError: the engine is dead.
        """
        # Steps of the self-test and the warm-up are not typical.
        self._engine.take_steps()
        self._preemptions = self._engine.stats().preemptions
        if self.mode is not ControlMode.ACTIVE:
            await self._rest()
            return
        start = self._settings.start_batch if self.fit.trusted is None else self.bounds.largest
        await self._tell(self.bounds.clamp(start))

    async def run(self) -> None:
        """Tick until cancelled, or until the engine is dead."""
        failing = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.period_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.tick()
                failing = False
            except EngineDeadError:
                _LOG.warning("control.engine_dead")
                return
            except Exception:  # noqa: BLE001 - if the loop ended here, the batch limit would never move again
                # An engine may fail to take a limit.
                if not failing:
                    _LOG.exception("control.tick_failed")
                failing = True

    async def tick(self) -> None:
        """Learn, decide, act.

        Raises:
            EngineDeadError: the engine is dead.
        """
        self._learn(self._engine.take_steps())
        self._measure()
        self._count_arrivals()
        slo = self.point.itl_p95_s
        if slo is None or self.mode is not ControlMode.ACTIVE:
            # Neither the limit of an earlier mode nor that of earlier settings may stay.
            await self._rest()
        if slo is None or self.mode is ControlMode.OFF:
            self.decision, self._state = None, FastState()
            return
        seen = self._look()
        decision = decide(slo, self.bounds, seen, self._state, rules_under(self.relief))
        self.decision, self._state = decision, decision.state
        if decision.limit != seen.limit:
            await self._change(seen, decision)

    def _learn(self, steps: list[StepSample]) -> None:
        now = self._clock.monotonic()
        if steps:
            model = self.fit.model
            predicted = [model.predict(step.tokens, step.kv_tokens) for step in steps] if model else []
            self.times = StepTimes(sum(s.seconds for s in steps) / len(steps), sum(predicted) / len(steps))
        self.fit.learn(_evenly(steps, LEARNED_STEPS))
        self._window.extend((now, step) for step in steps)
        while self._window and self._window[0][0] < now - self._settings.window_s:
            self._window.popleft()

    def _measure(self) -> None:
        self._samples = samples = _evenly([step for _, step in self._window], REPLAYED_STEPS)
        sequences = sum(step.sequences for step in samples)
        self.itl_p95_s = itl_of(samples, ITL_PART)
        self.step_s = sum(step.seconds for step in samples) / len(samples) if samples else 0.0
        self.itl_mean_s = sum(step.seconds * step.sequences for step in samples) / sequences if sequences else 0.0

    def _count_arrivals(self) -> None:
        now, (_, started) = self._clock.monotonic(), self._interactive()
        at, before = self._arrived
        if (seconds := now - at) > 0:
            weight = min(1.0, seconds / self._settings.window_s)
            self._arrivals += weight * ((started - before) / seconds - self._arrivals)
            self._arrived = now, started

    @property
    def batch_slots(self) -> int | None:
        """Slots that class BATCH may have, so that coming interactive sequences find room; None for any number."""
        decision = self.decision
        if decision is None or self.mode is not ControlMode.ACTIVE or decision.batch_class_limit >= decision.limit:
            return None
        return decision.batch_class_limit

    @property
    def step_tokens(self) -> int:
        """Most tokens that one step computes, decodes and prompts together."""
        return token_budget(self._largest.prefill_tokens)

    def _look(self) -> BatchSnapshot:
        stats = self._engine.stats()
        preempted, self._preemptions = stats.preemptions - self._preemptions, stats.preemptions
        return BatchSnapshot(
            at=self._clock.monotonic(),
            limit=stats.batch_limit,
            running=self._held(),
            samples=tuple(self._samples),
            kv_usage=stats.kv_usage,
            kv_tokens=self._largest.kv_tokens,
            step_tokens=self.step_tokens,
            preemptions=preempted,
            model=self.fit.trusted,
            interactive_arrivals=self._arrivals,
            interactive_running=self._interactive()[0],
        )

    def report(self) -> dict[str, float]:
        """Return the values that the heartbeat reports. Unknown ones are missing. Safe to call from another thread."""
        found = {
            "largest_batch": self.bounds.largest,
            "step_tokens": self.step_tokens,
            "step_s": self.step_s,
            "itl_p95_s": self.itl_p95_s,
            "itl_mean_s": self.itl_mean_s,
        }
        if (model := self.fit.trusted) is not None:
            found |= {"step_a": model.a, "step_b": model.b, "step_g": model.g}
        if (error := self.fit.median_error) is not None:
            found["step_error"] = error
        if self.decision is not None:
            found["overloaded"] = float(self.decision.overloaded)
            if self.mode is ControlMode.ACTIVE:
                found["live_batch"] = float(self.decision.limit)
        return found

    async def _change(self, seen: BatchSnapshot, decision: FastDecision) -> None:
        self.decisions.append((seen.at, decision))
        if self.mode is not ControlMode.ACTIVE:
            return
        applied = await self._tell(decision.limit)
        self.changes[decision.cause] += 1
        _LOG.info(
            "control.batch_limit",
            extra={"before": seen.limit, "now": applied, "why": "; ".join(str(step) for step in decision.steps)},
        )

    async def _tell(self, limit: int) -> int:
        """Move the engine's limit; return the one in force. One that the engine does not take is told again."""
        applied = await self._apply(limit)
        self._told = limit
        return applied

    async def _rest(self) -> None:
        """Hold the largest limit, where no decision acts."""
        if self._told != self.bounds.largest:
            await self._tell(self.bounds.largest)


def _evenly(steps: list[StepSample], most: int) -> list[StepSample]:
    """Choose at most this many steps at equal distances, the newest among them."""
    if len(steps) <= most:
        return steps
    stride = len(steps) / most
    return [steps[len(steps) - 1 - int(i * stride)] for i in reversed(range(most))]
