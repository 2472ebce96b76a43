"""The picture of `penstock top`, without a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest

from penstock.client import Budget, DrainReason, OperatingPoint, Relief, ReplicaState, RequestClass
from router.commands.top.lines import Look, width_of
from router.commands.top.live import aged
from router.commands.top.looked import Looked
from router.commands.top.picture import picture
from router.commands.top.view import Page, View
from tests.router.commands.top.status import decision, looked, pool, quota_of, replica, waits

BUSY = looked(
    pool(
        "demo",
        replica("demo-r0"),
        replica("demo-r1", state=ReplicaState.DRAINING, drain_reason=DrainReason.STOPPED, draining_for=12.0),
        replica("demo-r2", itl_p95=0.061),
        wanted_replicas=4,
        starting=2,
        last_decision=decision(alarms=("replicas fail to start", "the budget ends at 4 replicas")),
        relief=Relief.SHED,
        start_failure="no GPU is free",
    ),
    pool("other", replica("other-r0")),
)


def shown(found: Looked, view: View | None = None, width: int | None = None, height: int | None = None) -> str:
    lines = picture(found, view or View(), width, height)
    return "\n".join("".join(part.text for part in each).rstrip() for each in lines)


def row(text: str, name: str) -> str:
    return next(each for each in text.splitlines() if each[2:].startswith(name))


@pytest.mark.parametrize(
    ("width", "height", "page", "inside", "help_"),
    [*product((20, 80, 200), (3, 10, 24, 60), Page, (False, True), (False,)), (80, 24, Page.REPLICAS, False, True)],
)
def test_a_picture_fills_the_screen_and_no_line_is_too_wide(
    width: int, height: int, page: Page, inside: bool, help_: bool
) -> None:
    many = looked(
        *(pool(f"pool-{number}", *(replica(f"r{each}") for each in range(100))) for number in range(30)),
        decisions=tuple(decision(number) for number in range(200, 100, -1)),
    )
    made = picture(many, View(page=page, inside=inside, help=help_, chosen="r50"), width, height)
    assert height == len(made)
    assert all(width >= width_of(each) for each in made)


def test_eighty_columns_show_the_core_of_each_replica() -> None:
    text = shown(BUSY, width=80, height=24)
    assert "  REPLICA  STATE       RUN/LIMIT    KV  STEP ms  ITL95/SLO ms  TOK/S     UP" in text
    assert "> demo-r0  ready           12/64  50 %     31.2       41.0/50    100  1h02m" in text


def test_a_pool_shows_load_replicas_rate_and_relief() -> None:
    # All three replicas are there, but one drains: two of four take work.
    assert row(shown(BUSY), "demo ")[2:].split() == [
        "demo", "120", "24", "2/4", "2", "1", "300", "0", "-", "15.00", "shed",
    ]  # fmt: skip


def test_slo_decision_alarm_and_failed_starts_are_in_words() -> None:
    text = shown(BUSY)
    assert "interactive: - of 99 %; first token 2 s, ITL 50 ms; in all 99.0 % of 1,200" in text
    assert "decision 142 at 22:13:20 (active): 3 > 4 replicas; replicas fail to start" in text
    assert "alarm: the budget ends at 4 replicas" in text
    assert "the last start failed: no GPU is free" in text
    assert "2 replicas more start: wanted, and not there yet; a start takes 1m34s" in text


def test_states_are_words_so_that_no_colour_is_needed() -> None:
    text = shown(BUSY)
    assert "drains 12s" in row(text, "demo-r1")
    assert "61.0/50!" in row(text, "demo-r2")
    dead = replica(state=ReplicaState.DRAINING, drain_reason=DrainReason.ENGINE_LOST, draining_for=3.0)
    assert "dead 3.0s" in shown(looked(pool("demo", dead)))
    assert "silent 3.0s" in shown(looked(pool("demo", replica(heartbeat_age=3.0))))
    assert "no link" in shown(looked(pool("demo", replica(linked=False))))
    assert "overload" in shown(looked(pool("demo", replica(overloaded=True))))
    assert "queue not reachable" in shown(looked(pool("demo", reachable=False)))


def test_why_a_queue_and_replicas_are_not_reached_is_told() -> None:
    cut = [replica(name, linked=False, link_error="[Errno 111] refused") for name in ("demo-r0", "demo-r1")]
    found = looked(pool("demo", *cut, replica("demo-r2"), reachable=False, unreachable_reason="[redis] timed out"))
    text = shown(found, width=80, height=24)
    assert "  queue not reachable: [redis] timed out" in text.splitlines()
    assert "  no link to demo-r0, demo-r1: [Errno 111] refused" in text.splitlines()
    inside = shown(found, View(chosen="demo-r1", inside=True))
    assert "ready, this router has no link to it: [Errno 111] refused" in inside
    unknown = shown(looked(pool("demo", replica(linked=False))), View(inside=True))
    assert "has no link to it\n" in unknown


def test_an_older_router_leaves_gaps_and_no_nonsense() -> None:
    old = replica(step_time=0.0, itl_p95=0.0, gpus=0, tensor_parallel_size=0, model="", cost_per_hour=0.0)
    text = shown(looked(pool("demo", old, operating_point=OperatingPoint(), classes=(), autoscaling="unknown")))
    assert "first token" not in text
    assert "autoscaling" not in text
    assert " - " in row(text, "demo-r0")


def test_replicas_are_sorted_as_chosen() -> None:
    def order(view: View) -> list[str]:
        return [each[2:9] for each in shown(BUSY, view).splitlines() if each[2:].startswith("demo-r")]

    assert ["demo-r0", "demo-r1", "demo-r2"] == order(View())
    assert ["demo-r2", "demo-r1", "demo-r0"] == order(View(turned=True))
    assert ["demo-r2", "demo-r0", "demo-r1"] == order(View(sort="itl"))
    assert "demo-r1" == order(View(sort="state"))[0]


def test_a_replica_is_looked_into() -> None:
    text = shown(BUSY, View(chosen="demo-r1", inside=True), 80, 24)
    assert "replica demo-r1" in text
    assert "draining for 12s: its host stops it" in text
    assert "nvidia-h100, 2 GPUs, tensor parallel size 2" in text
    assert "100 tokens/s, 1,000 since its start" in text
    assert "0.4s ago" in text


def test_the_other_pool_is_shown_when_it_is_chosen() -> None:
    text = shown(BUSY, View(pool="other"))
    assert "> other" in text
    assert "other-r0" in text
    assert "demo-r0" not in text


def test_decisions_have_a_page_and_their_steps() -> None:
    found = looked(pool("demo"), decisions=(decision(7), decision(6, alarms=("no data",))))
    text = shown(found, View(page=Page.DECISIONS))
    assert ["7", "22:13:20", "3", ">", "4"] == row(text, "     7")[2:].split()[:5]
    assert "no data" in row(text, "     6")
    steps = shown(found, View(page=Page.DECISIONS, chosen="7", inside=True))
    assert "  demand             3.60  12 requests a second" in steps


def test_a_pool_without_an_autoscaler_says_so() -> None:
    assert "no autoscaler has looked after this pool" in shown(looked(pool("demo")), View(page=Page.DECISIONS))
    assert "autoscaling off, no decision yet" in shown(looked(pool("demo", autoscaling="off")))


def test_a_router_that_went_away_is_said_and_the_last_picture_stays() -> None:
    found = looked(pool("demo", replica()), trouble="nothing listens there", silent_s=12.0)
    lines = picture(found, View(), 80, 24)
    text = shown(found, width=80, height=24)
    assert "no answer for 12s" in text.splitlines()[0]
    assert "nothing listens there; this is the last picture" == text.splitlines()[1]
    assert "demo-r0" in text
    assert Look.BAD in {part.look for part in lines[0]}


def test_a_router_that_hangs_is_said_before_its_call_fails() -> None:
    found = looked(pool("demo"))
    assert ("", 2.5) == (aged(found, 2.5, 1.0).trouble, aged(found, 2.5, 1.0).silent_s)
    assert "the router does not answer" == aged(found, 3.5, 1.0).trouble
    assert "" == aged(found, 11.0, 10.0).trouble


def test_a_pause_is_said() -> None:
    assert "paused" in shown(BUSY, View(paused=True)).splitlines()[0]


def test_the_chosen_row_is_in_sight_where_there_are_more_than_fit() -> None:
    many = looked(pool("demo", *(replica(f"r{number:03}") for number in range(300))))
    text = shown(many, View(chosen="r250"), 80, 24)
    assert "> r250" in text
    assert "above, " in text


def test_no_pools_are_said() -> None:
    assert "no pools" in shown(looked(), width=80, height=24)


LINE = (waits("acme"), waits("other", RequestClass.BATCH, waiting=0), waits("evil\x1b[2J"))


def test_the_line_has_a_page_with_quotas() -> None:
    found = looked(pool("demo", line=LINE, quotas=(quota_of("acme"),)))
    text = shown(found, View(page=Page.LINE))
    assert "interactive  acme         7    3.2s    4       2         1,200  tokens per minute used up for 12s" in text
    assert ["batch", "other", "0", "4"] == row(text, "batch")[2:].split()
    assert "\x1b" not in text
    assert "nobody waits" in shown(looked(pool("demo")), View(page=Page.LINE))


def test_the_head_of_the_line_is_above_the_replicas_where_there_is_room() -> None:
    many = pool("demo", replica(), line=tuple(waits(f"tenant-{number}") for number in range(9)))
    high = shown(looked(many), width=80, height=30)
    assert "tenant-3" in high
    assert "tenant-4" not in high
    assert "5 more in line" in high
    assert "tenant-0" not in shown(looked(many), width=80, height=12)


RENEWS = datetime(2026, 2, 1, tzinfo=UTC)
SPENT = (
    Budget("demo", "acme", "cost_per_day", 10.0, 2.0, RENEWS),
    Budget("demo", "acme", "cost_per_month", 200.0, 180.0, RENEWS, warned=True),
)


def test_the_line_tells_of_a_budget_that_is_nearly_used_where_no_quota_holds_the_tenant_up() -> None:
    text = shown(looked(pool("demo", line=LINE, budgets=SPENT)), View(page=Page.LINE))
    assert "90 % of the month's budget" in text
    text = shown(looked(pool("demo", line=LINE, quotas=(quota_of("acme"),), budgets=SPENT)), View(page=Page.LINE))
    assert "budget" not in text


def test_a_tenant_is_looked_into_over_all_pools() -> None:
    found = looked(
        pool("demo", line=LINE, quotas=(quota_of("acme"),), budgets=SPENT),
        pool("large", line=(waits("acme", RequestClass.BATCH),)),
    )
    text = shown(found, View(page=Page.LINE, chosen="INTERACTIVE/acme", inside=True))
    assert "demo, interactive: 7 wait (the oldest for 3.2s, weight 2), 4 run" in text
    assert "large, batch: 7 wait" in text
    assert "demo, quota: 60,000 tokens per minute, -20 left" in text
    assert "demo, quota: 8 at a time, 5 open" in text
    assert "demo, budget of the month: 180 of 200 (90 %), renews 2026-02-01 00:00 UTC" in text
    assert "other" not in text
