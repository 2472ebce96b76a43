"""What commands show: nothing numeric is cut on a narrow screen, and text of others is no markup."""

from __future__ import annotations

import datetime
import io
import re
import sys
import time
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from cluster.clock import ManualClock
from cluster.terminal import progress, receipt
from cluster.terminal.console import messages, screen
from cluster.terminal.progress import StepDisplay
from cluster.terminal.tables import add_columns, print_table
from penstock.client import Decision, DecisionList, Finished, Job, JobState, OperatingPoint, UsageLine, UsageReport
from penstock.models import ReplicaState, RequestClass
from penstock.values.decisions import Relief, Step
from penstock.values.jobs import JobTotals
from penstock.values.results import AttemptReceipt, Receipt, Usage
from penstock.values.status.pool import ClusterStatus, PoolStatus
from penstock.values.status.replica import ReplicaStatus
from router.commands import jobs, status, usage
from router.commands.decisions.command import show_decisions
from tests.support.waiting import until_sync

NASTY = "none of [bf16, fp8] in [/models/a] :fire: [red]"


def narrow(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, emoji=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= console.width for line in text.splitlines())
    assert "…" not in text
    return text


def words_of(text: str) -> set[str]:
    return set(re.sub(r"[^\w.,:+\->%\[\]/]", " ", text).split())


def unfolded(text: str) -> str:
    """Return it without what folding put in."""
    return re.sub(r"[\s│┃]+", "", text)


def made(number: int, alarms: tuple[str, ...] = ()) -> Decision:
    return Decision(
        number=number, at_ms=1_700_000_000_000, mode="advisory", leader="autoscaler-abcdef012345", fence=3,
        replicas_before=2, replicas=13, needed=15, relief=Relief.PREEMPT_BATCH, steps=(Step("demand", 2.1, NASTY),),
        reason="enough for 2.13 of 8 slots", counterfactuals=(), alarms=alarms, ready=12, starting=11, draining=0,
        running=3.0, waiting=123_456.0, kv_usage=0.5, age=1.0, cold_start=180.0, failed_starts=3, attainment=0.9,
        demands=(),
    )  # fmt: skip


def job(key: str) -> Job:
    return Job(
        job_id="demo.0123456789abcdef0123456789abcdef", model="demo", state=JobState.RUNNING,
        request_class=RequestClass.BATCH, idempotency_key=key, created_at=1.7e9, started_at=None, ended_at=None,
        due_at=1.7e9, items=50_000, succeeded_items=49_000, failed_items=999,
        usage=JobTotals(0, 123_456_789, 0, 0.0, 0.0), router_id="",
    )  # fmt: skip


def used(tenant: str) -> UsageLine:
    return UsageLine(
        day=datetime.date(2026, 11, 23), pool="demo", tenant=tenant, requests=1_234_567, prompt_tokens=9_876_543_210,
        output_tokens=1_234_567_890, cached_tokens=8_765_432_109, gpu_seconds=123_456.7891, cost=98_765.4321,
    )  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_that_is_too_wide_goes_on_below_itself() -> None:
    table = Table(title="wide")
    add_columns(table, "name", "a", "b", "c", "why", words=("why",))
    table.add_row("first", "1" * 12, "2" * 12, "3" * 12, "because of many words that are longer than a line")
    console = narrow(40)
    print_table(table, console)

    text = text_of(console)
    assert {"1" * 12, "2" * 12, "3" * 12} <= words_of(text)
    assert 1 == text.count("wide")
    assert text.count("first") > 1
    wide = narrow(200)
    print_table(table, wide)
    assert 1 == text_of(wide).count("first")


def test_a_number_that_is_wider_than_the_screen_is_folded() -> None:
    table = Table()
    add_columns(table, "name", "a")
    table.add_row("first", "123456789" * 3)
    console = narrow(24)
    print_table(table, console)
    assert set("123456789") <= set(text_of(console))
    assert 27 == sum(letter.isdigit() for letter in text_of(console))


def test_decisions_lose_nothing_on_a_narrow_screen() -> None:
    console = narrow()
    found = DecisionList((made(123_456), made(123_455)), OperatingPoint(), operating_point_set=False)
    show_decisions(found, console, everything=True)

    text = text_of(console)
    assert {"123456", "advisory", "15", "12+11", "preempt_batch"} <= words_of(text)
    assert "11-14 22:13:20" in text
    assert "2 > 13" in text
    assert "enoughfor2.13of8slots" in unfolded(text)


def test_jobs_lose_nothing_on_a_narrow_screen() -> None:
    console = narrow()
    print_table(jobs._table([job("nightly")]), console)
    text = text_of(console)
    assert {"demo.0123456789abcdef0123456789abcdef", "50,000", "49,999", "999", "123,456,789", "nightly"} <= words_of(
        text
    )
    assert re.search(r"2023-11-1\d \d\d:\d\d:\d\d", text)


def test_usage_loses_nothing_on_a_narrow_screen() -> None:
    console = narrow()
    print_table(usage._table(UsageReport((used("acme"), used("other")), truncated=False), "day"), console, keys=3)
    numbers = {"2026-11-23", "1,234,567", "9,876,543,210", "8,765,432,109", "123,456.7891", "98,765.4321"}
    totals = {"2,469,134", "19,753,086,420", "246,913.5782", "197,530.8642"}
    assert numbers | totals <= words_of(text_of(console))


