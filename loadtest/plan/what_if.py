"""Effects of other choices than those asked for. What was simulated is taken from there; the rest is rough: sized on
paper, and then as much larger or smaller as the simulation found candidates of the best one's accelerator to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cluster.plural import counted
from loadtest.plan.elastic import MOST_REQUESTS, elastic, followed
from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.measured.own import LEAST_ERROR, LEAST_TTFT_ERROR
from loadtest.plan.option import PROFILE, Engine, Promise
from loadtest.plan.search import Candidate, Rejected, SimulatedCandidate, on_paper, priced
from loadtest.plan.traffic import Load

Listed: TypeAlias = Callable[[Iterable[Gpu], Iterable[str]], tuple[list[Engine], list[Rejected]]]
"""Function from accelerators and precisions of weights to the engines they allow, and the impossible options."""

LOOSER = 1.5
"""Factor on the ITL SLO."""
LEAST_STARTS = 10
"""Cold starts that a trace must last. In a shorter one the autoscaler has hardly acted."""
SPOT = 0.4
"""Part of the price. The price of spot accelerators differs by the hour."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Accelerators, and precisions of weights."""

    gpus: Sequence[Gpu]
    precisions: Sequence[str]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One other choice, and the best plan that it allows."""

    change: str
    gpus: int | None
    """None where the choice is impossible, or nothing is known of it."""
    hourly: float | None
    outcome: str
    simulated: bool = False
    """False for a rough one."""
    known: bool = True
    """False where `outcome` says why nothing is known."""


def what_ifs(
    listed: Listed,
    planned: Sequence[SimulatedCandidate],
    load: Load,
    promise: Promise,
    *,
    precisions: Iterable[str],
    gpus: Iterable[Gpu],
) -> list[WhatIf]:
    """Change one thing at a time, starting from the best candidate.

    Args:
        listed: `search.engines` with the arguments that stay: model, prices, tensor parallel sizes, KV cache.
        planned: the simulated candidates, the best first.
        load: the load.
        promise: the SLO.
        precisions: precisions of weights to look at.
        gpus: accelerators to look at.
    """
    base, paper = planned[0].candidate, _Paper(planned, load, promise)
    own = base.engine
    here = [gpu for gpu in gpus if gpu.name == own.gpu]
    results = [
        paper.told(f"weights in {each}", _best(listed, here, [each], load, promise))
        for each in precisions
        if each != own.precision
    ]
    results += [
        paper.told(gpu.name, _best(listed, [gpu], [own.precision], load, promise))
        for gpu in gpus
        if gpu.name != own.gpu
    ]
    looser = promise.looser(LOOSER)
    if math.isfinite(looser.policy_itl_s):
        again, _ = on_paper([own], load, looser)
        results.append(paper.told(_bound_words(looser), again, most=base.replicas))
    again, _ = on_paper([_measured(own)], load, promise)
    said = paper.told(f"three {measurements(own)} that agree with what is predicted", again, most=base.replicas)
    if said.gpus is not None and said.gpus < base.gpus:
        results.append(said)
    if base.hourly is not None:
        results.append(WhatIf(f"spot accelerators at {SPOT:.0%} of the price", base.gpus, SPOT * base.hourly, own.name))
    return results


def _measured(engine: Engine) -> Engine:
    """Return an engine as it is after measurements that agree with what is predicted."""
    first = engine.error if engine.ttft_error is None else engine.ttft_error
    return replace(engine, error=min(engine.error, LEAST_ERROR), ttft_error=min(first, LEAST_TTFT_ERROR))


def measurements(engine: Engine) -> str:
    """Return what one can measure of an engine, and the flag that takes it. Points are of replicas with one batch, and
    correct no profile.
    """
    split = engine.lanes > 1 or engine.measured == PROFILE
    return "load tests (--observe)" if split else "measured points (--points)"


class _Paper:
    """Candidates on paper beside those that were simulated.

    Args:
        planned: the simulated candidates, the best first.
        load: the load.
        promise: the SLO.
    """

    def __init__(self, planned: Sequence[SimulatedCandidate], load: Load, promise: Promise) -> None:
        self._planned = [each for each in planned if each.holds]
        self._rate = load.rate
        best = planned[0].candidate
        alike = [best, *(each.candidate for each in self._planned if each.engine.gpu == best.engine.gpu)]
        guesses = [on_paper([each.engine], load, promise)[0] for each in alike]
        factors = [
            each.replicas / guess[0].replicas if guess else 1.0 for each, guess in zip(alike, guesses, strict=True)
        ]
        self._factor = factors[0]
        # A burst that one accelerator can't take is none for four of them, so each size has its own.
        self._factors = {each.engine.gpus: factor for each, factor in reversed([*zip(alike, factors, strict=True)])}

    def told(self, change: str, found: list[Candidate] | str, most: int | None = None) -> WhatIf:
        """Return what another choice takes.

        Args:
            change: what is other.
            found: its candidates on paper, the best first, or why there are none.
            most: replicas that are enough in any case.
        """
        if isinstance(found, str) or not found:
            return _told(change, found)
        names = {each.engine.name for each in found}
        here = [each.candidate for each in self._planned if each.engine.name in names]
        if here and most is None:
            by_cost = priced(here)
            best = min(here, key=lambda each: each.rank(by_cost=by_cost))
            return replace(_told(change, [best]), simulated=True)
        sized = [self._sized(each) for each in found]
        if most is not None:
            sized = [replace(each, replicas=min(most, each.replicas)) for each in sized]
        by_cost = priced(sized)
        return _told(change, sorted(sized, key=lambda each: each.rank(by_cost=by_cost)))

    def _sized(self, each: Candidate) -> Candidate:
        """Return a candidate on paper with as many times more or fewer replicas as the simulation found for the best
        one, or for another one of its accelerator with as many of them per replica. They are not fewer than serve the
        rate with full batches.
        """
        least = max(1, math.ceil(self._rate / (each.operation.rate * each.engine.lanes)))
        factor = self._factors.get(each.engine.gpus, self._factor)
        return replace(each, replicas=max(least, math.ceil(factor * each.replicas)))


def _bound_words(promise: Promise) -> str:
    if math.isfinite(promise.itl_p95_s):
        return f"ITL SLO of {1e3 * promise.itl_p95_s:.0f} ms"
    return f"TPOT SLO of {1e3 * promise.tpot_s:.0f} ms"


def ways_out(
    listed: Listed,
    load: Load,
    promise: Promise,
    asked: Choices,
    other: Choices,
    freer: Listed | None = None,
) -> list[WhatIf]:
    """Change one thing at a time where no choice that was asked for is possible: the precision, the accelerator, and
    with `freer` the tensor parallel size.
    """
    gpus, precisions, results = asked.gpus, asked.precisions, []
    if freer is not None:
        results.append(_told("any tensor parallel size", _best(freer, gpus, precisions, load, promise)))
    results += [_told(f"weights in {each}", _best(listed, gpus, [each], load, promise)) for each in other.precisions]
    results += [_told(each.name, _best(listed, [each], precisions, load, promise)) for each in other.gpus]
    return results


def autoscaled(base: Candidate, load: Load, promise: Promise, cold_start_s: float) -> WhatIf:
    """Return the effect of the autoscaler over a recorded load: simulated where that takes seconds, else by following
    the load minute by minute.
    """
    change = f"autoscaled, cold start {cold_start_s:g} s"
    lasts = load.trace[-1].arrival_s
    if lasts < LEAST_STARTS * cold_start_s:
        why = (
            f"the trace lasts {lasts:.0f} s, less than {LEAST_STARTS} cold starts, so nothing can be said of its hours"
        )
        return WhatIf(change, None, None, why, known=False)
    whole = load.factor * len(load.trace) <= MOST_REQUESTS
    seen = elastic(base, load, promise, cold_start_s=cold_start_s) if whole else followed(base, load, cold_start_s)
    each = base.engine.gpus
    hourly = None if base.engine.price is None else seen.mean * each * base.engine.price
    over = f"SLO met {seen.attainment:.1%} of {counted(seen.requests, 'request')}" if whole else f"over {_hours(lasts)}"
    outcome = f"{seen.mean:.2f} replicas on average, {seen.most} at most, {over}"
    return WhatIf(change, seen.most * each, hourly, outcome, simulated=whole)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"


def _best(
    listed: Listed,
    gpus: Iterable[Gpu],
    precisions: Iterable[str],
    load: Load,
    promise: Promise,
) -> list[Candidate] | str:
    options, lost = listed(gpus, precisions)
    found, also = on_paper(options, load, promise)
    return found or (lost + also)[-1].why


def _told(change: str, found: list[Candidate] | str) -> WhatIf:
    if isinstance(found, str) or not found:
        return WhatIf(change, None, None, found if isinstance(found, str) else "cannot be")
    best = found[0]
    return WhatIf(change, best.gpus, best.hourly, f"{counted(best.replicas, 'replica')} of {best.engine.name}")
