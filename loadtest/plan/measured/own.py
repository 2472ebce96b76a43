"""Engines corrected by measured points: how far off they were, how far off they are, and what to measure next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cluster.control.step_model import Shape
from cluster.errors import SettingsError
from cluster.plural import counted
from loadtest.plan.engine.architectures import find_shape
from loadtest.plan.engine.gpus import find_gpu, load_gpu
from loadtest.plan.engine.precision import canonical
from loadtest.plan.engine.steps import StepPrior
from loadtest.plan.measured.correction import Room, correct, errors_of
from loadtest.plan.measured.files import OwnEngine, OwnPoint
from loadtest.plan.option import Engine, Layout

SEVERAL = -1
"""Size that flags name several of, so that they do not say which one points are of."""
ENOUGH = 3
"""Points from which an engine's error is that of its points."""
LEAST_ERROR, LEAST_TTFT_ERROR = 0.06, 0.12
"""Least mean errors of corrected engines: on models left out of the prior, three points of one pair of lengths gave 7 %
on the other lengths.
"""
STRANGE = {"time per token": 30.0, "time to the first token": 100.0}
"""Times as long or as short as expected from which a measured time is in another unit, or of another engine."""
NEXT = 3
FEW = 4
"""Clients that show an engine's floor."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How the error on an engine's points moved. Mean relative errors; NaN where nothing was measured."""

    engine: str
    points: int
    sources: str
    tpot: tuple[float, float, float]
    """Before, after, and after for each point by the others alone."""
    ttft: tuple[float, float, float]

    def words(self) -> str:
        """Return it as a sentence."""
        parts = []
        for name, (before, after, left_out) in (("TPOT", self.tpot), ("TTFT", self.ttft)):
            if math.isnan(before):
                continue
            alone = "" if math.isnan(left_out) else f", {left_out:.0%} on points left out"
            parts.append(f"{name} {before:.0%} before, {after:.0%} after{alone}")
        return f"{self.engine}: mean error on {counted(self.points, 'point')}: {'; '.join(parts)} ({self.sources})"


class Corrections:
    """Points of one's own engines.

    Args:
        points: with their engines.
    """

    def __init__(self, points: Sequence[OwnPoint] = ()) -> None:
        self.points = points
        self._moved: dict[str, Moved] = {}

    def of(self, engines: Iterable[Engine]) -> list[Engine]:
        """Return engines, those with points corrected."""
        made = []
        for engine in engines:
            better, moved = corrected(engine, self.points)
            made.append(better)
            if moved is not None:
                self._moved[engine.name] = moved
        return made

    def words(self) -> list[str]:
        """Return how the errors of engines moved so far, as sentences."""
        return [each.words() for each in self._moved.values()]

    def check(self, engines: Sequence[Engine]) -> None:
        """Refuse points of engines that are not planned for: the plan would seem to know of them.

        Raises:
            SettingsError: there is such a point.
        """
        for point in self.points:
            if not any(belongs(point, engine) for engine in engines):
                own = point.engine
                kind = f"{_ranks(own)} x {own.gpu}, {own.precision}"
                kind += f", of {own.model}" if own.model else ""
                of = f", of {engines[0].model}" if own.model and engines else ""
                planned = ("; ".join(engine.name for engine in engines) or "none") + of
                if own.kv_element_bytes and engines:
                    kind += f", {_cache(own.kv_element_bytes)}"
                    planned += f", {_cache(engines[0].kv_element_bytes)}"
                raise SettingsError(f"points: {point.source} is of {kind}; engines that are planned for: {planned}")


def _cache(element_bytes: float) -> str:
    return f"with a KV cache in {'fp8' if element_bytes < 2 else 'bf16'}"


