"""Search for what to run: sizes every option on paper, simulates the best, and finds what bounds each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from cluster.plural import counted
from loadtest.plan.engine.abilities import ability, broken_blocks
from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.memory import Sizing, size
from loadtest.plan.engine.points import Known, errors_of
from loadtest.plan.engine.precision import canonical, weights_of
from loadtest.plan.engine.prior import prior
from loadtest.plan.engine.shapes import ModelShape
from loadtest.plan.fewer import MOST, confidence_with
from loadtest.plan.least import find_least
from loadtest.plan.option import Engine, Impossible, Layout, Operation, Promise, operate, replicas_for
from loadtest.plan.traffic import Load
from loadtest.plan.trial import Ranges, TrialFigures, production, ranges, try_out

PARALLEL = (1, 2, 4, 8)
MORE = 3
"""Candidates that are simulated beyond those asked for where none of these holds."""
STAGES = (2, 4)
"""Pipeline stages to look at, each of one server, where a model does not fit into one."""
GROUPS = (8, 16)
"""Groups with attention of their own that share experts."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An impossible option."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option on paper."""

    engine: Engine
    operation: Operation
    """For an engine as slow as its error makes likely."""
    replicas: int

    @property
    def gpus(self) -> int:
        """Accelerators of all replicas."""
        return self.replicas * self.engine.gpus

    @property
    def hourly(self) -> float | None:
        """Cost per hour; None without a price."""
        return None if self.engine.price is None else self.gpus * self.engine.price

    def rank(self, *, by_cost: bool) -> tuple[float, int]:
        """Return the sort key: cost, or accelerators where a compared candidate has no price."""
        return (self.hourly if by_cost and self.hourly is not None else float(self.gpus)), self.gpus


@dataclass(frozen=True, slots=True)
class SimulatedCandidate:
    """A candidate that was simulated."""

    candidate: Candidate
    ranges: Ranges
    binding: str
    holds: bool
    """Whether an engine as slow as it is with the promise's confidence keeps the promise. The ranges cover slower ones
    too.
    """
    sure: float
    """Part of the requests that keep the SLO at the promise's confidence."""
    with_one_less: float | None = None
    """Confidence with which one replica less is enough; None where that was not looked at."""

    @property
    def engine(self) -> Engine:
        """Engine of its replicas."""
        return self.candidate.engine

    @property
    def worst(self) -> float:
        """Part of the requests that keep the SLO in the worst of all trials."""
        return min(self.sure, self.ranges.attainment.low)

    def per_million_tokens(self, load: Load, *, output_only: bool = False) -> float | None:
        """Return the cost of a million tokens of this load; None without a price."""
        hourly = self.candidate.hourly
        tokens = load.shape.output_tokens + (0 if output_only else load.shape.prompt_tokens)
        return None if hourly is None else hourly / (3600 * load.rate * tokens) * 1e6


def engines(
    shape: ModelShape,
    gpus: Iterable[Gpu],
    precisions: Iterable[str],
    *,
    prices: Mapping[str, float],
    parallel: Iterable[int] = PARALLEL,
    kv_element_bytes: float = 2.0,
    layouts: Sequence[Layout] | None = None,
    length: float | None = None,
) -> tuple[list[Engine], list[Rejected]]:
    """List the engines that can run a model, and the options that cannot.

    Args:
        shape: the model.
        gpus: accelerators.
        precisions: of the weights.
        prices: per accelerator and hour, by name.
        parallel: tensor parallel sizes.
        kv_element_bytes: 2, or 1 for an fp8 cache.
        layouts: splits beside tensor parallelism; None for none, and for several servers where one is too small.
        length: tokens of a mean request, prompt and output.
    """
    found: list[Engine] = []
    lost: list[Rejected] = []
    for gpu in gpus:
        for precision in precisions:
            what = ability(shape, gpu, precision, kv_element_bytes=kv_element_bytes)
            if what.refused:
                lost.append(Rejected(f"{gpu.name}, {canonical(precision)}", what.refused))
                continue
            split = partial(_split, shape, gpu, precision, kv_element_bytes=kv_element_bytes, length=length)
            fits, too_large = (
                _usual(shape, gpu, tuple(parallel), split) if layouts is None else split(parallel, layouts)
            )
            found += [replace(each, price=prices.get(gpu.name), fallback=what.fallback) for each in fits]
            lost += too_large
    return found, lost


_Split: TypeAlias = Callable[[Iterable[int], Iterable[Layout]], tuple[list[Engine], list[Rejected]]]


