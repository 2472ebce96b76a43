"""The loads on which autoscalers are compared. Each is scaled so that its peak needs 20 replicas.

A replica is slow, like one of a model of hundreds of billions of parameters. So 20 of them need only a few requests per
second, the traces keep their own pace, and a run takes seconds. Denser traces are thinned. Sparser ones are overlaid
with themselves at random shifts. A seed draws both.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cluster.control.step_model import Shape, StepModel
from cluster.queue.entries import QueueLimits
from cluster.settings import SimSettings
from loadtest.benchmarks.autoscaler.courses import (
    SERIES,
    SERIES_ROW_S,
    Course,
    CourseMaker,
    office_hours,
    second_week,
    series_rates,
)
from loadtest.simulate.autoscalers.penstock import point_of
from loadtest.simulate.setup import Death, Setup, Slo
from loadtest.traces import TraceRequest, read_trace
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint

PEAK_REPLICAS = 20
PEAK_FILL = 0.8
"""Fill of the 20 replicas at the peak."""
_PEAK_OVER_S = 120.0
ENGINE = SimSettings(
    base_ms=312.5,
    per_token_us=1050.0,
    per_kv_token_us=1.775,
    kv_tokens=48_000,
    max_num_seqs=12,
    max_num_batched_tokens=512,
    max_model_len=40_000,
)
"""Engine of 8 billion parameters as fitted on a recorded run, 25 times as slow."""
LONG_ENGINE = ENGINE.model_copy(update={"kv_tokens": 160_000, "max_num_batched_tokens": 2_048})
LONGEST_PROMPT = 30_000
"""Longest prompt taken from the Mooncake trace. The prefill of a longer one alone exceeds the SLO."""
WIDE_ENGINE = ENGINE.model_copy(update={"kv_tokens": 240_000, "max_num_seqs": 48})
"""Engine in which long prompts fill the steps before all of its sequences are taken."""
SLO, LONG_SLO = Slo(10.0, 1.0), Slo(50.0, 2.9)
LONGER_SLO, WIDE_SLO = Slo(40.0, 1.0), Slo(40.0, 1.05)
"""SLOs for prompts that get four times as long. Their prefill alone takes 8 s on average, and 30 s at most."""
HEARTBEAT_S = 20.0
"""Seconds between heartbeats, about as slow as the engine. Also the period of batch policies."""
LIMITS = QueueLimits(lease_ms=int(4e3 * HEARTBEAT_S), preempt_after_ms=2_000, preempt_quantum_ms=int(2e3 * HEARTBEAT_S))
_SAMPLES = 10
"""Points of a timeline that is not used."""
LEAD_S, LONG_LEAD_S = 600.0, 3600.0
"""Load before the counted time. An empty pool fills for minutes, and the policies' measurements begin at 0. What a new
pool orders in its first minutes stays for half an hour. So the longer one stands for a pool that has served for days,
and shows whether a load is bursty.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Time of a load: the counted time, and the lead before it."""

    seconds: float
    """Seconds that are counted."""
    lead_s: float = LEAD_S

    @property
    def whole_s(self) -> float:
        """Seconds from the first arrival on."""
        return self.lead_s + self.seconds

    def place(self, at: float) -> float:
        """Return the place of a time in the counted time, from 0 to 1; less than 0 before it."""
        return (at - self.lead_s) / self.seconds

    def counts(self, at: float) -> bool:
        """Return whether a time is in the counted time."""
        return self.lead_s <= at < self.whole_s


@dataclass(frozen=True, slots=True)
class ContestScenario:
    """Load with its events."""

    name: str
    make: Callable[[random.Random, Span, Path], list[TraceRequest]]
    """Maker of the load from a random source, a time and the folder of traces. Its rate is free."""
    engine: SimSettings = ENGINE
    slo: Slo = SLO
    cold_start_s: float = 180.0
    deaths: int = 0
    """Number of replicas that die at two fifths of the time."""
    model_error: float = 0.0
    """Relative error of the step model that policies get."""
    batch_part: float = 0.0
    """Part of the requests of class BATCH, which has no SLO."""
    lead_s: float = LEAD_S
    """Load before the counted time."""
    course: CourseMaker | None = None
    """Course over weeks that the load is a part of; None where nothing is known of the past."""

    @property
    def load(self) -> str:
        """Name by which loads are drawn: the scenario's name up to a slash."""
        return self.name.split("/")[0]


@dataclass(frozen=True, slots=True)
class Case:
    """Scenario whose random values are drawn."""

    scenario: ContestScenario
    seed: int
    span: Span
    trace: list[TraceRequest]
    setup: Setup
    point: OperatingPoint
    course: Course | None = None
    """Course that the load is a part of; None where nothing is known of the past."""