def test_a_pool_loses_nothing_on_a_narrow_screen() -> None:
    fields: dict[str, Any] = dict.fromkeys(ReplicaStatus.__dataclass_fields__, 0)
    fields |= {
        "replica_id": "large-0123456789abcdef0123456789abcdef", "state": ReplicaState.READY, "running": 1234,
        "batch_limit": 5678, "kv_usage": 0.987, "output_tokens": 1_234_567_890, "heartbeat_age": 1234.5,
        "linked": False, "metrics_port": 45_678,
    }  # fmt: skip
    pool_fields: dict[str, Any] = dict.fromkeys(PoolStatus.__dataclass_fields__, 0)
    pool = PoolStatus(**pool_fields | {"name": "large", "replicas": (ReplicaStatus(**fields),)})
    console = narrow()
    print_table(status._pool_table(pool), console)
    assert {"1234", "5678", "1,234,567,890", "45678", "down"} <= words_of(text_of(console))
    assert "1234.5 s" in text_of(console)
    assert "99 %" in text_of(console)


def test_the_status_says_why_redis_and_replicas_are_not_reached() -> None:
    one: dict[str, Any] = dict.fromkeys(ReplicaStatus.__dataclass_fields__, 0)
    one |= {"state": ReplicaState.READY, "linked": False, "link_error": "[Errno 111] refused"}
    replicas = tuple(ReplicaStatus(**one | {"replica_id": name}) for name in ("a", "b"))
    pool: dict[str, Any] = dict.fromkeys(PoolStatus.__dataclass_fields__, 0)
    pool |= dict.fromkeys(("line", "quotas", "budgets", "router_ids"), ())
    pool |= {"name": "demo", "replicas": replicas, "unreachable_reason": "[redis] timed out"}
    console = narrow()
    status.show_status(ClusterStatus((PoolStatus(**pool),), "1", "r"), console)
    words = " ".join(text_of(console).split())
    assert "queue not reachable: [redis] timed out" in words
    assert "link down to a, b: [Errno 111] refused" in words


def test_only_words_are_folded() -> None:
    pool: dict[str, Any] = dict.fromkeys(PoolStatus.__dataclass_fields__, 0)
    tables = {
        jobs._table([]): {"key"},
        usage._table(UsageReport((), truncated=False), "day"): {"pool", "tenant"},
        status._pool_table(PoolStatus(**pool | {"name": "large", "replicas": ()})): {"replica"},
    }
    for table, words in tables.items():
        assert words == {column.header for column in table.columns if not column.no_wrap}


def finished(cost: float) -> Finished:
    attempt: dict[str, Any] = dict.fromkeys(AttemptReceipt.__dataclass_fields__, 0)
    attempt |= {"replica_id": NASTY, "queue_time": 12_345.6789, "prefill_time": 12_345.6, "decode_time": 12_345.6}
    whole: dict[str, Any] = dict.fromkeys(Receipt.__dataclass_fields__, 0)
    whole |= {"attempts": (AttemptReceipt(**attempt),), "time_to_first_token": None, "cost": cost}
    fields: dict[str, Any] = dict.fromkeys(Finished.__dataclass_fields__, ())
    tokens: dict[str, Any] = dict.fromkeys(Usage.__dataclass_fields__, 0)
    return Finished(**fields | {"receipt": Receipt(**whole), "usage": Usage(**tokens)})


def test_a_receipt_has_its_cost_where_there_is_one() -> None:
    console = narrow()
    receipt.print_receipt(finished(0.0012345), console)
    assert "cost 0.0012345" in text_of(console)
    assert {"12,345,678.9", "12345678.9"} & words_of(text_of(console))
    assert unfolded(NASTY) in unfolded(text_of(console))
    console = narrow()
    receipt.print_receipt(finished(0.0), console)
    assert "cost" not in text_of(console)


# --- text of others ---------------------------------------------------------------------------------------------------


def test_keys_tenants_and_alarms_are_shown_as_they_are() -> None:
    shown = narrow(200)
    print_table(jobs._table([job(NASTY)]), shown)
    print_table(usage._table(UsageReport((used(NASTY),), truncated=False), "day"), shown, keys=3)
    show_decisions(
        DecisionList((made(2, (NASTY,)), made(1)), OperatingPoint(), operating_point_set=False), shown, everything=True
    )
    # Job, tenant, alarm in the table and below it, and both steps.
    assert 5 == text_of(shown).count(NASTY)


def test_what_a_start_says_is_shown_as_it_is() -> None:
    console = narrow(200)
    display = StepDisplay(console)
    display(f"pool {NASTY}", f"starting {NASTY}")
    display(f"pool {NASTY}", "ready")
    assert 3 == text_of(console).count(NASTY)
    display(f"pool {NASTY}", f"starting {NASTY}")
    console.print(display._table())
    assert 7 == text_of(console).count(NASTY)


def test_what_is_written_after_the_last_step_goes_to_the_terminal_as_it_is() -> None:
    own = sys.stdout
    with StepDisplay(Console(file=io.StringIO(), force_terminal=True)) as display:
        display("ray", "starting")
        assert own is not sys.stdout
        display("ray", "ready")
        assert own is sys.stdout


def test_a_step_that_takes_long_is_told_again_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REMIND_S", 0.1)
    clock = ManualClock()
    monkeypatch.setattr(progress, "time", clock)
    console = narrow(200)

    def told(times: int) -> bool:
        clock.advance(0.1)
        return text_of(console).count("loading the weights") >= times

    with StepDisplay(console) as display:
        display("pool demo", "loading the weights")
        display("pool demo", "loading the weights")
        assert 1 == text_of(console).count("loading the weights")
        until_sync(lambda: told(3))
        display("pool demo", "warming up")
        assert 1 == text_of(console).count("warming up")
        display("pool demo", "ready")
    said = text_of(console)
    clock.advance(10.0)
    time.sleep(0.1)
    assert said == text_of(console)


def test_no_console_of_a_command_draws_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (screen(), messages()):
        console.print(":fire:")
    said = capsys.readouterr()
    assert (":fire:\n", ":fire:\n") == (said.out, said.err)
