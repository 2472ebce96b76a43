"""`penstock decisions --headroom` and `--compare`: the recorded load under other rules."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cluster.autoscaler.own_settings import DIAL, ScalerSettings
from cluster.control.settings import ControlMode
from cluster.errors import SettingsError
from cluster.forecast.load_record import SLOT_S, LoadRecord
from cluster.hindsight.foreseen import foreseen
from cluster.hindsight.history import History, history_of
from cluster.hindsight.policy import ReplayedPool
from cluster.hindsight.review import LEAST_S, Comparison, Expected, compare, expected
from cluster.plural import counted
from cluster.settings import PoolSettings
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from penstock.values.decisions import DecisionList
from penstock.values.slo import OperatingPoint

if TYPE_CHECKING:
    from penstock.client import Client, Decision, RecordedLoad

_PAGE = 500
_TIMEOUT_S = 30.0


def review(options: argparse.Namespace, client: Client, hours: float) -> None:
    """Print what the steps of the dial, or what ran and the policy, would cost and attain with the last hours of load.

    Raises:
        SettingsError: there is too little load on record, too little is asked for, or the settings of the pool can't
            be read.
    """
    if hours * 3600 < LEAST_S:
        raise SettingsError(f"--hours: a review needs at least {LEAST_S / 3600:g}, got {hours:g}")
    found, decisions = _read(client, options.pool, hours)
    point = found.operating_point
    name, pool = _pool(client, options.pool)
    own = ScalerSettings.of(pool)
    history = history_of(decisions, point, own.rules.load.rate_window_s)
    if history.seconds < LEAST_S:
        minutes = counted(int(history.seconds / 60), "minute")
        raise SettingsError(
            f"{minutes} of load are on record, and a review needs {LEAST_S / 60:.0f}. It "
            'needs an autoscaler with mode "advisory" or "active", and a step model, which replicas measure under load'
        )
    replayed = replayed_pool(own, history, found.load_record)
    if options.compare:
        compared = compare(history, point, replayed)
        if options.json:
            print_json(_compared_fields(compared, point))
        else:
            show_comparison(compared, history, replayed, point, screen())
        return
    steps: dict[str, Expected] = {}
    for step in DIAL:
        scale = pool.autoscale.model_copy(update={"headroom": step, "fill": None})
        rules = ScalerSettings.of(pool.model_copy(update={"autoscale": scale})).rules
        steps[step] = expected(history, point, dataclasses.replace(replayed, rules=rules))
    if options.json:
        print_json(steps)
    else:
        present = pool.autoscale.headroom if pool.autoscale.fill is None else ""
        show_steps(steps, history, replayed, point, screen(), present=present)
        if pool.autoscale.fill is not None:
            screen().print(f"pools.{name}.autoscale.fill = {pool.autoscale.fill:g} stands in place of a step")


def replayed_pool(own: ScalerSettings, history: History, load: RecordedLoad | None) -> ReplayedPool:
    """Return a pool as a replay follows it: with its schedule, its forecast and its standbys as they are set now.

    Args:
        own: settings of the pool.
        history: the load.
        load: what the autoscaler has on record of the load of the last weeks.
    """
    pool = ReplayedPool(own.bounds, own.rules, own.schedule, own.standby)
    if own.forecast is not ControlMode.ACTIVE:
        # Without effect on decisions.
        return pool
    if load is None:
        return dataclasses.replace(pool, left_out=("the forecast: no record of the load is stored",))
    record = LoadRecord()
    for place, value in enumerate(load.loads):
        if value is not None:
            record.put(round(load.first_ms / 1000 / SLOT_S) + place, value)
    known = foreseen(record, history.ticks, history.cold_start_s)
    if known is None:
        return dataclasses.replace(
            pool, left_out=("the forecast: the record of the load has no hours before these, or none of these",)
        )
    return dataclasses.replace(pool, foreseen=known)


def _read(client: Client, pool: str, hours: float) -> tuple[DecisionList, list[Decision]]:
    """Return the newest page, and the decisions of the last hours, oldest first."""
    found: dict[int, Decision] = {}
    first = DecisionList((), OperatingPoint(), False)
    for page in itertools.count():
        part = client.decisions(pool, limit=_PAGE, skip=page * _PAGE, load_record=not page, timeout=_TIMEOUT_S)
        first = part if not page else first
        least = min(found, default=math.inf)
        older = [each for each in part.decisions if each.number < least]
        found |= {each.number: each for each in part.decisions}
        newest = max((each.at_ms for each in found.values()), default=0)
        # A router of an earlier release knows no pages, and answers with the newest decisions each time. One that can't
        # read a decision leaves it out, so a short page need not be the last.
        if not older or older[-1].at_ms < newest - hours * 3.6e6:
            break
    told = [found[number] for number in sorted(found)]
    inside = [each.at_ms >= newest - hours * 3.6e6 for each in told]
    # The one before them too: what came is known between two, so without it the hours would not be whole.
    return first, [each for place, each in enumerate(told) if any(inside[place : place + 2])]


def _pool(client: Client, wanted: str) -> tuple[str, PoolSettings]:
    entries = [
        each for each in client.registry("pool", name=wanted, timeout=_TIMEOUT_S) if not each.value.get("removed")
    ]
    if len(entries) != 1:
        raise SettingsError(f"--pool must name one of {', '.join(each.name for each in entries) or 'no pools'}")
    return entries[0].name, PoolSettings.model_validate(entries[0].value["settings"])


# --- printing ---------------------------------------------------------------------------------------------------------

_WORDS = {"less": "spend less", "balanced": "balanced", "more": "more headroom"}


def show_steps(
    steps: dict[str, Expected],
    history: History,
    pool: ReplayedPool,
    point: OperatingPoint,
    console: Console,
    *,
    present: str,
) -> None:
    """Print a table of the dial's steps."""
    _print_source(history, pool, console)
    table = Table()
    names = ("headroom", "means", "attainment", "90 % range", "replica-hours\na day", "reversals\na day", "cost a day")
    add_columns(table, *names, left=("headroom", "means"))
    for name, each in steps.items():
        table.add_row(f"{name} *" if name == present else name, _WORDS[name], *_cells(each, history, point))
    print_table(table, console)
    console.print("* as set; change it with `penstock apply`" if present else "", highlight=False)
    _print_left_out(next(iter(steps.values())).left_out, console)