def engine_said(text: str) -> OwnEngine:
    """Read an engine as GPU,TP,PRECISION[,VERSION].

    Raises:
        SettingsError: the text has another form, or the accelerator or the precision is unknown.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (3, 4) or not parts[1].isdecimal() or not int(parts[1]):
        raise SettingsError(f"points-of must be GPU,TP,PRECISION or GPU,TP,PRECISION,VERSION, got {text!r}")
    gpu = load_gpu(parts[0])
    return OwnEngine("", gpu.name, int(parts[1]), canonical(parts[2]), parts[3] if len(parts) == 4 else "")


def points_for(points: Iterable[OwnPoint], said: OwnEngine, *, strict: bool = True) -> list[OwnPoint]:
    """Return points with what is said of their engine where the file does not tell.

    Args:
        points: as read.
        said: of their engine.
        strict: whether a file that tells something else is an error.

    Raises:
        SettingsError: a file tells another model, accelerator, size or precision than was said.
    """
    filled = []
    for point in points:
        own = point.engine
        for name in ("gpu", "tensor_parallel", "precision", "pipeline_parallel", "data_parallel"):
            known, told = getattr(own, name), getattr(said, name)
            if strict and known and told not in (0, "", SEVERAL) and not _same(name, known, told):
                raise SettingsError(f"points: {point.source} is of {name} {known}, and {told} was asked for")
        merged = OwnEngine(
            own.model or said.model,
            own.gpu or said.gpu,
            own.tensor_parallel or said.tensor_parallel,
            own.precision or said.precision,
            own.version or said.version,
            own.pipeline_parallel or said.pipeline_parallel or 1,
            own.data_parallel or said.data_parallel or 1,
            own.kv_element_bytes,
        )
        if not (merged.gpu and merged.tensor_parallel and merged.precision):
            raise SettingsError(
                f"points: {point.source} does not tell its accelerator, tensor parallel size and precision; "
                "say them with points-of, such as h100,4,fp8"
            )
        if SEVERAL in (merged.pipeline_parallel, merged.data_parallel):
            raise SettingsError(
                f"points: {point.source} does not tell its pipeline and data parallel sizes; give one --pp or --dp"
            )
        filled.append(replace(point, engine=merged))
    return filled


def _ranks(own: OwnEngine) -> str:
    return Layout(own.pipeline_parallel or 1, own.data_parallel or 1).words(own.tensor_parallel)


def _same(name: str, one: object, other: object) -> bool:
    if name == "gpu":
        first, second = find_gpu(str(one)), find_gpu(str(other))
        return first is not None and first == second
    return canonical(str(one)) == canonical(str(other)) if name == "precision" else one == other


def belongs(point: OwnPoint, engine: Engine) -> bool:
    """Return whether a point is of an engine. A point that does not say its model is of the one that is planned for."""
    own = point.engine
    gpu = find_gpu(own.gpu)
    if gpu is None or gpu.name != engine.gpu:
        return False
    if own.model and not _is_model(own.model, engine):
        return False
    if (own.pipeline_parallel or 1) != engine.layout.pipeline:
        return False
    if (own.data_parallel or 1) != engine.layout.data and not (engine.layout.data == 1 and _dense(engine)):
        return False
    if own.kv_element_bytes not in (0.0, engine.kv_element_bytes):
        return False
    return own.tensor_parallel == engine.tensor_parallel and _precise(own.precision, engine.precision)


def _is_model(name: str, engine: Engine) -> bool:
    """Return whether a point's model is that of an engine. One that is not known must be called as the planned one."""
    shape = find_shape(name)
    if shape is not None:
        return shape.name == _architecture(engine)
    one, other = (each.rstrip("/").rsplit("/", 1)[-1].lower() for each in (name, engine.model))
    return one == other


def _architecture(engine: Engine) -> str:
    """Return the name that a well-known model has in the table; a folder of its files is called otherwise."""
    known = find_shape(engine.model)
    return engine.model if known is None else known.name


def _dense(engine: Engine) -> bool:
    """Return whether data parallel ranks are engines beside each other, because they have no experts to share."""
    shape = find_shape(engine.model)
    return shape is not None and shape.experts is None


def _in_lane(point: OwnPoint) -> OwnPoint:
    """Return a point as one of the batches that run beside each other has it: clients spread over them."""
    own = point.engine
    lanes = Layout(own.pipeline_parallel or 1, own.data_parallel or 1).lanes
    return replace(point, clients=max(1, round(point.clients / lanes)))


def _precise(one: str, other: str) -> bool:
    alike = {canonical(one), canonical(other)}
    return len(alike) == 1 or alike == {"fp4", "mxfp4"}


def corrected(engine: Engine, points: Sequence[OwnPoint]) -> tuple[Engine, Moved | None]:
    """Correct an engine by its points among others. Return it, and how its error moved.

    Raises:
        SettingsError: a time of a point is no such engine's.
    """
    own = [_in_lane(point) for point in points if belongs(point, engine)]
    if not own:
        return engine, None
    room = Room(engine.kv_tokens, *engine.step_limits)
    for point in own:
        _check_times(point, engine, room)
    steps = correct(engine.steps, own, room).of(engine.steps)
    left_out: list[tuple[float, float]] = []
    if len(own) >= ENOUGH:
        for point in own:
            others = correct(engine.steps, [each for each in own if each is not point], room).of(engine.steps)
            left_out.append(_errors(others, point, room))
    before = [_errors(engine.steps, point, room) for point in own]
    after = [_errors(steps, point, room) for point in own]
    tpot, ttft = ((_mean(before, which), _mean(after, which), _mean(left_out, which)) for which in (0, 1))
    sources = "; ".join(dict.fromkeys(_provenance(point) for point in own))
    moved = Moved(engine.name, len(own), sources, tpot, ttft)
    changed = replace(
        engine,
        steps=steps,
        overhead_s=steps.first.overhead_s,
        error=_left(engine.error, tpot[2], len(own), LEAST_ERROR),
        ttft_error=_left(engine.ttft_error or engine.error, ttft[2], len(own), LEAST_TTFT_ERROR),
        source=f"{engine.source}, corrected by {counted(len(own), 'measured point')}",
        measured=counted(len(own), "point"),
    )
    return changed, moved


