"""Alerts on burn rates: Prometheus itself evaluates the rules on series that are as long as the windows."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.alerts.burn_rates import ALERTS, BURN_RATES, threshold
from tests.k8s.kubelet.prometheus import require

DAYS = 24 * 60
HISTORY = 3 * DAYS
"""Minutes before a fault begins, as long as the longest window."""
FAST, MEDIUM, SLOW = (alert.name for alert in ALERTS)
Series = dict[str, str]


def target(attainment: str, router: str = "r", pool: str = "demo", each: str = "interactive") -> Series:
    """Return the attainment that a router exports."""
    return {f'penstock_router_slo_attainment{{pool="{pool}",class="{each}",instance="{router}"}}': attainment}


def choices(met: str, missed: str, router: str = "r", pool: str = "demo", each: str = "interactive") -> Series:
    """Return a router's counters, in promtool's notation."""
    labels = f'pool="{pool}",class="{each}",instance="{router}"'
    # What is missed has several outcomes; here half of it came late, and half was not served.
    return {
        f'penstock_router_slo_choices_total{{{labels},outcome="met"}}': met,
        f'penstock_router_slo_choices_total{{{labels},outcome="ttft"}}': missed,
        f'penstock_router_slo_choices_total{{{labels},outcome="not_served"}}': missed,
        f'penstock_router_slo_choices_total{{{labels},outcome="itl"}}': "0x20000",
    }


def steady(met: float, missed: float, minutes: int = HISTORY + DAYS) -> tuple[str, str]:
    """Return counters that grow by so much a minute."""
    return f"0+{met}x{minutes}", f"0+{missed / 2}x{minutes}"


def then(met: float, missed: float, later_met: float, later_missed: float, minutes: int = DAYS) -> tuple[str, str]:
    """Return counters whose growth changes after HISTORY."""
    halves = (missed / 2, later_missed / 2)
    return (
        f"0+{met}x{HISTORY} {met * HISTORY + later_met}+{later_met}x{minutes}",
        f"0+{halves[0]}x{HISTORY} {halves[0] * HISTORY + halves[1]}+{halves[1]}x{minutes}",
    )


def check(
    folder: Path, series: Series, expected: Mapping[int, set[str]], firing: tuple[str, str] = ("demo", "interactive")
) -> None:
    """Compare the alerts that fire at minutes with those that are expected, all for one pool and class.

    They fire at once where their expression has a value, so only that is evaluated: three days of rules take minutes.
    """
    cases: list[dict[str, Any]] = [
        {
            "expr": f"count by (pool, class) ({alert.query})",
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{pool="{firing[0]}",class="{firing[1]}"}}', "value": 1}]
            if alert.name in names
            else [],
        }
        for minute, names in expected.items()
        for alert in ALERTS
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": cases,
    }
    (folder / "tests.yaml").write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    done = subprocess.run(
        [require("promtool"), "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr


pytestmark = pytest.mark.slow


def test_an_outage_fires_the_fast_alert_first_and_the_slow_one_last(tmp_path: Path) -> None:
    """All choices miss: 14.4 % of an hour's are reached after 8.6 minutes, 6 % of six hours' after 21.6, 1 % of three
    days' after 43.2. Minutes after the fault's end the fast one is silent, though the hour still has the misses.
    """
    hour = 60
    met = f"0+60x{HISTORY} {60 * HISTORY}x{hour} {60 * HISTORY + 60}+60x{2 * hour}"
    missed = f"0x{HISTORY} 30+30x{hour - 1} {30 * hour}x{2 * hour}"
    expected = {
        HISTORY: set(),
        HISTORY + 8: set(),
        HISTORY + 10: {FAST},
        HISTORY + 20: {FAST},
        HISTORY + 23: {FAST, MEDIUM},
        HISTORY + 42: {FAST, MEDIUM},
        HISTORY + 45: {FAST, MEDIUM, SLOW},
        HISTORY + hour + 7: {MEDIUM, SLOW},
        HISTORY + hour + 40: {SLOW},
    }
    check(tmp_path, target(f"0.99x{HISTORY + DAYS}") | choices(met, missed), expected)


@pytest.mark.parametrize("attainment", [0.9, 0.95, 0.99, 0.999])
def test_exactly_the_budget_fires_nothing_and_a_tenth_more_fires_the_slow_one(
    tmp_path: Path, attainment: float
) -> None:
    budget = round(6000 * (1 - attainment))
    kept = target(f"{attainment}x{HISTORY + DAYS}")
    ends = {HISTORY: set[str](), HISTORY + DAYS: set[str]()}
    check(tmp_path, kept | choices(*steady(6000 - budget, budget)), ends)
    more = budget + max(budget // 10, 1)
    check(tmp_path, kept | choices(*steady(6000 - more, more)), {minute: {SLOW} for minute in ends})


def test_a_leak_of_seven_times_the_budget_never_fires_the_fast_alert(tmp_path: Path) -> None:
    series = target(f"0.99x{HISTORY + DAYS}") | choices(*then(100, 0, 93, 7))
    expected = {HISTORY + 60: set[str](), HISTORY + 290: set[str](), HISTORY + 11 * 60: {MEDIUM, SLOW}}
    check(tmp_path, series, expected)


def test_without_traffic_nothing_fires(tmp_path: Path) -> None:
    """Nor after the last choices of a day, which all missed, have left the windows."""
    flat = target(f"0.99x{HISTORY + DAYS}")
    check(tmp_path, flat | choices("0x6000", "0x6000"), {HISTORY: set()})
    check(
        tmp_path,
        flat | choices("0x6000", "0+1x30 30x6000"),
        {25: {FAST, MEDIUM, SLOW}, 40: {MEDIUM, SLOW}, 65: {SLOW}, 500: set()},
    )
    check(tmp_path, flat, {HISTORY: set()})


def test_a_class_without_an_slo_fires_nothing(tmp_path: Path) -> None:
    """Nor does the one that had an SLO until the operating point took it away: its series of the target ends."""
    lost = steady(0, 60)
    mine = target(f"0.99x{HISTORY + DAYS}") | choices(*steady(60, 0))
    check(tmp_path, mine | choices(*lost, each="batch"), {HISTORY: set()})
    taken = target(f"0.99x{HISTORY} stale", each="batch") | choices(*lost, each="batch")
    check(tmp_path, mine | taken, {HISTORY: {FAST, MEDIUM, SLOW}, HISTORY + 10: set()}, ("demo", "batch"))


def test_counters_that_begin_again_are_no_misses(tmp_path: Path) -> None:
    """A router restarts every six hours, and the other one never does."""
    lives = 16
    again = " ".join(["0+60x360"] * lives), " ".join(["0+0.15x360"] * lives)
    both = choices(*again, router="r1") | choices(*steady(60, 0.3), router="r2")
    kept = target(f"0.99x{lives * 361}", router="r1") | target(f"0.99x{lives * 361}", router="r2")
    check(tmp_path, both | kept, {minute: set() for minute in (362, 363, 400, HISTORY + 3, 5000)})
    # With misses they still add up.
    worse = choices(" ".join(["0+40x360"] * lives), " ".join(["0+10x360"] * lives), router="r1")
    check(tmp_path, worse | kept, {725: {FAST, MEDIUM, SLOW}, 5000: {FAST, MEDIUM, SLOW}})


def test_routers_count_together(tmp_path: Path) -> None:
    """One of ten requests goes to a router whose choices all miss: that is 10 % of all, and one alert."""
    series = choices(*then(90, 0, 90, 0), router="r1") | choices(*then(10, 0, 0, 10), router="r2")
    for router in ("r1", "r2"):
        series |= target(f"0.99x{HISTORY + DAYS}", router=router)
    check(tmp_path, series, {HISTORY + 120: set(), HISTORY + 300: {MEDIUM}, HISTORY + DAYS: {MEDIUM, SLOW}})


def test_each_pool_and_class_has_its_own_budget(tmp_path: Path) -> None:
    good, bad = then(60, 0, 60, 0), then(60, 0, 0, 60)
    series: Series = {}
    for pool in ("demo", "other"):
        for each in ("interactive", "standard"):
            worse = (pool, each) == ("demo", "standard")
            series |= target(f"0.99x{HISTORY + DAYS}", pool=pool, each=each)
            series |= choices(*(bad if worse else good), pool=pool, each=each)
    check(tmp_path, series, {HISTORY + 60: {FAST, MEDIUM, SLOW}}, ("demo", "standard"))


def test_a_low_target_still_fires_at_an_outage(tmp_path: Path) -> None:
    """With a budget of 10 %, a total outage burns at ten times the rate only. Half of the choices is no outage."""
    kept = target(f"0.9x{HISTORY + DAYS}")
    check(tmp_path, kept | choices(*then(60, 0, 0, 60)), {HISTORY + 45: set(), HISTORY + 58: {FAST}})
    check(tmp_path, kept | choices(*then(60, 0, 30, 30)), {HISTORY + 120: set()})


def test_a_changed_operating_point_counts_without_new_rules(tmp_path: Path) -> None:
    """A fifth misses: much for 99 %, and little for 95 %. While routers differ, the stricter one counts."""
    series = choices(*then(60, 0, 48, 12)) | target(f"0.99x{HISTORY + 120} 0.95x{DAYS}")
    series |= target(f"0.99x{HISTORY + 122} 0.95x{DAYS}", router="r2")
    changed = HISTORY + 121
    check(tmp_path, series, {changed - 2: {FAST, MEDIUM}, changed + 1: {FAST, MEDIUM}, changed + 4: set()})


def test_thresholds_are_those_of_the_workbook() -> None:
    assert [0, 0, 0] == [alert.pending_minutes for alert in ALERTS]
    assert [(14.4, "1h", "5m"), (6.0, "6h", "30m"), (1.0, "3d", "6h")] == [
        (rate.factor, rate.long, rate.short) for rate in BURN_RATES
    ]
    assert [0.144, 0.06, 0.01] == [round(threshold(rate, 0.99), 9) for rate in BURN_RATES]
    assert [0.9, 0.9, 0.5] == [threshold(rate, 0.5) for rate in BURN_RATES]
