"""Effects of other choices than those asked for. On paper they show a direction and are not a promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cluster.plural import counted
from loadtest.plan.elastic import elastic
from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.option import Engine, Promise
from loadtest.plan.search import Candidate, Rejected, on_paper
from loadtest.plan.traffic import Load

Listed: TypeAlias = Callable[[Iterable[Gpu], Iterable[str]], tuple[list[Engine], list[Rejected]]]
"""Function from accelerators and precisions of weights to the engines they allow, and the impossible options."""

LOOSER = 1.5
"""Factor on the ITL SLO."""
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
    """None where the choice is impossible."""
    hourly: float | None
    outcome: str
    simulated: bool = False
    """False for a plan on paper."""


def what_ifs(
    listed: Listed,
    base: Candidate,
    load: Load,
    promise: Promise,
    *,
    precisions: Iterable[str],
    gpus: Iterable[Gpu],
) -> list[WhatIf]:
    """Change one thing at a time, starting from a candidate.

    Args:
        listed: `search.engines` with the arguments that stay: model, prices, tensor parallel sizes, KV cache.
        base: the candidate.
        load: the load.
        promise: the SLO.
        precisions: precisions of weights to look at.
        gpus: accelerators to look at.
    """
    own = base.engine
    results = []
    here = [gpu for gpu in gpus if gpu.name == own.gpu]
    for precision in precisions:
        if precision != own.precision:
            found = _best(listed, here, [precision], load, promise)
            results.append(_told(f"weights in {precision}", found))
    results += [
        _told(gpu.name, _best(listed, [gpu], [own.precision], load, promise)) for gpu in gpus if gpu.name != own.gpu
    ]
    looser = promise.looser(LOOSER)
    again, _ = on_paper([own], load, looser)
    results.append(_told(_bound_words(looser), again))
    if base.hourly is not None:
        results.append(WhatIf(f"spot accelerators at {SPOT:.0%} of the price", base.gpus, SPOT * base.hourly, own.name))
    return results


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
    """Return the effect of the autoscaler over a recorded load."""
    seen = elastic(base, load, promise, cold_start_s=cold_start_s)
    each = base.engine.gpus
    hourly = None if base.engine.price is None else seen.mean * each * base.engine.price
    outcome = (
        f"{seen.mean:.2f} replicas on average, {seen.most} at most, SLO met {seen.attainment:.1%} "
        f"of {counted(seen.requests, 'request')}"
    )
    change = f"autoscaled, cold start {cold_start_s:g} s"
    return WhatIf(change, seen.most * each, hourly, outcome, simulated=True)


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