def _check_times(point: OwnPoint, engine: Engine, room: Room) -> None:
    """Refuse a time that no engine like this one takes: a fit would follow it anywhere.

    Raises:
        SettingsError: it is one.
    """
    measured = dict(zip(STRANGE, (point.tpot_s, point.ttft_s), strict=True))
    known = {name: seconds for name, seconds in measured.items() if not math.isnan(seconds)}
    for (name, seconds), error in zip(known.items(), errors_of(engine.steps, point, room), strict=True):
        if abs(error) > math.log(STRANGE[name]):
            expected = seconds * math.exp(error)
            raise SettingsError(
                f"points: {point.source}: the {name} with {counted(point.clients, 'client')} is {seconds:.3g} s, and "
                f"{expected:.3g} s are expected of {engine.name}: from {STRANGE[name]:g} times as long or as short on "
                "it is in another unit, or of another engine"
            )


def _errors(steps: StepPrior, point: OwnPoint, room: Room) -> tuple[float, float]:
    """Return the relative errors of TPOT and TTFT, NaN for what was not measured."""
    found = iter(errors_of(steps, point, room))
    tpot = abs(math.expm1(next(found))) if point.tpot_s > 0 else math.nan
    return tpot, abs(math.expm1(next(found))) if point.ttft_s > 0 else math.nan


def _mean(pairs: Sequence[tuple[float, float]], which: int) -> float:
    values = [each[which] for each in pairs if not math.isnan(each[which])]
    return statistics.fmean(values) if values else math.nan


def _left(prior: float, seen: float, count: int, least: float) -> float:
    """Return the error that remains: that of points left out, as far as there are enough of them."""
    if math.isnan(seen):
        return prior if count < 2 else max(least, 0.75 * prior)
    return max(least, seen)


def _provenance(point: OwnPoint) -> str:
    own = point.engine
    version = f", version {own.version}" if own.version else ", version not told"
    return f"{point.source}: {_ranks(own)} x {own.gpu}, {own.precision}{version}"


def next_clients(limit: int, known: Iterable[int]) -> list[int]:
    """Return the numbers of clients whose measurement says most: few, many, and between, far from those known."""
    powers = [1 << each for each in range(max(1, limit).bit_length())]
    # Fewer clients than a few have the same floor.
    options = sorted({*(each for each in powers if min(FEW, limit) <= each < limit), max(1, limit)})
    taken = [math.log2(each) for each in known if each > 0]
    chosen: list[int] = []
    while len(chosen) < min(NEXT, len(options)):
        places = [*taken, *(math.log2(each) for each in chosen)]
        left = [each for each in options if each not in chosen]
        far = [min((abs(math.log2(each) - place) for place in places), default=math.inf) for each in left]
        best = left[far.index(max(far))]
        chosen.append(best)
    return sorted(chosen)


def what_next(engine: Engine, shape: Shape, batch: int, points: Sequence[OwnPoint]) -> str:
    """Return which points of an engine to measure next, as words and a command."""
    own = [_in_lane(point).clients for point in points if belongs(point, engine)]
    clients = [engine.lanes * each for each in next_clients(max(1, batch), own)]
    told = ", ".join(str(each) for each in clients[:-1])
    told = f"{told} and {clients[-1]}" if told else str(clients[0])
    lengths = f"--random-input-len {round(shape.prompt_tokens)} --random-output-len {round(shape.output_tokens)}"
    layout = engine.layout
    sizes = f"pipeline_parallel_size={layout.pipeline} data_parallel_size={layout.data}"
    split = f" --metadata tensor_parallel_size={engine.tensor_parallel} {sizes}" if engine.lanes > 1 else ""
    return (
        f"Measure one replica of {engine.name} with {told} clients next, and give the files to --points: "
        f"vllm bench serve --dataset-name random {lengths} --max-concurrency {clients[0]} "
        f"--num-prompts {10 * clients[0]} --ignore-eos --save-result{split}"
    )
