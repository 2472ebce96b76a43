"""The times at which requests come. All patterns are open-loop: a request never waits for the answer to another one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean

_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "constant": {},
    "poisson": {},
    "gamma": {"cv": 3.0},
    "mmpp": {"factor": 5.0, "calm_s": 20.0, "burst_s": 5.0},
    "step": {"factor": 2.0, "levels": 2.0},
    "spike": {"factor": 5.0, "at": 0.4, "for": 0.2},
    "diurnal": {"swing": 0.6, "period_s": 0.0},
    "trace": {},
}
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "cv": (1e-3, 1e3),
    "factor": (0.0, 1e6),
    "calm_s": (1e-3, 1e9),
    "burst_s": (1e-3, 1e9),
    "levels": (2.0, 1e3),
    "at": (0.0, 1.0),
    "for": (0.0, 1.0),
    "swing": (0.0, 1.0),
    "period_s": (0.0, 1e9),
}

PATTERNS = tuple(_DEFAULTS)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of arrivals.

    - constant: evenly spaced.
    - poisson: independent.
    - gamma: gaps with coefficient of variation `cv`.
    - mmpp: Poisson with a rate `factor` times as high in bursts of `burst_s` seconds on average, with `calm_s` between
      them. The mean is the given rate.
    - step: `levels` equally long levels from the rate to `factor` times it.
    - spike: `factor` times the rate from the part `at` of the run for the part `for` of it.
    - diurnal: a sine of `swing` times the rate, one period in `period_s` (0: the run).
    - trace: as recorded.
    """

    name: str = "poisson"
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read NAME or NAME:KEY=VALUE,KEY=VALUE.

        Raises:
            SettingsError: the name or a key is unknown, or a value is out of range.
        """
        name, _, rest = text.strip().partition(":")
        if name not in _DEFAULTS:
            near = did_you_mean(name, PATTERNS)
            raise SettingsError(f"arrivals must be one of {', '.join(PATTERNS)}, got {name!r}{near}")
        values = dict(_DEFAULTS[name])
        for part in filter(None, rest.split(",")):
            key, _, value = (word.strip() for word in part.partition("="))
            if key not in values:
                raise SettingsError(f"arrivals {name} take {', '.join(values) or 'nothing'}, got {key!r}")
            values[key] = _bounded(name, key, value)
        return cls(name, MappingProxyType(values))

    def __str__(self) -> str:
        """Return text that `parse` reads as the same pattern."""
        values = ",".join(f"{key}={_exact(value)}" for key, value in self.values.items())
        return f"{self.name}:{values}" if values else self.name

    def level(self, part: float) -> float:
        """Return the rate at a part of the run as a multiple of the base rate. The part is from 0 to 1; above 1 counts
        as 1.
        """
        values = self.values
        if self.name == "step":
            levels = int(values["levels"])
            at = min(levels - 1, int(part * levels))
            return 1 + (values["factor"] - 1) * at / (levels - 1)
        if self.name == "spike":
            return values["factor"] if values["at"] <= part < values["at"] + values["for"] else 1.0
        if self.name == "diurnal":
            return 1 - values["swing"] * math.cos(2 * math.pi * part)
        return 1.0

    @property
    def highest(self) -> float:
        """Highest level."""
        if self.name in ("step", "spike"):
            return max(1.0, self.values["factor"])
        return 1 + self.values["swing"] if self.name == "diurnal" else 1.0


def _exact(value: float) -> str:
    """Return a short text for a number if it is exact. The text is read again, by Locust and from reports."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _bounded(name: str, key: str, text: str) -> float:
    low, high = _BOUNDS[key]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high or (key == "levels" and not value.is_integer()):
        raise SettingsError(f"arrivals {name}: {key} must be a number from {low:g} to {high:g}, got {text!r}")
    return value


def arrival_times(pattern: Pattern, rate: float, duration_s: float, seed: str) -> Iterator[float]:
    """Yield rising times in seconds from 0. They have no end unless the pattern's rate ends at zero.

    Equal arguments give equal times.

    Args:
        pattern: any but a trace.
        rate: requests per second, above 0.
        duration_s: the run's; levels of a pattern refer to it.
        seed: of all draws.
    """
    rnd = random.Random(seed)
    if pattern.name == "constant":
        return (number / rate for number in _count())
    if pattern.name == "gamma":
        return _gamma(rnd, rate, pattern.values["cv"])
    if pattern.name == "mmpp":
        return _mmpp(rnd, rate, pattern.values)
    period = duration_s
    if pattern.name == "diurnal" and pattern.values["period_s"]:
        period = pattern.values["period_s"]
    return _modulated(rnd, rate, pattern, period)


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _gamma(rnd: random.Random, rate: float, cv: float) -> Iterator[float]:
    shape = 1 / cv**2
    at = 0.0
    while True:
        at += rnd.gammavariate(shape, 1 / (shape * rate))
        yield at


def _mmpp(rnd: random.Random, rate: float, values: Mapping[str, float]) -> Iterator[float]:
    burst = values["burst_s"] / (values["burst_s"] + values["calm_s"])
    calm_rate = rate / (1 - burst + burst * values["factor"])
    rates = (calm_rate, calm_rate * values["factor"])
    stays = (values["calm_s"], values["burst_s"])
    # The start state follows the long-term mix. Otherwise every run would begin calm.
    state = int(rnd.random() < burst)
    at, until = 0.0, rnd.expovariate(1 / stays[state])
    while True:
        # The process has no memory, so the draw may be made again where the state changes.
        next_at = at + rnd.expovariate(rates[state]) if rates[state] > 0 else math.inf
        if next_at < until:
            at = next_at
            yield at
        else:
            at = until
            state = 1 - state
            until = at + rnd.expovariate(1 / stays[state])


def _modulated(rnd: random.Random, rate: float, pattern: Pattern, period_s: float) -> Iterator[float]:
    """Thin a Poisson process of the highest rate."""
    at, highest = 0.0, pattern.highest
    even, over = pattern.name == "poisson", pattern.name == "step" and not pattern.values["factor"]
    while True:
        at += rnd.expovariate(rate * highest)
        if even or rnd.random() * highest < pattern.level(at / period_s):
            yield at
        elif over and at >= period_s:
            return
