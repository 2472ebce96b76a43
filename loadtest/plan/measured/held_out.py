"""Fit of the prior's constants, and its quality on what the fit has not seen: other lengths, models, accelerators."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import NormalDist
from typing import Any

from loadtest.plan.engine.gauss_newton import Guess, fit
from loadtest.plan.engine.memory import size
from loadtest.plan.engine.points import DEVIATION, Config, Known, Point, errors_of, known
from loadtest.plan.engine.prior import Coefficients, FirstToken, FirstTokens, StepPrior, prior
from loadtest.plan.engine.steady import itl_of, steady
from loadtest.plan.measured.correction import Room, correct

LONGEST_TTFT_S, MOST_CLIENTS = 3.0, 256
"""Points beyond these bounds measure a queue, not steps."""
TRUST = 1.0
"""Weight of the prior in a fit of one engine."""
ALONE = 1e-6
"""Weight with which the points decide alone."""
_SPARSE = 0.3
"""Weight of a point. Its neighbours err as it does, so many points are less than as many proofs."""

GUESSES: dict[str, Guess] = {
    "weight_read": Guess(1.05, 0.3),
    "fp4_read": Guess(1.15, 0.15),
    "int4_read": Guess(1.2, 0.4),
    "mxfp4_read": Guess(1.1, 0.4),
    "kv_read": Guess(0.85, 0.4),
    "kv_blackwell": Guess(0.85, 0.2),
    "kv_latent": Guess(1.0, 0.3),
    "compute": Guess(1.48, 0.4),
    "compute_blackwell": Guess(1.48, 0.4),
    "experts_fp8": Guess(3.0, 0.6),
    "experts_mxfp4": Guess(3.0, 0.6),
    "experts_int4": Guess(3.0, 0.6),
    "experts_fp8_blackwell": Guess(3.0, 0.6),
    "experts_fp4_blackwell": Guess(2.0, 0.6),
    "experts_mxfp4_blackwell": Guess(1.5, 0.6),
    "narrow": Guess(100.0, 1.0),
    "rows": Guess(16.0, 0.7),
    "widening": Guess(60.0, 0.6),
    "gathering": Guess(0.93, 0.05),
    "layer_s": Guess(60e-6, 0.4),
    "layer_blackwell": Guess(1.0, 0.3),
    "moe_layer_s": Guess(40e-6, 0.6),
    "latent_layer_s": Guess(40e-6, 0.6),
    "split_layer_s": Guess(8e-6, 0.8),
    "all_reduce": Guess(1.6, 0.4),
    "attention": Guess(1.6, 0.3),
    "request_s": Guess(20e-6, 0.6),
    "sharpness": Guess(5.0, 0.5),
}
"""Constants that the points decide, and what one would say without them. The others are in `Coefficients` alone."""
_FIRST: tuple[Guess, ...] = (Guess(0.02, 0.7), Guess(2.0, 0.4), Guess(1.2, 0.3))
"""Overhead, steps and factor on the prompt's work, of each class of engines."""
_CLASSES = tuple(field.name for field in fields(FirstTokens))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative errors with and without a part of the points."""

    name: str
    dense: bool
    points: int
    in_sample: float
    """Mean |error| on the points of the fit."""
    held_out: float
    """Mean |error| on the points that were left out."""
    bias: float = 0.0
    """Median of the errors on the points that were left out."""


def usable(points: Sequence[Point]) -> list[Point]:
    """Return the points that measure steps of a known engine, without a queue."""
    return [
        point
        for point in dict.fromkeys(points)
        if point.ttft_s < LONGEST_TTFT_S
        and point.clients <= MOST_CLIENTS
        and not point.layout
        and not isinstance(known(point.config), str)
        and not point.odd
    ]


def leave_one_shape_out(points: Sequence[Point], trust: float = TRUST) -> list[HeldOut]:
    """Correct each config's prior without one pair of lengths at a time, and predict that pair. Where the prior saw
    such points, only a fit without the prior (`trust` = `ALONE`) predicts points that it has not seen.
    """
    groups: dict[Config, list[Point]] = defaultdict(list)
    for point in usable(points):
        groups[point.config].append(point)
    results = []
    for config, group in sorted(groups.items(), key=lambda item: str(item[0])):
        found = known(config)
        shapes = sorted({point.shape for point in group}, key=str)
        if isinstance(found, str) or len(shapes) < 2:
            continue
        start = prior(found.shape, found.gpu, config.tensor_parallel, found.precision)
        errors = []
        for shape in shapes:
            engine = _corrected(start, found, [point for point in group if point.shape != shape], trust)
            errors += [_error(engine, found, point) for point in group if point.shape == shape]
        whole = _corrected(start, found, group, trust)
        name = f"{config.model} {config.system} {config.precision} TP{config.tensor_parallel}"
        inside = _mean([_error(whole, found, point) for point in group])
        dense = found.shape.experts is None
        results.append(HeldOut(name, dense, len(group), inside, _mean(errors), statistics.median(errors)))
    return results


def _corrected(start: StepPrior, found: Known, points: Sequence[Point], trust: float) -> StepPrior:
    return correct(start, points, Room(1_000_000_000, *found.gpu.step_limits), trust).of(start)


def _error(engine: StepPrior, found: Known, point: Point) -> float:
    return itl_of(engine, point.clients, point.shape, found.gpu.step_limits[0]) / point.tpot_s - 1


def _mean(errors: Sequence[float]) -> float:
    return statistics.fmean(abs(each) for each in errors)


def hold_out(points: Sequence[Point], of: Callable[[Point], str], *, ttft: bool = False) -> list[HeldOut]:
    """Fit the prior's constants without one group of points at a time, and predict that group.

    Args:
        points: measured ones.
        of: names a point's group.
        ttft: whether to look at the time to the first token, with steps as they are.
    """
    use = usable(points)
    results = []
    for name in sorted({of(point) for point in use}):
        train = [point for point in use if of(point) != name]
        test = [point for point in use if of(point) == name]
        if not train:
            continue
        if ttft:
            first = fit_first_tokens(train)
            inside, outside = (_ttft_errors(part, first) for part in (train, test))
        else:
            fitted = fit_coefficients(train)
            inside, outside = (_tpot_errors(part, fitted) for part in (train, test))
        dense = all(isinstance(each := known(point.config), Known) and each.shape.experts is None for point in test)
        results.append(HeldOut(name, dense, len(test), _mean(inside), _mean(outside), statistics.median(outside)))
    return results


def hold_out_models(points: Sequence[Point]) -> list[HeldOut]:
    """Leave one model out at a time."""
    return hold_out(points, lambda point: point.config.model)


def hold_out_gpus(points: Sequence[Point]) -> list[HeldOut]:
    """Leave one accelerator out at a time."""
    return hold_out(points, lambda point: point.config.system)


def fit_coefficients(points: Sequence[Point]) -> Coefficients:
    """Fit the prior's coefficients."""
    use = usable(points)

    def errors(values: Sequence[float]) -> list[float]:
        made = _coefficients(values)
        engines = _Engines(
            lambda found, parallel: prior(found.shape, found.gpu, parallel, found.precision, coefficients=made)
        )
        return [math.log(engines.tpot_s(point) / point.tpot_s) for point in use]

    return _coefficients(fit(errors, list(GUESSES.values()), _weights(use)))


