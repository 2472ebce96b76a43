"""The fast loop's host: learns from the engine's steps, asks the policy once a second, and moves the batch limit.

Everything it needs is in this process, so it goes on while Redis, routers and the autoscaler are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
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
from cluster.settings import PoolSettings
from deployments.engines.base import Engine
from deployments.engines.limits import token_budget
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief

_LOG = logging.getLogger(__name__)

LEARNED_STEPS = 500
"""Most steps of a tick that are learned from, evenly chosen; each costs some 30 us of the replica's event loop."""
REPLAYED_STEPS = 600
"""Most steps of the window that a decision replays; they cost some 7 ms."""
REMEMBERED = 120
"""Decisions that are kept."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Compares the steps of the last tick that had any with what the model said of them before it learned of them."""

    measured_s: float = 0.0
    """Mean."""
    predicted_s: float = 0.0
    """Mean; 0 before there is a model."""


class Governor:
    """Owns a replica's step model and batch limit. All methods run on the engine's loop.

    Args:
        engine: whose steps are learned from.
        pool: says what is promised, and the loop's bounds.
        largest: the windows that the engine was started with.
        clock: only its differences count.
        apply: moves the limit and returns what is in force.
        held: sequences that hold a slot.
        interactive: of class INTERACTIVE, those that hold a slot, and all that ever started.
    """

    def __init__(
        self,
        engine: Engine,
        pool: PoolSettings,
        largest: Windows,
        clock: Clock,
        apply: Callable[[int], Awaitable[int]],
        held: Callable[[], int],
        interactive: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._engine = engine
        self._settings = pool.control
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
        """Of the window, as many as are replayed."""
        self._state = FastState()
        self._preemptions = 0
        self._moved = False
        """Whether the limit in force is ours."""
        self.fit = StepFit()
        self.point = operating_point(pool)
        self.mode = batch_control_mode(pool.control, self.point)
        self.relief = Relief.NONE
        """What the pool gives up for want of replicas; anything takes batches to the edge of the SLO."""
        self.times = StepTimes()
        self.itl_p95_s = 0.0
        """Over the window; 0 without steps."""
        self.itl_mean_s = 0.0
        """The same as a mean over tokens."""
        self.decision: FastDecision | None = None
        """The last one; None before the first, and while nothing is promised."""
        self.decisions: deque[tuple[float, FastDecision]] = deque(maxlen=REMEMBERED)
        """Those that changed the limit, with their moments."""
        self.changes: Counter[str] = Counter()
        """How often the limit moved, by the name of the step that decided it."""

    @property
    def bounds(self) -> FastBounds:
        """What limits stay within."""
        largest = min(self._settings.max_batch or self._largest.sequences, self._largest.sequences)
        return FastBounds(min(self._settings.min_batch, largest), largest)

    @property
    def model(self) -> StepModel | None:
        """The step model while it can be relied on."""
        return self.fit.trusted

    def set_operating_point(self, point: OperatingPoint, mode: ControlMode | None = None) -> None:
        """Promise something else from the next tick on.

        Args:
            point: the new promise.
            mode: what becomes of decisions; None derives it from the settings and the point.
        """
        self.point = point
        self.mode = batch_control_mode(self._settings, point) if mode is None else mode

    def seed(self, fitted: FittedStep) -> None:
        """Start from what another replica of the same group has learned; call it before `start`."""
        self.fit = StepFit(fitted.model)

    async def start(self) -> None:
        """Set the first limit: with a seed as the policy says, else low, as nobody knows what the engine can do.

        Raises:
            EngineDeadError: the engine is dead.
        """
        # Steps of the self-test and the warm-up are no usual ones.
        self._engine.take_steps()
        self._preemptions = self._engine.stats().preemptions
        if self.mode is not ControlMode.ACTIVE:
            return
        start = self._settings.start_batch if self.fit.trusted is None else self.bounds.largest
        await self._apply(self.bounds.clamp(start))
        self._moved = True

    async def run(self) -> None:
        """Tick until cancelled, or until the engine is dead."""
        failing = False
        while True:
            await asyncio.sleep(self._settings.period_s)
            try:
                await self.tick()
                failing = False
            except EngineDeadError:
                _LOG.warning("control.engine_dead")
                return
            except Exception:  # noqa: BLE001 - whoever ended here would leave the batch as it is for good
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
        if slo is None or self.mode is ControlMode.OFF:
            await self._let_go()
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
        """Slots that class BATCH may have, so that interactive sequences to come find room; None for any number."""
        decision = self.decision
        if decision is None or self.mode is not ControlMode.ACTIVE or decision.batch_class_limit >= decision.limit:
            return None
        return decision.batch_class_limit

    @property
    def step_tokens(self) -> int:
        """The most that one step computes, decodes and prompts together."""
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
        """Return what others should know, for the heartbeat; safe from another thread. What is missing is not known."""
        found = {"itl_p95_s": self.itl_p95_s, "itl_mean_s": self.itl_mean_s}
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
        applied = await self._apply(decision.limit)
        self._moved = True
        self.changes[decision.cause] += 1
        _LOG.info(
            "control.batch_limit",
            extra={"before": seen.limit, "now": applied, "why": "; ".join(str(step) for step in decision.steps)},
        )

    async def _let_go(self) -> None:
        """Give the whole batch back when nothing is promised any more."""
        self.decision, self._state = None, FastState()
        if self._moved:
            self._moved = False
            await self._apply(self.bounds.largest)


def _evenly(steps: list[StepSample], most: int) -> list[StepSample]:
    """Choose so many steps at equal distances, the newest among them."""
    if len(steps) <= most:
        return steps
    stride = len(steps) / most
    return [steps[len(steps) - 1 - int(i * stride)] for i in reversed(range(most))]