def case(scenario: ContestScenario, seed: int, span: Span, data: Path) -> Case:
    """Draw the load and describe the pool."""
    rnd = random.Random(f"{scenario.load} {seed}")
    trace = scaled(scenario.make(rnd, span, data), scenario.engine, rnd, span)
    if scenario.batch_part:
        classes = (RequestClass.BATCH, RequestClass.INTERACTIVE)
        trace = [replace(each, request_class=classes[rnd.random() >= scenario.batch_part]) for each in trace]
    setup = Setup(
        scenario.engine,
        max_replicas=3 * PEAK_REPLICAS,
        default_class=RequestClass.INTERACTIVE,
        limits=LIMITS,
        heartbeat_s=HEARTBEAT_S,
        samples=_SAMPLES,
        cold_start_s=scenario.cold_start_s,
        deaths=(Death(span.lead_s + 0.4 * span.seconds, scenario.deaths),) if scenario.deaths else (),
        slo=scenario.slo,
        seed=seed,
        prefix_cache=False,
        # Only Penstock's replica policy refuses requests. Here all policies serve all requests, so that hours are
        # compared for the same work.
        relief=False,
    )
    # The same source that the load's own draw began with.
    source = random.Random(f"{scenario.load} {seed}")
    course = scenario.course(source, span.seconds, data) if scenario.course is not None else None
    return Case(scenario, seed, span, trace, setup, point_of({RequestClass.INTERACTIVE: scenario.slo}), course)


def work_of(request: TraceRequest, engine: SimSettings) -> float:
    """Return the replica-seconds of a request in a batch as large as engine and KV cache allow."""
    shape = Shape(request.prompt_tokens, request.output_tokens)
    batch = min(float(engine.max_num_seqs), max(1.0, 0.9 * engine.kv_tokens / shape.mix.kv_tokens))
    return true_model(engine).gpu_seconds(shape, batch, engine.max_num_batched_tokens)


def true_model(engine: SimSettings) -> StepModel:
    return StepModel(engine.base_ms / 1e3, engine.per_token_us / 1e6, engine.per_kv_token_us / 1e6)


