"""Search for the cheapest value of a policy's dial that keeps the SLO, and for a floor that does better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.plural import counted

_STEPS = 24
"""Steps between the ends of a dial that is no whole number."""


@dataclass(frozen=True, slots=True)
class Dial:
    """What makes a policy keep more or fewer replicas."""

    name: str
    """As the flag is called that sets it."""
    values: Sequence[float]
    """From the fewest replicas to the most."""

    @classmethod
    def counts(cls, name: str, least: int, most: int) -> Dial:
        """Return a dial that is a number of replicas."""
        return cls(name, range(max(1, least), most + 1))

    @classmethod
    def between(cls, name: str, loose: float, tight: float) -> Dial:
        """Return a dial of which a smaller value keeps more replicas, in steps of equal proportion."""
        ratio = (tight / loose) ** (1 / _STEPS)
        return cls(name, [float(f"{loose * ratio**step:.3g}") for step in range(_STEPS + 1)])


@dataclass(frozen=True, slots=True)
class Try:
    """One run of a search."""

    value: float
    attainment: float
    hours: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a search."""

    dial: str
    aim: float
    best: Try | None
    """The cheapest run that was tried and holds; None where none does."""
    tried: Sequence[Try] = field(default_factory=list)
    """In the order of the search."""


def tune(dial: Dial, run: Callable[[float], Try], aim: float) -> Tuned:
    """Find the first value of a dial that holds, by bisection. More replicas are taken to hold where fewer do; of those
    that were tried the cheapest that holds counts, because a policy may do worse with more.
    """
    tried: dict[int, Try] = {}

    def holds(place: int) -> bool:
        if place not in tried:
            tried[place] = run(dial.values[place])
        return tried[place].attainment >= aim

    low, high, step = -1, 0, 1
    last = len(dial.values) - 1
    # Fewer replicas make shorter searches, because few values are far from the first.
    while not holds(high):
        if high == last:
            low = last
            break
        low, high, step = high, min(last, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    good = [each for each in tried.values() if each.attainment >= aim]
    best = min(good, key=lambda each: (each.hours, -each.attainment)) if good else None
    return Tuned(dial.name, aim, best, list(tried.values()))


def verdict(policy: str, tuned: Tuned, floor: Tuned | None) -> str:
    """Say what a search found, and whether a floor of replicas is cheaper than a tuned dial."""
    best, most, aim = tuned.best, max(tuned.tried, key=lambda each: each.attainment), f"{tuned.aim:.2%}"
    if best is None:
        ends = f"from {tuned.tried[0].value:g} to {tuned.tried[-1].value:g}"
        found = f"the most was {most.attainment:.2%} in {most.hours:.2f} h"
        said = f"No {tuned.dial} of {policy} {ends} holds {aim}: {found}."
    else:
        found = f"{best.attainment:.2%} in {best.hours:.2f} h"
        said = f"{policy} holds {aim} with {tuned.dial} {best.value:g}: {found}."
    if floor is None:
        return said
    if floor.best is None:
        return f"{said} No floor of replicas up to {floor.tried[-1].value:g} does with its usual dial."
    replicas = counted(int(floor.best.value), "replica")
    other = f"a floor of {replicas} ({floor.best.attainment:.2%} in {floor.best.hours:.2f} h)"
    if best is None:
        return f"{said} With this burstiness it takes {other}."
    if floor.best.hours < best.hours:
        return f"{said} With this burstiness {other} is cheaper."
    return f"{said} That is no dearer than {other}."
