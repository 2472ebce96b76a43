"""Fit of the prior's constants, and its quality on what the fit has not seen: other lengths, models, accelerators."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import NormalDist
from typing import Any

from loadtest.plan.engine.gauss_newton import Guess, fit
from loadtest.plan.engine.points import DEVIATION, Config, Known, Point, engine_of, errors_of, known, room_of
from loadtest.plan.engine.prior import Coefficients, FirstToken, FirstTokens, StepPrior
from loadtest.plan.engine.steady import Steady, itl_of, steady
from loadtest.plan.measured.correction import Room, correct
from loadtest.plan.option import CONFIDENCE, KV_FILL

LONGEST_TTFT_S, MOST_CLIENTS = 3.0, 256
"""Points beyond these bounds measure a queue, not steps."""
TRUST = 1.0
"""Weight of the prior in a fit of one engine."""
ALONE = 1e-6
"""Weight with which the points decide alone."""
_FIRST_WEIGHT = 0.3
"""Weight of a time to a first token, of that of a time per token: it scatters more."""
_ROBUST = 0.25
"""Logarithm of an error from which on it counts as an outlier. The same engine's times to a first token differ by as
much from run to run."""
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
    "routing": Guess(4.0, 0.6),
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
    errors: Mapping[Point, float] = field(default_factory=dict)
    """Those of single points, where they are told."""


def usable(points: Sequence[Point]) -> list[Point]:
    """Return the points that measure steps of a known engine, without a queue."""
    return [
        point
        for point in dict.fromkeys(points)
        if point.ttft_s < LONGEST_TTFT_S
        and point.clients <= MOST_CLIENTS
        and not point.layout
        and point.config.groups == 1
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
        start = engine_of(config, found)
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


def hold_out(points: Sequence[Point], of: Callable[[Point], str]) -> tuple[list[HeldOut], list[HeldOut]]:
    """Fit the prior's constants without one group of points at a time, and predict that group.

    Args:
        points: measured ones.
        of: names a point's group.

    Returns:
        The errors per token, and those to the first token.
    """
    use = usable(points)
    results: tuple[list[HeldOut], list[HeldOut]] = [], []
    for name in sorted({of(point) for point in use}):
        train = [point for point in use if of(point) != name]
        test = [point for point in use if of(point) == name]
        if not train:
            continue
        engines = _Engines(*fit_constants(train))
        dense = all(isinstance(each := known(point.config), Known) and each.shape.experts is None for point in test)
        for found, errors in zip(results, (engines.tpot_errors, engines.ttft_errors), strict=True):
            outside = errors(test)
            held = _mean(errors(train)), _mean(outside), statistics.median(outside)
            found.append(HeldOut(name, dense, len(test), *held, dict(zip(test, outside, strict=True))))
    return results


def hold_out_models(points: Sequence[Point]) -> tuple[list[HeldOut], list[HeldOut]]:
    """Leave one model out at a time."""
    return hold_out(points, lambda point: point.config.model)


def hold_out_gpus(points: Sequence[Point]) -> tuple[list[HeldOut], list[HeldOut]]:
    """Leave one accelerator out at a time."""
    return hold_out(points, lambda point: point.config.system)


def fit_constants(points: Sequence[Point]) -> tuple[Coefficients, FirstTokens]:
    """Fit the prior's constants to times per token and to first tokens together: only first tokens of long prompts say
    how long arithmetic takes where the batch decodes for most of the time.
    """
    use = usable(points)
    own = len(GUESSES)

    def errors(values: Sequence[float]) -> list[float]:
        engines = _Engines(_coefficients(values[:own]), _first_tokens(values[own:]))
        per_token = [math.log(engines.tpot_s(point) / point.tpot_s) for point in use]
        return per_token + [math.log(engines.ttft_s(point) / point.ttft_s) for point in use]

    weights = _weights(use)
    guesses = [*GUESSES.values(), *_FIRST * len(_CLASSES)]
    values = fit(errors, guesses, weights + [_FIRST_WEIGHT * each for each in weights], robust=_ROBUST)
    return _coefficients(values[:own]), _first_tokens(values[own:])


def _coefficients(values: Sequence[float]) -> Coefficients:
    return Coefficients(**dict(zip(GUESSES, values, strict=True)))


def _first_tokens(values: Sequence[float]) -> FirstTokens:
    size_of = len(_FIRST)
    parts = [values[at : at + size_of] for at in range(0, len(values), size_of)]
    return FirstTokens(**{name: FirstToken(*part) for name, part in zip(_CLASSES, parts, strict=True)})


class _Engines:
    """Predictions of one set of constants, with one prior per config."""

    def __init__(self, coefficients: Coefficients, first: FirstTokens) -> None:
        self._constants = coefficients, first
        self._known: dict[Config, tuple[StepPrior, Known]] = {}

    def of(self, config: Config) -> tuple[StepPrior, Known]:
        """Return the engine of a config, and what is known of it."""
        if config not in self._known:
            found = known(config)
            if isinstance(found, str):
                raise ValueError(found)
            self._known[config] = engine_of(config, found, *self._constants), found
        return self._known[config]

    def tpot_s(self, point: Point) -> float:
        engine, found = self.of(point.config)
        return itl_of(engine, point.clients, point.shape, found.gpu.step_limits[0])

    def ttft_s(self, point: Point) -> float:
        engine, found = self.of(point.config)
        tokens, sequences = found.gpu.step_limits
        room = 1_000_000_000
        return steady(
            engine, point.clients, point.shape, kv_tokens=room, step_tokens=tokens, max_sequences=sequences
        ).ttft_s

    def tpot_errors(self, points: Sequence[Point]) -> list[float]:
        return [self.tpot_s(point) / point.tpot_s - 1 for point in points]

    def ttft_errors(self, points: Sequence[Point]) -> list[float]:
        return [self.ttft_s(point) / point.ttft_s - 1 for point in points]


def _weights(points: Sequence[Point]) -> list[float]:
    """Let a model count as the square root of its points."""
    counts = Counter(point.config.model for point in points)
    weights = [counts[point.config.model] ** -0.5 for point in points]
    return [_SPARSE * len(weights) * each / sum(weights) for each in weights]


def three_points(points: Sequence[Point]) -> list[HeldOut]:
    """Leave each model out of the prior's fit, correct its engines by three points of one pair of lengths (the fewest,
    the middle and the most clients), and predict the other lengths. `in_sample` is the error before the correction.
    """
    use, results = usable(points), []
    for model in sorted({point.config.model for point in use}):
        fitted = _Engines(*fit_constants([point for point in use if point.config.model != model]))
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
            start, _ = fitted.of(config)
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
    odd: int
    """Further points, which contradict others."""
    odd_yes: int
    """Of these, those that were said to keep it and missed it."""

    @property
    def wrong_part(self) -> float:
        """Part of all points, also of those that contradict others, that were said to keep it and missed it."""
        return (self.wrong_yes + self.odd_yes) / max(1, self.points + self.odd)

    def as_json(self) -> dict[str, Any]:
        """Return the data that the benchmark writes."""
        return {**asdict(self), "wrong_part": self.wrong_part}


def verdicts(points: Sequence[Point], ttft_s: float, tpot_s: float) -> Verdicts:
    """Say of every point that can be scored whether it keeps an SLO, as a plan would: for an engine as slow as the
    confidence allows, and with a batch for whose longest requests the KV cache has room. Queues count.
    """
    counts: Counter[tuple[bool, str]] = Counter()
    for point in dict.fromkeys(points):
        found = known(point.config)
        if isinstance(found, str) or point.layout:
            continue
        said = _said(point, found)
        if said is None:
            continue
        yes = said.ttft_s <= ttft_s and said.itl_s <= tpot_s
        kept = point.ttft_s <= ttft_s and point.tpot_s <= tpot_s
        counts[point.odd, "all"] += 1
        counts[point.odd, "yes"] += yes and not kept
        counts[point.odd, "no"] += kept and not yes
    return Verdicts(
        ttft_s,
        tpot_s,
        points=counts[False, "all"],
        wrong_yes=counts[False, "yes"],
        wrong_no=counts[False, "no"],
        odd=counts[True, "all"],
        odd_yes=counts[True, "yes"],
    )


def _said(point: Point, found: Known) -> Steady | None:
    room = room_of(point, found)
    if not room.fits:
        return None
    z = NormalDist().inv_cdf(CONFIDENCE) * DEVIATION
    errors = errors_of(found, point.config.tensor_parallel, groups=point.config.groups)
    slow, first = math.exp(z * errors.steps), math.exp(z * errors.ttft)
    tokens, sequences = found.gpu.step_limits
    return steady(
        engine_of(point.config, found).times(slow, slow, slow, first / slow),
        point.clients,
        point.shape,
        kv_tokens=room.kv_tokens,
        step_tokens=tokens,
        max_sequences=min(
            sequences, point.batch_limit, max(1, int(KV_FILL * room.kv_tokens / point.shape.peak_tokens))
        ),
    )


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
