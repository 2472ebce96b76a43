"""How full replicas are planned to be."""

from __future__ import annotations

import dataclasses

import pytest

from cluster.control.replica_rules import SlowRules, SlowState
from tests.cluster.control.groups import BOUNDS, POINT, decide, group, interactive, reason


def test_the_fill_follows_the_attainment() -> None:
    state = SlowState(fill_at=9_000.0)
    bad = decide(POINT, BOUNDS, group(4, interactive(2.0), attainment=0.97), state).state
    good = decide(POINT, BOUNDS, group(4, interactive(2.0), attainment=0.999), state).state
    starting = decide(POINT, BOUNDS, group(4, interactive(2.0), attainment=0.9, starting=1), state).state

    assert pytest.approx(0.70) == bad.fill
    assert pytest.approx(0.77) == good.fill
    assert starting.fill is None


def test_misses_for_want_of_replicas_say_nothing_of_the_fill() -> None:
    """They stay in the attainment when the replicas have come."""

    def later(seconds: float, state: SlowState, **more: object) -> SlowState:
        seen = dataclasses.replace(group(8, interactive(5.0), attainment=0.8), at=10_000.0 + seconds)
        return decide(POINT, BOUNDS, dataclasses.replace(seen, **more), state).state  # type: ignore[arg-type]

    short = later(0.0, SlowState(fill_at=9_000.0), ready=4, starting=4)
    assert later(590.0, short).fill is None
    assert pytest.approx(0.70) == later(600.0, short).fill
    # One more of eleven on its way is chance, and so is a lack of work for those that are there.
    for chance in ({"ready": 10, "starting": 1}, {"ready": 6, "starting": 4}):
        assert pytest.approx(0.70) == later(300.0, later(0.0, SlowState(fill_at=10_000.0), **chance)).fill


@pytest.mark.parametrize("fill", [0.4, 0.97])
def test_a_fill_beyond_where_the_attainment_leads_is_kept(fill: float) -> None:
    rules = SlowRules(fill=fill)
    # Of the size that the setting is meant for.
    load = interactive(rules.fill_replicas * fill)
    decision = decide(POINT, BOUNDS, group(4, load), SlowState(), rules)
    bad = decide(POINT, BOUNDS, group(4, load, attainment=0.97), SlowState(fill_at=9_000.0), rules).state
    good = decide(POINT, BOUNDS, group(4, load, attainment=0.999), SlowState(fill_at=9_000.0), rules).state

    assert f"{fill:.0%} full" in reason(decision, "demand")
    assert 4 == decision.needed
    assert pytest.approx(max(0.4, fill - 0.05)) == bad.fill
    assert pytest.approx(min(0.97, fill + 0.02)) == good.fill


def test_what_is_free_grows_with_the_root_of_the_load() -> None:
    def planned(fill: float, work: float) -> float:
        rules = SlowRules(fill=fill, fill_floor=0.01)
        decision = decide(POINT, BOUNDS, group(4, interactive(work)), SlowState(), rules)
        return next(step.value for step in decision.steps if step.name == "demand")

    for fill in (0.5, 0.7):
        usual = 4 * fill
        assert pytest.approx(4.0) == planned(fill, usual)
        assert pytest.approx(4 * usual + 2 * (4.0 - usual)) == planned(fill, 4 * usual)
    # Who wants more room gets it at any size.
    for work in (1.0, 4.0, 16.0, 64.0):
        wanted = [planned(fill, work) for fill in (0.95, 0.7, 0.5, 0.35, 0.2, 0.1)]
        assert sorted(set(wanted)) == wanted
