"""`penstock decisions --headroom` and `--compare`, from recorded decisions in the store."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.autoscaler.decision_record import DecisionRecord, DemandRecord
from cluster.autoscaler.store import Commit
from cluster.cli.main import main
from cluster.control.settings import ControlMode
from cluster.forecast.pool_forecast import PoolForecast
from cluster.hindsight.history import history_of
from penstock.client import AsyncClient, Client, Decision, DecisionList, OperatingPoint
from penstock.models import RequestClass
from penstock.values.steps import Relief
from router.commands.decisions.review import _read, hours_words
from tests.cluster.hindsight.loads import TICK_S, changing
from tests.cluster.hindsight.test_history import recorded, swing
from tests.support.stack import Stack, running_stack, sim_pool

POOL: dict[str, Any] = {
    **sim_pool(),
    "slo": {"interactive": {"ttft_p99_s": 4.0}},
    "price_per_gpu_hour": 2.0,
    "autoscale": {"mode": "advisory", "max_replicas": 40, "headroom": "less"},
}
RAN = 16
BEGAN_MS = 1_700_000_100_000
WINDOW_S = 60.0


async def record(stack: Stack, hours: float) -> None:
    """Store the decisions of hours in which a fixed number ran."""
    store = stack.control("demo")
    fence = (await store.lead("a", 1000.0)).fence
    work = requests = 0.0
    for tick in changing(lambda at: 1.5 + math.sin(2 * math.pi * at / 7200.0), hours * 3600.0, seed=5):
        part = 1.0 - math.exp(-TICK_S / WINDOW_S)
        work += part * (tick.work / TICK_S - work)
        requests += part * (tick.requests / TICK_S - requests)
        made = DecisionRecord(
            at_ms=BEGAN_MS + round(tick.at * 1000), leader="a", fence=fence, mode=ControlMode.ADVISORY,
            before=RAN, replicas=9, needed=9, relief=Relief.NONE, reason="", steps=(), counterfactuals=(), alarms=(),
            ready=RAN, starting=0, draining=0, running=12.0 * requests, waiting=0.0, kv_usage=0.5, age_s=0.1,
            cold_start_s=120.0, failed_starts=0, attainment=0.98,
            demands=(DemandRecord(RequestClass.INTERACTIVE, requests, 100.0, 0.0, 100.0, 0, 0.0),),
            work=work, gpus_per_replica=2,
        )  # fmt: skip
        await store.commit("a", fence, Commit(b"{}", 9, Relief.NONE, 0, made.to_bytes(), 10_000))


class Pages:
    """Decisions as a router answers with them that knows pages or none, without those that it can't read."""

    def __init__(self, decisions: Sequence[Decision], *, pages: bool, unread: int) -> None:
        self.newest_first, self.pages, self.unread = decisions[::-1], pages, unread
        self.calls = 0

    def decisions(self, _: str, limit: int, skip: int, load_record: bool, timeout: float) -> DecisionList:
        self.calls += 1
        # The record is as long as several pages, and the same for all.
        assert (self.calls == 1) == load_record
        assert self.calls <= 10, "it does not end"
        first = skip if self.pages else 0
        part = self.newest_first[first : first + limit]
        return DecisionList(tuple(each for each in part if each.number != self.unread), OperatingPoint(), False)


@pytest.mark.parametrize(
    ("pages", "unread", "least", "calls"),
    [
        pytest.param(False, 0, 401, 2, id="a router of an earlier release knows no pages"),
        pytest.param(True, 700, 1, 3, id="a decision can't be read"),
        pytest.param(True, 0, 1, 3, id="all pages are whole"),
    ],
)
def test_pages_are_read_until_one_brings_nothing_older(pages: bool, unread: int, least: int, calls: int) -> None:
    router = Pages(recorded(swing(6.0)[:900], [RAN] * 900), pages=pages, unread=unread)
    _, found = _read(cast("Client", router), "demo", 24.0)
    assert [number for number in range(least, 901) if number != unread] == [each.number for each in found]
    assert calls == router.calls


def test_the_hours_that_are_asked_for_are_whole() -> None:
    """Ticks come a little late, so none lies just an hour before the newest. A review needs an hour."""
    ticks = [dataclasses.replace(tick, at=tick.at * 1.003) for tick in swing(2.0)]
    router = Pages(recorded(ticks, [RAN] * len(ticks)), pages=True, unread=0)
    _, found = _read(cast("Client", router), "demo", 1.0)
    assert 3600.0 <= history_of(found, OperatingPoint(), WINDOW_S).seconds < 3600.0 + 2 * TICK_S


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--hours", "24"], "--hours: needs --headroom or --compare"),
        (["--headroom", "--limit", "20"], "--limit: can't go with --headroom, which lists no decisions"),
        (["--compare", "--all"], "--all: can't go with --compare, which lists no decisions"),
        (["--all", "--json"], "--all: can't go with --json, which leaves none out"),
    ],
)
def test_a_flag_without_effect_is_refused(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["decisions", *flags])
    assert f"penstock: {told}\n" == capsys.readouterr().err


