"""Forecast of one pool: it records the load, lets experts foresee it, and judges them when the time has come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import msgpack

from cluster.forecast.blend import BlendRules, ExpertRecord, blended, weights_of
from cluster.forecast.experts import EXPERTS, LEVEL, LEVEL_MINUTES, PRESENT, SHAPES, KnownLoad
from cluster.forecast.load_record import SLOT_S, LoadRecord

MINUTE_S = 60.0
RECENT_MINUTES = 120
"""Minutes of load that are kept one by one."""
MOST_GAP = 5
"""Missing minutes after which the ones before tell nothing of the present."""
BLEND = "blend"
_JUDGED_OVER = 10
"""Minutes of load that a forecast is compared with: a replica that is ordered now serves at least for so long."""

_SOONER_MINUTES = 2
"""Minutes that a replica should be ready before a rise. The record tells its time no more exactly."""
_STEADY_MINUTES = 5
"""Longest time that the replica policy averages the present load over."""


@dataclass(frozen=True, slots=True)
class ForecastRules:
    """Constants of the forecast."""

    blend: BlendRules = field(default_factory=BlendRules)
    trusted_minutes: float = 1440.0
    """Judged minutes before the forecast counts."""
    trusted_skill: float = 0.03
    """Part by which a shape's error must be below that of the level that it is scaled to. Decisions use the pattern
    alone: what the level is now, the policy measures better."""
    kept_skill: float = 0.015
    """The same for a pattern that is trusted already: a skill near the bound must not turn decisions on and off."""
    fallen: float = 0.05
    """Part by which the last minutes must be below those before to show a fall."""
    least_load: float = 1e-3
    """Load below which nothing is judged: there is no part of nothing."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is foreseen now. Loads have the unit of what was fed."""

    load: float
    """Load one cold start from now, by the blend of all experts."""
    ahead_s: float
    """Seconds from now that the forecast is about."""
    skill: float
    """Part by which the blend's error is below that of the present."""
    pattern: Pattern | None
    """What earlier days or weeks tell; None where they tell nothing."""
    weights: Mapping[str, float]
    """Weight of each expert."""
    forecasts: Mapping[str, float]
    """What each expert foresees."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Change of the load that the same time of earlier days or weeks foretells."""

    name: str
    """The expert that knows it best."""
    change: float
    """Factor on the present load one cold start from now."""
    later: float
    """Largest factor until a replica that is removed now could be back."""
    skill: float
    """Part by which the expert's error is below that of the level that it is scaled to."""
    trusted: bool
    """Whether it was judged for long enough, and its skill is large enough to decide by."""
    falling: bool = False
    """Whether the load of the last minutes falls."""