def _usual(shape: ModelShape, gpu: Gpu, sizes: Sequence[int], split: _Split) -> tuple[list[Engine], list[Rejected]]:
    """List the splits that make sense where nobody asked for one: tensor parallel, over servers where one is too
    small, by stages where accelerators reach each other over PCIe, and by groups where latent vectors would be copied
    to every rank.
    """
    fits, too_large = split(sizes, [Layout()])
    if not fits:
        widest = [size for size in sizes if size <= gpu.domain][-1:]
        for stages in STAGES:
            fits, lost = split(widest, [Layout(pipeline=stages)])
            too_large += lost
            if any(not each.starved for each in fits):
                break
    if gpu.slow_link:
        # Stages pass on a row per token where ranks reduce whole activations twice a layer.
        for stages in () if shape.encoder else STAGES:
            inside = [size for size in sizes if size * stages <= gpu.domain]
            fits = [*fits, *split(inside, [Layout(pipeline=stages)])[0]]
    if shape.latent is not None and shape.experts is not None:
        shared, lost = split((1,), [Layout(data=each) for each in GROUPS])
        fits, too_large = [*fits, *shared], [*too_large, *lost]
    return fits, too_large


def _split(
    shape: ModelShape,
    gpu: Gpu,
    precision: str,
    parallel: Iterable[int],
    layouts: Iterable[Layout],
    *,
    kv_element_bytes: float,
    length: float | None,
) -> tuple[list[Engine], list[Rejected]]:
    found: list[Engine] = []
    lost: list[Rejected] = []
    for layout in layouts:
        for ranks in parallel:
            name = f"{layout.words(ranks)} x {gpu.name}, {precision}"
            if (
                why := _unsplit(shape, ranks, layout) or broken_blocks(shape, ranks, precision, layout.data)
            ) is not None:
                lost.append(Rejected(name, why))
                continue
            part = size(
                shape,
                gpu,
                ranks,
                precision,
                kv_element_bytes=kv_element_bytes,
                length=length,
                step_tokens=_step_limits(shape, gpu)[0],
                stages=layout.pipeline,
                groups=layout.data,
            )
            if part.fits:
                found.append(_engine(shape, gpu, precision, part, layout, kv_element_bytes))
            else:
                lost.append(Rejected(name, _too_large(part)))
    return found, lost


def _unsplit(shape: ModelShape, ranks: int, layout: Layout) -> str | None:
    """Return why a model can't be split so; None if it can."""
    if shape.heads % ranks:
        return f"{shape.heads} attention heads can't be split over {ranks} GPUs"
    if shape.latent is None and shape.kv_heads % ranks and ranks % shape.kv_heads:
        # Engines split heads of keys and values evenly, or copy each to as many ranks.
        return f"{shape.kv_heads} heads of keys and values can't be split evenly over {ranks} GPUs, or copied to them"
    if layout.pipeline > shape.layers:
        return f"{shape.layers} layers can't be split into {layout.pipeline} stages"
    if layout.pipeline > 1 and shape.encoder:
        return "engines run models that only read in one stage"
    if layout.data > 1 and shape.experts is None:
        return "the model has no experts that groups could share"
    if layout.data > 1 and shape.experts is not None and ranks * layout.data > shape.experts.total:
        return f"{shape.experts.total} experts can't be spread over {ranks * layout.data} GPUs"
    return None


def _too_large(room: Sizing) -> str:
    need, gb = room.weights + room.overhead, 1e9
    return (
        f"needs {need / gb:.1f} GB per GPU for weights and overhead, {room.usable / gb:.1f} GB are usable: "
        f"{max(room.short_by, 1e6) / gb:.1f} GB short"
    )


def _engine(
    shape: ModelShape, gpu: Gpu, precision: str, room: Sizing, layout: Layout, kv_element_bytes: float
) -> Engine:
    weights, ranks = weights_of(shape, precision), room.tensor_parallel
    errors = errors_of(Known(shape, gpu, weights.precision), ranks, groups=layout.data, stages=layout.pipeline)
    steps = prior(shape, gpu, ranks, precision, kv_element_bytes=kv_element_bytes, groups=layout.data)
    return Engine(
        model=shape.name,
        gpu=gpu.name,
        tensor_parallel=ranks,
        precision=weights.precision,
        steps=steps,
        error=errors.steps,
        source="prior" if errors.inside else "prior, outside its calibration",
        kv_tokens=room.kv_tokens,
        step_limits=_step_limits(shape, gpu),
        context=shape.context,
        starved=room.starved,
        overhead_s=steps.first.overhead_s,
        overhead_steps=max(0.0, steps.first.steps - 0.5),
        ttft_error=errors.ttft,
        layout=layout,
        kv_element_bytes=kv_element_bytes,
        whole_prompts=shape.encoder,
        native=shape.native,
        untold_context=shape.untold_context,
    )


def _step_limits(shape: ModelShape, gpu: Gpu) -> tuple[int, int]:
    """Return the largest token budget of a step, and the largest batch. Attention in both directions needs all of a
    text in one step, and vLLM starts with no budget below the context.
    """
    tokens, sequences = gpu.step_limits
    return (max(tokens, shape.context) if shape.encoder else tokens), sequences


