"""Quality of a fit to measured points on points that it has not seen: other lengths, or another model."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from cluster.control.least_squares import solve_with_floors
from cluster.control.step_model import Experts, StepModel
from loadtest.plan.engine.points import Config, Known, Point, known, predict
from loadtest.plan.engine.prior import Coefficients, StepPrior, prior
from loadtest.plan.engine.steady import itl_of

LONGEST_TTFT_S, MOST_CLIENTS = 3.0, 256
"""Points beyond these bounds measure a queue, not steps."""
TRUST = 0.02
"""Weight of the prior's value of each coefficient, in points."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative error on the points that were left out."""

    name: str
    dense: bool
    points: int
    in_sample: float
    """Mean |error| on the points of the fit."""
    held_out: float
    """Mean |error| on the points that were left out."""


def usable(points: Sequence[Point]) -> list[Point]:
    """Return the points that measure steps of a known engine, without a queue."""
    return [
        point
        for point in dict.fromkeys(points)
        if point.ttft_s < LONGEST_TTFT_S
        and point.clients <= MOST_CLIENTS
        and not point.layout
        and not isinstance(known(point.config), str)
    ]


ALONE = 1e-9
"""Weight with which the points decide alone."""


def leave_one_shape_out(points: Sequence[Point], trust: float = TRUST) -> list[HeldOut]:
    """Fit each config's step model without one pair of lengths at a time, and predict that pair. Where the prior saw
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
        tokens = found.gpu.step_limits[0]
        errors = []
        for shape in shapes:
            engine = fit_points(start, [point for point in group if point.shape != shape], tokens, trust)
            errors += [_error(engine, point, tokens) for point in group if point.shape == shape]
        whole = fit_points(start, group, tokens, trust)
        name = f"{config.model} {config.system} {config.precision} TP{config.tensor_parallel}"
        inside = statistics.fmean(_error(whole, point, tokens) for point in group)
        results.append(HeldOut(name, found.shape.experts is None, len(group), inside, statistics.fmean(errors)))
    return results


def _error(engine: StepPrior, point: Point, step_tokens: int) -> float:
    return abs(itl_of(engine, point.clients, point.shape, step_tokens) / point.tpot_s - 1)


def fit_points(start: StepPrior, points: Sequence[Point], step_tokens: int, trust: float = TRUST) -> StepPrior:
    """Fit a step model to steady batches by least squares of relative errors. The prior holds coefficients about which
    the points say nothing.
    """
    s = start.steps
    start_values = [s.a, s.b, s.g, s.m][: 4 if s.experts else 3]
    units = [_unit(s, place) for place in range(len(start_values))]
    rows, right = [], []
    for point in points:
        known_part = itl_of(StepPrior(StepModel(0, 0, 0, 0, s.experts), start.request_s), point.clients, point.shape, 1)
        # In units of the prior, every coefficient is near 1.
        columns = [
            value * itl_of(StepPrior(unit, 0.0), point.clients, point.shape, step_tokens) / point.tpot_s
            for value, unit in zip(start_values, units, strict=True)
        ]
        rows.append(columns)
        right.append(1 - known_part / point.tpot_s)
    solved = _least_squares(rows, right, [1.0] * len(start_values), trust)
    values = [value * factor for value, factor in zip(start_values, solved, strict=True)]
    return StepPrior(_model(values, s.experts), start.request_s)


def _unit(model: StepModel, place: int) -> StepModel:
    return _model([1.0 if place == each else 0.0 for each in range(4)], model.experts)


def _model(values: Sequence[float], experts: Experts | None) -> StepModel:
    a, b, g, m = (*values, 0.0)[:4]
    return StepModel(a, b, g, m, experts)


def _least_squares(
    rows: Sequence[Sequence[float]], right: Sequence[float], start: Sequence[float], trust: float
) -> list[float]:
    size = len(start)
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    vector = [sum(row[i] * y for row, y in zip(rows, right, strict=True)) for i in range(size)]
    for i in range(size):
        gram[i][i] += trust
        vector[i] += trust * start[i]
    return solve_with_floors(gram, vector, [0.0] * size) or list(start)


def hold_out_models(points: Sequence[Point]) -> list[HeldOut]:
    """Fit the prior's coefficients without one model at a time, and predict that model."""
    use = usable(points)
    models = sorted({point.config.model for point in use})
    results = []
    for model in models:
        train = [point for point in use if point.config.model != model]
        test = [point for point in use if point.config.model == model]
        if not train:
            continue
        fitted = fit_coefficients(train)
        found = known(test[0].config)
        dense = isinstance(found, Known) and found.shape.experts is None
        inside, outside = (statistics.fmean(abs(each) for each in _errors(part, fitted)) for part in (train, test))
        results.append(HeldOut(model, dense, len(test), inside, outside))
    return results


def fit_coefficients(points: Sequence[Point]) -> Coefficients:
    """Fit the prior's coefficients. The prediction is linear in them."""
    names = [field.name for field in fields(Coefficients)]
    start = [float(getattr(Coefficients(), name)) for name in names]
    rows = []
    for point in points:
        ones = [
            Coefficients(**{n: (v if n == name else 0.0) for n, v in zip(names, start, strict=True)}) for name in names
        ]
        rows.append([_tpot(point, each) / point.tpot_s for each in ones])
    solved = _least_squares(rows, [1.0] * len(rows), [1.0] * len(names), TRUST)
    return Coefficients(**{n: v * factor for n, v, factor in zip(names, start, solved, strict=True)})


def _tpot(point: Point, coefficients: Coefficients) -> float:
    found = known(point.config)
    got = None if isinstance(found, str) else predict(point, found, coefficients)
    return got.itl_s if got else point.tpot_s


def _errors(points: Sequence[Point], coefficients: Coefficients) -> list[float]:
    return [_tpot(point, coefficients) / point.tpot_s - 1 for point in points]


def as_json(results: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return the data that the benchmark writes."""
    return [
        {"name": r.name, "dense": r.dense, "points": r.points, "in_sample": r.in_sample, "held_out": r.held_out}
        for r in results
    ]