class PoolForecast:
    """Record, experts and their errors of one pool. Feed it every tick, in order."""

    def __init__(self, rules: ForecastRules | None = None) -> None:
        self.rules = rules or ForecastRules()
        self.record = LoadRecord()
        self.judged: dict[str, ExpertRecord] = {}
        """How right each expert and the blend have been."""
        self.outlook: Outlook | None = None
        self._minutes: deque[float] = deque(maxlen=RECENT_MINUTES)
        self._minute: int | None = None
        """Number of the minute that is not over yet; None before the first."""
        self._sum = self._count = 0.0
        self._slot_sum = self._slot_count = 0.0
        self._past: KnownLoad | None = None
        """What was known at the last look."""
        self._trusting = False
        """Whether a pattern has been trusted of late."""
        self._pending: deque[tuple[int, dict[str, float]]] = deque()
        """Forecasts that wait for their time, with the number of the minute that follows it."""

    def feed(self, at: float, load: float, cold_start_s: float) -> bool:
        """Take the load of now. At the end of each minute experts are judged, and foresee anew.

        Args:
            at: pool time, seconds.
            load: of any unit that stays the same.
            cold_start_s: how far to look ahead.

        Returns:
            Whether the record has got another value.
        """
        minute = int(at // MINUTE_S)
        if self._minute is None or minute < self._minute or minute - self._minute > MOST_GAP:
            self._begin(minute)
        newest = self.record.newest
        while self._minute is not None and self._minute < minute:
            self._close(self._minute + 1, cold_start_s)
        self._sum += load
        self._count += 1.0
        return newest != self.record.newest

    def rest(self) -> None:
        """Foresee nothing until the next minute that is fed."""
        self.outlook = self._past = None

    def _begin(self, minute: int) -> None:
        """Start anew after a gap, or where the clock was set back. Record and errors stay."""
        self.record.back_to(int(minute * MINUTE_S // SLOT_S))
        self._minutes.clear()
        self._pending.clear()
        self.outlook = self._past = None
        self._minute = minute
        self._sum = self._count = self._slot_sum = self._slot_count = 0.0

    def _close(self, minute: int, cold_start_s: float) -> None:
        """End the present minute; `minute` is the next one."""
        # A minute without a tick is taken to be like the one before.
        value = self._sum / self._count if self._count else self._minutes[-1] if self._minutes else 0.0
        self._sum = self._count = 0.0
        self._minutes.append(value)
        self._slot_sum += value
        self._slot_count += 1.0
        self._minute = minute
        at = minute * MINUTE_S
        if at % SLOT_S == 0:
            self.record.put(int(at // SLOT_S) - 1, self._slot_sum / self._slot_count)
            self._slot_sum = self._slot_count = 0.0
        self._judge(minute)
        self._foresee(minute, cold_start_s)

    def _judge(self, minute: int) -> None:
        while self._pending and self._pending[0][0] <= minute:
            _, forecasts = self._pending.popleft()
            if len(self._minutes) < _JUDGED_OVER:
                continue
            outcome = sum(list(self._minutes)[-_JUDGED_OVER:]) / _JUDGED_OVER
            if outcome < self.rules.least_load:
                continue
            for name, forecast in forecasts.items():
                before = self.judged.get(name, ExpertRecord())
                self.judged[name] = before.next(forecast, outcome, self.rules.blend)

    def _foresee(self, minute: int, cold_start_s: float) -> None:
        start = max(1, round(cold_start_s / MINUTE_S))
        # Rates are averages of the last minute, so a value is half of that late.
        ahead = start + 1
        past = self._past = KnownLoad(minute * MINUTE_S, list(self._minutes), self.record, start)
        found = _ask(past, ahead)
        weights = weights_of({name: self.judged.get(name, ExpertRecord()) for name in EXPERTS}, self.rules.blend)
        expected = blended(found, weights) if found.get(PRESENT, 0.0) >= self.rules.least_load else None
        if expected is None:
            self.outlook = None
            return
        self._pending.append((minute + ahead + _JUDGED_OVER - 1, {**found, BLEND: expected}))
        pattern = self._pattern(past, ahead)
        self.outlook = Outlook(expected, MINUTE_S * ahead, self._skill(BLEND, PRESENT), pattern, weights, found)

    def course(self, minutes: Sequence[int]) -> Sequence[float]:
        """Return the factors on the present load that the pattern foretells in so many minutes, trusted or not; 1 where
        it tells nothing.
        """
        pattern, past = None if self.outlook is None else self.outlook.pattern, self._past
        if pattern is None or past is None:
            return [1.0] * len(minutes)
        level = min(past.start_minutes, _STEADY_MINUTES)
        found = [SHAPES[pattern.name].change(past, each, level) for each in minutes]
        return [1.0 if change is None else change for change in found]

    def _skill(self, name: str, other: str) -> float:
        """Return the part by which one error is below another."""
        usual = self.judged.get(other, ExpertRecord()).loss
        return 1.0 - self.judged.get(name, ExpertRecord()).loss / usual if usual > 0 else 0.0

    def _pattern(self, past: KnownLoad, ahead: int) -> Pattern | None:
        # On the present load as the policy measures it: over a cold start, of some five minutes at most.
        minutes = min(past.start_minutes, _STEADY_MINUTES)
        soon = [ahead, ahead + _SOONER_MINUTES, ahead + past.start_minutes, ahead + 2 * past.start_minutes]
        known = {}
        for name, shape in SHAPES.items():
            changes = [shape.change(past, each, minutes) for each in soon]
            if name in self.judged and changes[0] is not None:
                known[name] = [changes[0] if change is None else change for change in changes]
        if not known:
            return None
        best = min(known, key=lambda name: self.judged[name].loss)
        self._trusting = self._trusts(best)
        skill = self._skill(best, LEVEL)
        return Pattern(best, max(known[best][:2]), max(known[best]), skill, self._trusting, self._falling(past))

    def _trusts(self, name: str) -> bool:
        record, rules = self.judged.get(name, ExpertRecord()), self.rules
        least = rules.kept_skill if self._trusting else rules.trusted_skill
        return record.judged >= rules.trusted_minutes and self._skill(name, LEVEL) >= least

    def _falling(self, past: KnownLoad) -> bool:
        lately, before = past.minutes[-LEVEL_MINUTES:], past.minutes[-2 * LEVEL_MINUTES : -LEVEL_MINUTES]
        if not before:
            return False
        return sum(lately) / len(lately) < (1.0 - self.rules.fallen) * sum(before) / len(before)

    @property
    def awaited(self) -> bool:
        """Whether a pattern is trusted by what is stored, and the first minute is not over that would show it."""
        return not self._minutes and any(map(self._trusts, SHAPES))

    def to_bytes(self) -> bytes:
        """Return record and errors. Pending forecasts and the last hours stay behind: a successor gathers them anew."""
        judged = {name: astuple(record) for name, record in self.judged.items()}
        return bytes(msgpack.packb([self.record.newest, self.record.to_bytes(), judged]))

    @classmethod
    def from_bytes(cls, text: bytes, rules: ForecastRules | None = None) -> PoolForecast:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: the bytes are anything else.
        """
        forecast = cls(rules)
        try:
            newest, values, judged = msgpack.unpackb(text)
            forecast.record = LoadRecord.from_bytes(newest, values)
            forecast.judged = {str(name): ExpertRecord(*fields) for name, fields in judged.items()}
        except (TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
            raise ValueError(f"no record of a pool's load: {error}") from error
        return forecast


def _ask(past: KnownLoad, ahead: int) -> dict[str, float]:
    """Return what each expert foresees, without those that know nothing."""
    found = {name: expert(past, ahead) for name, expert in EXPERTS.items()}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