async def run(stack: Stack, *flags: str) -> int:
    target = f"127.0.0.1:{stack.routers[0].port}"
    return await asyncio.to_thread(main, ["decisions", *flags, "--target", target])


async def test_the_steps_of_the_dial_and_what_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_stack(tmp_path, replicas=0, pools={"demo": POOL}) as stack:
        await record(stack, 3.0)

        assert 0 == await run(stack, "--headroom", "--json")
        steps = json.loads(capsys.readouterr().out)
        assert ["less", "balanced", "more"] == list(steps)
        hours = [each["hours_a_day"] for each in steps.values()]
        assert sorted(set(hours)) == hours

        assert 0 == await run(stack, "--compare", "--json")
        compared = json.loads(capsys.readouterr().out)
        assert pytest.approx(RAN * 24.0) == compared["ran"]["hours_a_day"]
        # Ours is what the pool's own step does.
        assert steps["less"] == compared["ours"]
        saved = RAN * 24.0 - hours[0]
        assert pytest.approx(saved) == compared["hours_saved_a_day"]
        assert pytest.approx(2 * 2.0 * saved) == compared["money_saved_a_day"]
        assert pytest.approx(0.98) == compared["measured"]

        # Fewer hours of load than there are.
        assert 0 == await run(stack, "--compare", "--json", "--hours", "2")
        assert compared["hours"] > json.loads(capsys.readouterr().out)["hours"]

        assert 0 == await run(stack, "--headroom")
        text = capsys.readouterr().out
        assert "less *" in text
        words = " ".join(text.split())
        assert "without single requests and roll-outs" in words
        assert "not replayed: the forecast: no record of the load is stored" in words
        assert steps["less"]["left_out"] == compared["ours"]["left_out"]
        assert f"{hours[0]:.1f}" in text
        assert 0 == await run(stack, "--compare")
        assert f"{saved:.1f} replica-hours a day less than what ran" in " ".join(capsys.readouterr().out.split())


async def test_a_review_follows_what_the_pool_has_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    due = {"start": "00:00", "end": "00:00", "min_replicas": 30}
    scale = POOL["autoscale"] | {"schedule": [due], "standby": 2, "standby_price": 0.5, "wake_s": 15.0}
    async with running_stack(tmp_path, replicas=0, pools={"demo": POOL | {"autoscale": scale}}) as stack:
        await record(stack, 1.5)
        store = stack.control("demo")
        forecast = PoolForecast()
        first = BEGAN_MS // 300_000 - 288
        for slot in [*range(first, first + 100), *range(first + 110, first + 300)]:
            forecast.record.put(slot, 0.5)
        await store.store_forecast("a", (await store.lead("a", 1000.0)).fence, forecast.to_bytes())

        async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
            assert (await client.decisions("demo")).load_record is None
            found = (await client.decisions("demo", load_record=True)).load_record
        assert found is not None
        assert (first * 300_000, 300.0) == (found.first_ms, found.slot)
        assert (*[0.5] * 100, *[None] * 10, *[0.5] * 190) == found.loads

        assert 0 == await run(stack, "--compare", "--json")
        ours = json.loads(capsys.readouterr().out)["ours"]
        assert [] == ours["left_out"]
        # The schedule lasts all day.
        assert 30 * 24.0 <= ours["hours_a_day"]
        assert 0 == await run(stack, "--compare")
        assert (
            "with the schedule as it is set now; the forecast as it was then; up to 2 standbys, which wake within 15 s "
            "and count as 0.5 of a replica; in a model"
        ) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (0.0, "as many replica-hours as what ran"),
        (-0.04, "as many replica-hours as what ran"),
        (4.2, "4.2 replica-hours a day less than what ran"),
        (-4.2, "4.2 replica-hours a day more than what ran"),
    ],
)
def test_a_saving_that_would_be_shown_as_none_is_none(saved: float, said: str) -> None:
    assert said == hours_words(saved)


async def test_too_little_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_stack(tmp_path, replicas=0, pools={"demo": POOL}) as stack:
        assert 2 == await run(stack, "--compare", "--hours", "0.5")
        assert "--hours: a review needs at least 1, got 0.5" in capsys.readouterr().err
        assert 2 == await run(stack, "--compare")
        assert "0 minutes of load are on record, and a review needs 60" in " ".join(capsys.readouterr().err.split())
        await record(stack, 0.5)
        assert 2 == await run(stack, "--headroom")
        assert "29 minutes" in capsys.readouterr().err


async def test_load_that_is_nearly_enough_is_not_rounded_to_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that 60 minutes are on record, and 60 are needed."""
    async with running_stack(tmp_path, replicas=0, pools={"demo": POOL}) as stack:
        await record(stack, 0.995)
        assert 2 == await run(stack, "--compare")
        assert "59 minutes of load are on record, and a review needs 60" in " ".join(capsys.readouterr().err.split())