def _coefficients(values: Sequence[float]) -> Coefficients:
    return Coefficients(**dict(zip(GUESSES, values, strict=True)))


def fit_first_tokens(points: Sequence[Point]) -> FirstTokens:
    """Fit the constants of the time to a first token, with the coefficients as they are."""
    use = usable(points)

    def errors(values: Sequence[float]) -> list[float]:
        made = _first_tokens(values)
        engines = _Engines(
            lambda found, parallel: prior(found.shape, found.gpu, parallel, found.precision, first_tokens=made)
        )
        return [math.log(engines.ttft_s(point) / point.ttft_s) for point in use]

    return _first_tokens(fit(errors, list(_FIRST) * len(_CLASSES), _weights(use), robust=0.25))


def _first_tokens(values: Sequence[float]) -> FirstTokens:
    size_of = len(_FIRST)
    parts = [values[at : at + size_of] for at in range(0, len(values), size_of)]
    return FirstTokens(**{name: FirstToken(*part) for name, part in zip(_CLASSES, parts, strict=True)})


class _Engines:
    """Predictions of one set of constants, with one prior per config."""

    def __init__(self, made: Callable[[Known, int], StepPrior]) -> None:
        self._made = made
        self._known: dict[Config, tuple[StepPrior, Known]] = {}

    def _of(self, point: Point) -> tuple[StepPrior, Known]:
        config = point.config
        if config not in self._known:
            found = known(config)
            if isinstance(found, str):
                raise ValueError(found)
            self._known[config] = self._made(found, config.tensor_parallel), found
        return self._known[config]

    def tpot_s(self, point: Point) -> float:
        engine, found = self._of(point)
        return itl_of(engine, point.clients, point.shape, found.gpu.step_limits[0])

    def ttft_s(self, point: Point) -> float:
        engine, found = self._of(point)
        tokens, sequences = found.gpu.step_limits
        room = 1_000_000_000
        return steady(
            engine, point.clients, point.shape, kv_tokens=room, step_tokens=tokens, max_sequences=sequences
        ).ttft_s