def show_comparison(
    compared: Comparison, history: History, pool: ReplayedPool, point: OperatingPoint, console: Console
) -> None:
    """Print what ran beside what the policy would have done."""
    _print_source(history, pool, console)
    table = Table()
    names = ("", "attainment", "90 % range", "replica-hours\na day", "reversals\na day", "cost a day")
    add_columns(table, *names, left=("",))
    table.add_row("what ran", *_cells(compared.ran, history, point))
    table.add_row("this autoscaler", *_cells(compared.ours, history, point))
    print_table(table, console)
    console.print(f"this autoscaler: {_saved_words(compared, point)}", highlight=False)
    if compared.measured is not None:
        console.print(
            f"routers measured {compared.measured:.2%} with what ran; the model says {compared.ran.attainment:.2%}",
            highlight=False,
        )
    _print_left_out(compared.ours.left_out, console)


def _saved_words(compared: Comparison, point: OperatingPoint) -> str:
    saved = compared.hours_saved_a_day
    text = hours_words(saved)
    if point.price_per_gpu_hour and text != ALIKE:
        money = abs(compared.money_saved_a_day(point.price_per_gpu_hour))
        text += f", {money:,.2f} a day at {point.price_per_gpu_hour:g} a GPU hour"
    points = 100 * (compared.ours.attainment - compared.ran.attainment)
    return f"{text}; {points:+.2f} points of attainment"


ALIKE = "as many replica-hours as what ran"


def hours_words(saved: float) -> str:
    """Return replica-hours saved a day in words. What would be shown as 0.0 is no saving."""
    if abs(saved) < 0.05:
        return ALIKE
    return f"{abs(saved):.1f} replica-hours a day {'less' if saved > 0 else 'more'} than what ran"


def _print_source(history: History, pool: ReplayedPool, console: Console) -> None:
    left_out = f", {history.left_out_s / 3600:.1f} h without figures left out" if history.left_out_s >= 360 else ""
    console.print(
        f"load of {history.seconds / 3600:.1f} h{left_out}; a start takes {history.cold_start_s:.0f} s. Replayed "
        f"{_followed(pool)}in a model without single requests and roll-outs: compare lines, not with other figures",
        highlight=False,
    )


def _followed(pool: ReplayedPool) -> str:
    """Tell what the pool has on that the replay follows."""
    standby, parts = pool.standby, []
    if pool.schedule:
        parts.append("the schedule as it is set now")
    if pool.foreseen is not None:
        parts.append("the forecast as it was then")
    if standby.most:
        parts.append(
            f"up to {counted(standby.most, 'standby', 'standbys')}, which wake within {standby.wake_s:g} s and count "
            f"as {standby.price:g} of a replica"
        )
    return f"with {'; '.join(parts)}; " if parts else ""


def _print_left_out(left_out: Sequence[str], console: Console) -> None:
    for each in left_out:
        console.print(f"not replayed: {each}", highlight=False)


def _cells(each: Expected, history: History, point: OperatingPoint) -> list[str]:
    sure = "too short" if each.low is None or each.high is None else f"{each.low:.2%} to {each.high:.2%}"
    price = point.price_per_gpu_hour * history.gpus_per_replica
    cost = f"{each.hours_a_day * price:,.2f}" if price else ""
    return [f"{each.attainment:.2%}", sure, f"{each.hours_a_day:.1f}", f"{each.reversals_a_day:.0f}", cost]


def _compared_fields(compared: Comparison, point: OperatingPoint) -> dict[str, object]:
    return {
        **dataclasses.asdict(compared),
        "hours_saved_a_day": compared.hours_saved_a_day,
        "money_saved_a_day": compared.money_saved_a_day(point.price_per_gpu_hour),
    }
