"""Bars for the planner's quality: on measured points, and on loads that others submitted for some accelerators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.points import Score, Scores
from loadtest.plan.goals.budget import served
from loadtest.plan.measured.held_out import Verdicts
from loadtest.plan.option import Layout, Promise
from loadtest.plan.search import Candidate, engines, plan
from loadtest.plan.traffic import Load, steady_load

TPOT_BIAS, TTFT_BIAS = 0.2, 0.25
"""Largest biases of a group of points."""
WRONG_YES = {(2.0, 0.1): 0.01, (0.5, 0.03): 0.03}
"""Largest parts of points with a wrong yes, by the bounds of the SLO in seconds: TTFT, TPOT."""
MOST_RATIO = 1.5
"""Largest number of accelerators planned over the number submitted."""


@dataclass(frozen=True, slots=True)
class PlannerBar:
    """One figure and its bounds."""

    name: str
    value: float
    most: float
    least: float = -math.inf
    percent: bool = True
    note: str = ""
    """What the figure is made of, where that is not plain."""

    @property
    def held(self) -> bool:
        """Whether the figure is within its bounds."""
        return self.least <= self.value <= self.most

    def words(self, value: float) -> str:
        """Return a figure in words."""
        return f"{100 * value:.3g} %" if self.percent else f"{value:.3g}"

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        most = self.words(self.most)
        return f"{self.words(self.least)} to {most}" if math.isfinite(self.least) else f"at most {most}"

    def as_json(self) -> dict[str, Any]:
        """Return the data that the benchmark writes."""
        least = self.least if math.isfinite(self.least) else None
        value = self.value if math.isfinite(self.value) else None
        return {
            "name": self.name,
            "value": value,
            "least": least,
            "most": self.most,
            "held": self.held,
            "note": self.note,
        }


def bars_of(scores: Scores, clean: Scores, said: Sequence[Verdicts]) -> Iterator[PlannerBar]:
    """Hold figures to their bars.

    Args:
        scores: of all points.
        clean: of those without queues and odd engines.
        said: verdicts on SLOs.
    """
    whole, part = scores.as_json(), clean.as_json()
    found = (
        ("TPOT error, median of all points", whole["median_tpot_error"], 0.1, -math.inf),
        ("TPOT error, 90th percentile of all points", whole["p90_tpot_error"], 0.3, -math.inf),
        ("TTFT error, median of all points", whole["median_ttft_error"], 0.15, -math.inf),
        ("TPOT in the 90 % range, points of the fit", part["tpot_in_range"], 0.95, 0.85),
        ("TTFT in the 90 % range, points of the fit", part["ttft_in_range"], 0.95, 0.85),
    )
    for name, value, most, least in found:
        if value is not None:
            yield PlannerBar(name, value, most, least)
    if clean.configs:
        tpot, ttft = (max(abs(_bias(each, kind)) for each in clean.configs) for kind in ("tpot", "ttft"))
        yield PlannerBar("largest TPOT bias of a group of the fit", tpot, TPOT_BIAS)
        yield PlannerBar("largest TTFT bias of a group of the fit", ttft, TTFT_BIAS)
    for each in said:
        bound = WRONG_YES.get((each.ttft_s, each.tpot_s))
        if bound is not None:
            name = f"wrong yes at {each.ttft_s:g} s and {1e3 * each.tpot_s:g} ms, all points"
            yield PlannerBar(name, each.wrong_part, bound)


def beyond(scores: Scores) -> list[Score]:
    """Return the groups of points whose bias is beyond that of a bar."""
    return [
        each for each in scores.configs if abs(_bias(each, "tpot")) > TPOT_BIAS or abs(_bias(each, "ttft")) > TTFT_BIAS
    ]


def _bias(score: Score, kind: str) -> float:
    return float(score.as_json()[f"{kind}_bias"])


@dataclass(frozen=True, slots=True)
class MlperfLoad:
    """A load that others submitted to MLPerf as what a number of accelerators serves."""

    model: str
    precision: str
    gpu: str
    gpus: int
    tokens_per_s: float
    """Output tokens per second that they served."""
    prompt_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float


SUBMISSIONS = tuple(
    MlperfLoad("llama-3.1-8b", "fp8", gpu, gpus, gpus * tokens_per_s, 778, 73, 2.0, 0.1)
    for gpu, tokens_per_s in (("h100", 5103.0), ("l40s", 1207.0))
    for gpus in (1, 8)
)
"""Llama-3.1-8B with vLLM 0.10, submitted for one accelerator of each kind; eight of them serve eight times the load."""


def ratio_of(each: MlperfLoad) -> PlannerBar:
    """Plan for the load of a submission. Return the accelerators over those submitted."""
    length = each.prompt_tokens + each.output_tokens
    options, _ = engines(
        load_shape(each.model), [load_gpu(each.gpu)], [each.precision], prices={}, length=length, layouts=[Layout()]
    )
    load = steady_load(each.tokens_per_s / each.output_tokens, each.prompt_tokens, each.output_tokens)
    promise = Promise(each.ttft_s, math.inf, 0.99, each.tpot_s)
    best, _, _ = plan(options, load, promise, simulated=1, draws=1)
    planned = best[0].candidate.gpus if best and best[0].holds else math.inf
    name = f"accelerators for MLPerf, {each.model} on {each.gpus} {each.gpu}, over those submitted"
    bar = PlannerBar(name, planned / each.gpus, MOST_RATIO, 1.0, percent=False)
    return bar if bar.held or not best else replace(bar, note=_in_parts(best[0].candidate, load, promise, each.gpus))


def _in_parts(planned: Candidate, load: Load, promise: Promise, submitted: int) -> str:
    """Say how many accelerators a load would take if there were parts of one: a plan has whole replicas."""
    one = served(replace(planned, replicas=1), load, promise)
    if not one.rate:
        return ""
    parts = load.rate / one.rate * planned.engine.gpus / submitted
    over = "so whole replicas are all of what is beyond the bar" if parts <= MOST_RATIO else "beyond the bar without it"
    return f"{parts:.2f} before it is rounded up to whole replicas, {over}"