def priced(candidates: Iterable[Candidate]) -> bool:
    """Return whether candidates can be compared by cost. Money does not compare with a number of accelerators."""
    return all(each.hourly is not None for each in candidates)


def on_paper(options: Iterable[Engine], load: Load, promise: Promise) -> tuple[list[Candidate], list[Rejected]]:
    """Size every option, the cheapest first. Each is taken to be as slow as its error makes likely."""
    found: list[Candidate] = []
    lost: list[Rejected] = []
    for engine in options:
        operation = operate(engine.at(promise.confidence), load, promise)
        if isinstance(operation, Impossible):
            lost.append(Rejected(engine.name, operation.why + _margin_words(engine, load, promise)))
        else:
            found.append(Candidate(engine, operation, replicas_for(operation, load.rate, engine.lanes)))
    by_cost = priced(found)
    return sorted(found, key=lambda each: each.rank(by_cost=by_cost)), lost


def _margin_words(engine: Engine, load: Load, promise: Promise) -> str:
    """Return how much of an engine's impossibility is its margin; empty where it is impossible without too."""
    if isinstance(operate(engine.at(0.5), load, promise), Impossible):
        return ""
    steps, first = engine.margin(promise.confidence)
    sure = f"{promise.confidence:.0%}".replace("%", " %")
    return (
        f". Only the margin makes it so: for a confidence of {sure} steps count as {steps:.2f} times and first tokens "
        f"as {first:.2f} times as long as predicted; measurements that agree would make it possible"
    )


def simulate(
    candidate: Candidate,
    load: Load,
    promise: Promise,
    *,
    draws: int = 5,
    seed: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> SimulatedCandidate:
    """Find the number of replicas that keeps the promise even if the engine is as slow as it is with the promise's
    confidence.
    """
    engine, operation = candidate.engine, candidate.operation
    careful, sure = engine.at(promise.confidence), dict[int, float]()

    def tried(replicas: int) -> TrialFigures:
        tell(f"{engine.name}: {counted(replicas, 'replica')}")
        fast = production(careful, load, promise)
        seen = try_out(careful, operation, load, promise, replicas, seed=seed, fast=fast)
        sure[replicas] = seen.attainment
        return seen

    guess = candidate.replicas
    floor = max(1, math.ceil(load.rate / (operation.rate * engine.lanes)))
    least = find_least(tried, promise, floor, guess)
    replicas, missed = least.replicas, least.missed
    final = Candidate(engine, operation, replicas)
    tell(f"{engine.name}: ranges")
    # Where no number is enough, the ends of the ranges tell all.
    spread = ranges(
        engine, operation, load, promise, replicas, draws=draws if least.holds else min(2, draws), seed=seed
    )
    binding = missed if replicas > guess else operation.binding
    if not least.holds:
        kept = f"{math.floor(1000 * sure[replicas]) / 10:g} %"
        binding = f"{missed}: no number up to {replicas:,} is enough, because {kept} of the requests keep the SLO then"
    elif replicas == 1:
        binding = f"one replica is enough ({operation.binding})"
    return SimulatedCandidate(final, spread, binding, least.holds, sure[replicas])


def plan(
    options: Sequence[Engine],
    load: Load,
    promise: Promise,
    *,
    simulated: int = 4,
    draws: int = 5,
    seed: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[list[SimulatedCandidate], list[Candidate], list[Rejected]]:
    """Return the best candidates with ranges, the rest on paper, and the impossible options."""
    found, lost = on_paper(options, load, promise)
    best: list[SimulatedCandidate] = []
    for candidate in found:
        if len(best) >= simulated and (len(best) >= simulated + MORE or any(each.holds for each in best)):
            break
        best.append(simulate(candidate, load, promise, draws=draws, seed=seed, tell=tell))
    by_cost = priced(found)
    rest = found[len(best) :]
    best.sort(key=lambda each: ranking(each, promise, by_cost=by_cost))
    if best and best[0].holds and 1 < best[0].candidate.replicas <= MOST:
        engine, operation, replicas = best[0].engine, best[0].candidate.operation, best[0].candidate.replicas
        less = confidence_with(replicas - 1, engine, operation, load, promise, seed=seed, tell=tell)
        best[0] = replace(best[0], with_one_less=less)
    return best, rest, lost


def ranking(
    planned: SimulatedCandidate, promise: Promise, *, by_cost: bool
) -> tuple[bool, bool, tuple[float, ...], float]:
    """Return the sort key of candidates, the best first. First come those that hold at the promise's confidence. Then
    the cost or the number of accelerators decides.
    """
    at_risk = planned.sure < promise.attainment
    return not planned.holds, at_risk, planned.candidate.rank(by_cost=by_cost), planned.ranges.ttft_p99_s.middle