def _weights(points: Sequence[Point]) -> list[float]:
    """Let a model count as the square root of its points."""
    counts = Counter(point.config.model for point in points)
    weights = [counts[point.config.model] ** -0.5 for point in points]
    return [_SPARSE * len(weights) * each / sum(weights) for each in weights]


def _tpot_errors(points: Sequence[Point], coefficients: Coefficients) -> list[float]:
    engines = _Engines(
        lambda found, parallel: prior(found.shape, found.gpu, parallel, found.precision, coefficients=coefficients)
    )
    return [engines.tpot_s(point) / point.tpot_s - 1 for point in points]


def _ttft_errors(points: Sequence[Point], first: FirstTokens) -> list[float]:
    engines = _Engines(
        lambda found, parallel: prior(found.shape, found.gpu, parallel, found.precision, first_tokens=first)
    )
    return [engines.ttft_s(point) / point.ttft_s - 1 for point in points]


def three_points(points: Sequence[Point]) -> list[HeldOut]:
    """Leave each model out of the prior's fit, correct its engines by three points of one pair of lengths (the fewest,
    the middle and the most clients), and predict the other lengths. `in_sample` is the error before the correction.
    """
    use, results = usable(points), []
    for model in sorted({point.config.model for point in use}):
        fitted = fit_coefficients([point for point in use if point.config.model != model])
        before, after, dense = [], [], True
        for config in sorted({point.config for point in use if point.config.model == model}, key=str):
            group = [point for point in use if point.config == config]
            shapes = Counter(point.shape for point in group)
            shape = max(shapes, key=lambda each: (shapes[each], -each.prompt_tokens, -each.output_tokens))
            own = sorted((point for point in group if point.shape == shape), key=lambda point: point.clients)
            rest, found = [point for point in group if point.shape != shape], known(config)
            if len(own) < 3 or not rest or isinstance(found, str):
                continue
            dense = found.shape.experts is None
            start = prior(found.shape, found.gpu, config.tensor_parallel, found.precision, coefficients=fitted)
            engine = _corrected(start, found, [own[0], own[len(own) // 2], own[-1]], TRUST)
            before += [_error(start, found, point) for point in rest]
            after += [_error(engine, found, point) for point in rest]
        if after:
            results.append(HeldOut(model, dense, len(after), _mean(before), _mean(after), statistics.median(after)))
    return results


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What would have been said of an SLO on points, at a confidence."""

    ttft_s: float
    tpot_s: float
    points: int
    wrong_yes: int
    """Points that were said to keep it and missed it."""
    wrong_no: int

    def as_json(self) -> dict[str, Any]:
        """Return the data that the benchmark writes."""
        return asdict(self)


def verdicts(points: Sequence[Point], ttft_s: float, tpot_s: float, confidence: float = 0.9) -> Verdicts:
    """Say of every point that can be scored whether it keeps an SLO, as a plan would: for an engine as slow as the
    confidence allows. Queues count, so points with one are among them.
    """
    z, count, yes, no = NormalDist().inv_cdf(confidence) * DEVIATION, 0, 0, 0
    for point in dict.fromkeys(points):
        found = known(point.config)
        if isinstance(found, str) or point.layout:
            continue
        parallel = point.config.tensor_parallel
        room = size(found.shape, found.gpu, parallel, found.precision, length=point.shape.peak_tokens)
        if not room.fits:
            continue
        errors = errors_of(found, parallel)
        slow, first = math.exp(z * errors.steps), math.exp(z * errors.ttft)
        engine = prior(found.shape, found.gpu, parallel, found.precision).times(slow, slow, slow, first / slow)
        tokens, sequences = found.gpu.step_limits
        told = steady(
            engine,
            point.clients,
            point.shape,
            kv_tokens=room.kv_tokens,
            step_tokens=tokens,
            max_sequences=sequences,
        )
        said = told.ttft_s <= ttft_s and told.itl_s <= tpot_s
        kept = point.ttft_s <= ttft_s and point.tpot_s <= tpot_s
        count, yes, no = count + 1, yes + (said and not kept), no + (kept and not said)
    return Verdicts(ttft_s, tpot_s, count, yes, no)


def as_json(results: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return the data that the benchmark writes."""
    return [
        {
            "name": r.name,
            "dense": r.dense,
            "points": r.points,
            "in_sample": r.in_sample,
            "held_out": r.held_out,
            "bias": r.bias,
        }
        for r in results
    ]
