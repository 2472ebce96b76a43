"""Errors of Penstock's planner and of another one on the same points."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.table import Table
from rich.text import Text

from cluster.terminal.tables import add_columns
from loadtest.benchmarks.rivals.asking import Answer
from loadtest.plan.engine.points import Point, known, predict
from loadtest.plan.measured.held_out import HeldOut

RIVAL = "AIConfigurator"
OURS, AS_NAMED, LEFT_OUT = "Penstock", "Penstock, asked as the file names it", "Penstock, model left out of the prior"


@dataclass(frozen=True, slots=True)
class Asked:
    """A point, and what another planner said of it."""

    named: Point
    """As the file names it, which the other planner was asked about."""
    run: Point
    """The same with the settings of its run."""
    answer: Answer


@dataclass(frozen=True, slots=True)
class PlannerErrors:
    """Relative errors of one planner on some points. Negative is predicted too fast."""

    who: str
    tpot: Sequence[float]
    ttft: Sequence[float]

    def as_json(self) -> dict[str, Any]:
        """Return the data that the benchmark writes."""
        figures = {
            f"{kind}_{name}": figure(errors)
            for kind, errors in (("tpot", self.tpot), ("ttft", self.ttft))
            for name, figure in (("median", median), ("p90", p90), ("bias", statistics.median))
        }
        return {"who": self.who, "points": len(self.tpot), **figures}


def median(errors: Sequence[float]) -> float:
    """Return the median size of errors."""
    return statistics.median(abs(each) for each in errors)


def p90(errors: Sequence[float]) -> float:
    """Return the size that nine tenths of errors are within."""
    return sorted(abs(each) for each in errors)[int(0.9 * (len(errors) - 1))]


@dataclass(frozen=True, slots=True)
class Beside:
    """Both planners on the points that both answer."""

    whole: Sequence[PlannerErrors]
    """On all of them."""
    fit: Sequence[PlannerErrors]
    """On those without queues and odd engines, where Penstock also answers without having seen the model."""
    groups: Mapping[str, Sequence[PlannerErrors]]
    """The latter by model, accelerator and precision."""
    unanswered: Mapping[str, int]
    """Points that the other planner does not answer, by the reason."""

    def as_json(self) -> dict[str, Any]:
        """Return the data that the benchmark writes."""
        return {
            "all": [each.as_json() for each in self.whole],
            "fit": [each.as_json() for each in self.fit],
            "groups": {name: [each.as_json() for each in found] for name, found in self.groups.items()},
            "unanswered": dict(self.unanswered),
        }


_Pair: TypeAlias = tuple[float, float]
"""Errors of one point: per token, and to the first token."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A point that both answer, and the errors of each."""

    point: Point
    by: Mapping[str, _Pair]


def compare(asked: Iterable[Asked], models: Iterable[HeldOut], first: Iterable[HeldOut]) -> Beside:
    """Compare on the points that both answer.

    Args:
        asked: all points.
        models: errors per token on models left out of the prior.
        first: the same of those to the first token.
    """
    unanswered: Counter[str] = Counter()
    tpot, ttft = ({p: e for held in found for p, e in held.errors.items()} for found in (models, first))
    both: list[_Told] = []
    for each in asked:
        ours, named, answer = _said(each.run), _said(each.named), each.answer
        if answer.why:
            unanswered[answer.why] += 1
        elif ours is not None and named is not None:
            theirs = answer.tpot_s / each.named.tpot_s - 1, answer.ttft_s / each.named.ttft_s - 1
            unseen = {LEFT_OUT: (tpot[each.run], ttft[each.run])} if each.run in tpot and each.run in ttft else {}
            both.append(_Told(each.run, {OURS: ours, AS_NAMED: named, RIVAL: theirs, **unseen}))
    inside = [each for each in both if LEFT_OUT in each.by]
    groups: dict[str, list[_Told]] = {}
    for told in inside:
        config = told.point.config
        groups.setdefault(f"{config.model} {config.system} {config.precision}", []).append(told)
    return Beside(
        _side_by_side(both, OURS, AS_NAMED, RIVAL),
        _side_by_side(inside, OURS, LEFT_OUT, RIVAL),
        {name: _side_by_side(found, LEFT_OUT, RIVAL) for name, found in sorted(groups.items())},
        unanswered,
    )


def _said(point: Point) -> _Pair | None:
    """Return the errors of Penstock's prior; None for a point that it does not answer."""
    found = known(point.config)
    said = None if point.layout or isinstance(found, str) else predict(point, found)
    return None if said is None else (said.itl_s / point.tpot_s - 1, said.ttft_s / point.ttft_s - 1)


def _side_by_side(told: Sequence[_Told], *who: str) -> list[PlannerErrors]:
    pairs = {name: [each.by[name] for each in told] for name in who} if told else {}
    return [PlannerErrors(name, [t for t, _ in errors], [f for _, f in errors]) for name, errors in pairs.items()]


def tables_of(found: Beside) -> list[Table]:
    """Return tables of the errors, of those on all points first."""
    made = []
    for title, errors in (
        ("Points that both planners answer", found.whole),
        ("Of these, without queues and odd engines", found.fit),
    ):
        table = Table(title=title, title_justify="left")
        heads = ("planner", "points", "TPOT error", "90 %", "bias", "TTFT error", "90 %", "bias")
        add_columns(table, *heads, words=("planner",))
        for each in errors:
            table.add_row(Text(each.who), str(len(each.tpot)), *_cells(each.tpot), *_cells(each.ttft))
        made.append(table)
    table = Table(title=f"The same by engine: model left out of Penstock's prior, {RIVAL}", title_justify="left")
    engine = "model, accelerator, precision"
    add_columns(table, engine, "points", "TPOT error", RIVAL, "TTFT error", RIVAL, words=(engine,))
    for name, (ours, theirs) in found.groups.items():
        pairs = ((ours.tpot, theirs.tpot), (ours.ttft, theirs.ttft))
        cells = [f"{median(errors):.1%}" for pair in pairs for errors in pair]
        table.add_row(Text(name), str(len(ours.tpot)), *cells)
    return [*made, table]


def _cells(errors: Sequence[float]) -> tuple[str, str, str]:
    return f"{median(errors):.1%}", f"{p90(errors):.1%}", f"{statistics.median(errors):+.1%}"