def scaled(trace: Sequence[TraceRequest], engine: SimSettings, rnd: random.Random, span: Span) -> list[TraceRequest]:
    """Thin a trace, or overlay it with itself, until the busiest two counted minutes need `PEAK_REPLICAS`."""
    bins = [0.0] * (int(span.seconds // _PEAK_OVER_S) + 1)
    for each in trace:
        if span.counts(each.arrival_s):
            place = min(len(bins) - 1, int((each.arrival_s - span.lead_s) // _PEAK_OVER_S))
            bins[place] += work_of(each, engine) / _PEAK_OVER_S
    factor = PEAK_FILL * PEAK_REPLICAS / max(bins)
    kept = []
    for each in trace:
        copies = int(factor) + (rnd.random() < factor % 1.0)
        for copy in range(copies):
            at = each.arrival_s + (rnd.uniform(-10.0, 10.0) if copy else 0.0)
            kept.append(replace(each, arrival_s=min(max(0.0, at), span.whole_s), block_ids=(), block_tokens=0))
    kept.sort(key=lambda each: each.arrival_s)
    return [replace(each, number=number) for number, each in enumerate(kept)]


# --- loads ------------------------------------------------------------------------------------------------------------


@cache
def _recorded(path: Path) -> tuple[TraceRequest, ...]:
    return tuple(each for each in read_trace(path) if each.prompt_tokens <= LONGEST_PROMPT)


def _window(name: str) -> Callable[[random.Random, Span, Path], list[TraceRequest]]:
    def make(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
        whole = _recorded(data / name)
        start = rnd.uniform(0.0, max(0.0, whole[-1].arrival_s - span.whole_s))
        return [
            replace(each, arrival_s=each.arrival_s - start)
            for each in whole
            if start <= each.arrival_s < start + span.whole_s
        ]

    return make


def _drawn(rate: Callable[[float], float], rnd: random.Random, span: Span, data: Path, longer: float = 1.0,
           longer_from: float = 2.0) -> list[TraceRequest]:  # fmt: skip
    """Draw arrivals at `rate`, a function of the place in the counted time from 0 to 1.

    They are a little burstier than chance. The lengths are those of the Azure trace.
    """
    whole = _recorded(data / "azure_llm_2023_conv.csv")
    highest, at = 2.0, 0.0
    found: list[TraceRequest] = []
    burst, until = 1.0, 0.0
    while at < span.whole_s:
        # Over each half minute the rate is off by a quarter, like that of a real service.
        if at >= until:
            burst, until = rnd.gammavariate(16.0, 1 / 16.0), until + 30.0
        at += rnd.expovariate(highest * 2.0)
        place = span.place(at)
        if at < span.whole_s and rnd.random() < min(1.0, rate(place) * burst / 2.0):
            each = rnd.choice(whole)
            prompt = each.prompt_tokens * (longer if place >= longer_from else 1.0)
            found.append(TraceRequest(len(found), at, min(LONGEST_PROMPT, int(prompt)), each.output_tokens))
    return found


def _step(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
    return _drawn(lambda at: 1.0 if 0.3 <= at < 0.65 else 1 / 3, rnd, span, data)


def _length(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
    return _drawn(lambda _: 1.0, rnd, span, data, longer=4.0, longer_from=0.4)


def _even(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
    return _drawn(lambda _: 1.0, rnd, span, data)


FASTER = 6.0
"""Factor of the 14-day series' speed, where it is not played at its own pace."""


def _series(rnd: random.Random, span: Span, data: Path, faster: float = FASTER) -> list[TraceRequest]:
    """Take a window of the 14-day series, thinned."""
    rates = series_rates(data / SERIES)
    lead, rows = (faster * part / SERIES_ROW_S for part in (span.lead_s, span.seconds))
    start = rnd.uniform(lead, len(rates) - rows - 2)
    top = max(rates[int(start - lead) : int(start + rows) + 2])

    def rate(at: float) -> float:
        place = start + at * rows
        low = int(place)
        return ((1 - place + low) * rates[low] + (place - low) * rates[low + 1]) / top

    return _drawn(rate, rnd, span, data)


def _own_pace(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
    return _series(rnd, span, data, faster=1.0)


def _bursts(variation: float, rate: float) -> Callable[[random.Random, Span, Path], list[TraceRequest]]:
    """Draw arrivals whose gaps have this coefficient of variation, by a gamma distribution. The rate should be near the
    one that they are scaled to, because thinning makes a load less bursty.
    """

    def make(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
        whole = _recorded(data / "azure_llm_2023_conv.csv")
        shape, at = variation**-2, 0.0
        found: list[TraceRequest] = []
        while at < span.whole_s:
            at += rnd.gammavariate(shape, 1.0 / shape / rate)
            each = rnd.choice(whole)
            found.append(TraceRequest(len(found), at, each.prompt_tokens, each.output_tokens))
        return found

    return make


def _on_off(on_s: float, off_s: float) -> Callable[[random.Random, Span, Path], list[TraceRequest]]:
    """Draw times of much and little load in turn, of these lengths on average."""

    def make(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
        turns, at = [0.0], 0.0
        while at < span.whole_s:
            # Uneven, so that no look-back fits by chance.
            at += (off_s if len(turns) % 2 else on_s) * rnd.uniform(0.5, 1.5)
            turns.append(at)

        def rate(place: float) -> float:
            return (0.15, 1.0)[bisect.bisect(turns, span.lead_s + place * span.seconds) % 2]

        return _drawn(rate, rnd, span, data)

    return make


def _on(course: CourseMaker) -> Callable[[random.Random, Span, Path], list[TraceRequest]]:
    def make(rnd: random.Random, span: Span, data: Path) -> list[TraceRequest]:
        rate = course(rnd, span.seconds, data).rate
        moments = range(-int(span.lead_s), int(span.seconds) + 1, 15)
        top = max(rate(float(moment)) for moment in moments)
        return _drawn(lambda place: rate(place * span.seconds) / top, rnd, span, data)

    return make


SCENARIOS = (
    ContestScenario("azure", _window("azure_llm_2023_conv.csv")),
    ContestScenario("mooncake", _window("mooncake_conversation.jsonl"), engine=LONG_ENGINE, slo=LONG_SLO),
    ContestScenario("series at its own pace", _own_pace),
    ContestScenario("series", _series),
    ContestScenario("series/cold 30 s", _series, cold_start_s=30.0),
    ContestScenario("series/cold 420 s", _series, cold_start_s=420.0),
    ContestScenario("series/model +30 %", _series, model_error=0.3),
    ContestScenario("series/model -30 %", _series, model_error=-0.3),
    ContestScenario("step x3", _step),
    ContestScenario("length x4", _length, slo=LONGER_SLO),
    ContestScenario("length x4/wide batches", _length, engine=WIDE_ENGINE, slo=WIDE_SLO),
    ContestScenario("death", _even, deaths=3),
    ContestScenario("classes 70/30", _series, batch_part=0.3),
    ContestScenario("bursts CV 5", _bursts(5.0, 1.2), lead_s=LONG_LEAD_S),
    ContestScenario("bursts CV 10", _bursts(10.0, 0.85), lead_s=LONG_LEAD_S),
    ContestScenario("bursts CV 15", _bursts(15.0, 0.5), lead_s=LONG_LEAD_S),
    ContestScenario("on and off", _on_off(150.0, 300.0), lead_s=LONG_LEAD_S),
    ContestScenario("second week", _on(second_week), lead_s=LONG_LEAD_S, course=second_week),
    ContestScenario("office hours", _on(office_hours), course=office_hours),
)
"""All scenarios. Those whose names have the same beginning share their loads."""
