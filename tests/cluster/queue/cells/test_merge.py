"""A pool's state from the states of its cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.models import Windows
from cluster.queue.cells.ids import EntryCells
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.merge import (
    merge_costs,
    merge_known,
    merge_lines,
    merge_marks,
    merge_replicas,
    merge_usage,
    merge_views,
    page,
    read_page,
)
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import CostLine, GpuTime, Grant, HourUse, Mail, Mark, Marks, Order, UsageLine
from cluster.queue.heartbeats import PoolView, ReplicaRecord, RouterBeatReply, RouterReport
from cluster.queue.line import Line, PlaceInLine, QuotaUse, SlotHolder, TenantLine
from penstock.models import ReplicaState, RequestClass

STANDARD, BATCH = RequestClass.STANDARD, RequestClass.BATCH


def record(name: str, *, sequences: int = 4, age_ms: int = 0) -> ReplicaRecord:
    windows = Windows(sequences=sequences, kv_tokens=10, prefill_tokens=10)
    return ReplicaRecord(name, b"", ReplicaState.READY, windows, 0, 0, 0, age_ms)


def reply(run_id: str = "run", **changes: object) -> RouterBeatReply:
    fields: dict[str, object] = {
        "mail": Mail(),
        "replicas": (),
        "registry_version": 1,
        "waiting": (0, 0, 0),
        "running": 0,
        "routers": (),
        "positions": {},
        "run_id": run_id,
        **changes,
    }
    return RouterBeatReply(**fields)  # type: ignore[arg-type]


def view(**changes: object) -> PoolView:
    fields: dict[str, object] = {
        "time_ms": 5,
        "run_id": "run",
        "replicas": (),
        "reports": (),
        "waiting": (1, 2, 3),
        "running": 4,
        "longest_wait_ms": (10, 20, 30),
        "point": b"first",
        "routers": ("A",),
        **changes,
    }
    return PoolView(**fields)  # type: ignore[arg-type]


def test_a_replica_that_moves_counts_once_where_it_takes_work() -> None:
    leaving, joined = record("a", sequences=0), record("a", age_ms=500)
    for parts in ([[leaving], [joined, record("b")]], [[joined, record("b")], [leaving]]):
        assert [joined, record("b")] == list(merge_replicas(parts))
    old, new = record("a", age_ms=900), record("a", age_ms=100)
    assert (new,) == merge_replicas([[old], [new]])


def test_an_autoscaler_counts_each_routers_report_once_and_the_work_of_all_cells() -> None:
    reports = [RouterReport("A", 900, b"old"), RouterReport("A", 100, b"new"), RouterReport("B", 300, b"b")]
    merged = merge_views(
        [
            view(reports=(reports[0],), replicas=(record("a"),)),
            view(
                reports=(reports[1], reports[2]), replicas=(record("b"),), waiting=(0, 0, 9), point=b"second", time_ms=9
            ),
        ]
    )
    assert (RouterReport("A", 100, b"new"), RouterReport("B", 300, b"b")) == merged.reports
    assert ((1, 2, 12), 8, (10, 20, 30)) == (merged.waiting, merged.running, merged.longest_wait_ms)
    assert (["a", "b"], b"first", 9) == ([each.replica_id for each in merged.replicas], merged.point, merged.time_ms)


def test_a_cell_that_is_away_counts_as_it_was_less_what_has_gone_elsewhere() -> None:
    moved, stays = replace(record("a"), sequences=3), replace(record("b", age_ms=100), sequences=2)
    before = view(time_ms=1000, replicas=(moved, stays), reports=(RouterReport("A", 0, b"old"),), running=5)
    now = view(time_ms=8000, replicas=(record("a"),), running=1, routers=("B",))
    found = merge_known({0: now}, {0: now, 1: before}, range(2))
    assert ((1,), False) == (found.away, found.unseen)
    assert {"a": 0, "b": 7100} == {one.replica_id: one.heartbeat_age_ms for one in found.replicas}
    # What ran on the one that moved has ended: it would have stayed otherwise.
    assert (3, (2, 4, 6), 8000) == (found.running, found.waiting, found.time_ms)
    # Routers report to all cells, and one that has gone since is in no other one.
    assert ((), ("B",)) == (found.reports, found.routers)
    assert ((1, 2), True) == ((unseen := merge_known({0: now}, {0: now, 1: before}, range(3))).away, unseen.unseen)
    assert ((), False) == ((whole := merge_known({0: now}, {0: now}, range(1))).away, whole.unseen)


def test_usage_adds_up_by_day_tenant_and_hour() -> None:
    use = HourUse(3, 1, 2, 3, 4, 5.0, 6.0)
    line = UsageLine(7, "acme", 1, 2, 3, 4, 5.0, 6.0, (use,))
    other = replace(line, hours=(use, replace(use, hour=4)))
    (merged,) = merge_usage([[line], [other]], 10)
    assert (2, 4, 6, 8, 10.0, 12.0) == (
        *(merged.requests, merged.prompt_tokens, merged.output_tokens, merged.cached_tokens),
        *(merged.gpu_seconds, merged.cost),
    )
    assert [(3, 2), (4, 1)] == [(each.hour, each.requests) for each in merged.hours]
    assert [("a", 7), ("acme", 7)] == [
        (each.tenant, each.day)
        for each in merge_usage([[line], [replace(line, tenant="a")], [replace(line, day=8)]], 2)
    ]


def test_gpu_time_adds_up_by_hour_and_kind() -> None:
    one = CostLine(1, *(GpuTime(float(kind), kind / 2) for kind in range(1, 9)), charged=3.0)
    (merged, last) = merge_costs([[one], [one, replace(one, hour=2)]])
    assert (GpuTime(2.0, 1.0), GpuTime(14.0, 7.0), 6.0) == (merged.total, merged.running, merged.charged)
    assert 2 == last.hour


def test_a_mark_counts_for_the_longest_time() -> None:
    short, long = Mark(b"x", "one", 10), Mark(b"x", "two", 90)
    merged = merge_marks([Marks(2, (long,)), Marks(3, (short, Mark(b"a", "three", 5)))])
    assert Marks(5, (Mark(b"a", "three", 5), long)) == merged


def test_the_line_lists_a_tenant_once() -> None:
    quota = QuotaUse(5, 100, 1, 10, 2)
    here = Line(
        *(8, (0, 3, 0), (0, 1, 0), (TenantLine(STANDARD, "acme", 3, 700, 5, 1.0),), (0, 50, 0)),
        *((SlotHolder(STANDARD, "acme", 2),), 2, {"acme": quota}, {"q": PlaceInLine(1, 0)}),
    )
    there = replace(
        here,
        lines=(TenantLine(STANDARD, "acme", 2, 900, 0, 1.0), TenantLine(STANDARD, "other", 1, 5, 2, 1.0)),
        waiting=(0, 3, 0),
        tenants=(0, 2, 0),
        quotas={"free": quota},
        places={"p": PlaceInLine(0, 1)},
    )
    merged = merge_lines([here, there])
    assert [("acme", 5, 900, 0), ("other", 1, 5, 2)] == [
        (line.tenant, line.waiting, line.oldest_ms, line.service) for line in merged.lines
    ]
    assert ((0, 6, 0), (0, 2, 0), 4) == (merged.waiting, merged.tenants, merged.held)
    assert [SlotHolder(STANDARD, "acme", 4)] == list(merged.holders)
    assert {"acme": quota, "free": quota} == merged.quotas
    assert {"p", "q"} == set(merged.places)


def test_a_page_names_its_cell() -> None:
    assert (3, b"r\0w:5") == read_page(page(3, b"r\0w:5"))
    assert (0, b"") == read_page(b"")
    assert (0, b"r\0w") == read_page(b"r\0w")


def test_what_is_not_on_record_after_a_whole_look_is_forgotten() -> None:
    cells = EntryCells()
    cells.put("gone", 1)
    cells.put("stays", 2)
    cells.begin()
    cells.put("new", 3)
    assert (1, 2, 3) == (cells.get("gone"), cells.get("stays"), cells.get("new"))
    cells.finish([("stays", 2)])
    assert (None, 2, 3) == (cells.get("gone"), cells.get("stays"), cells.get("new"))
    assert 2 == len(cells)


def test_mail_of_a_cell_that_an_entry_has_left_is_not_delivered() -> None:
    seen = CellsSeen(Layout(2))
    seen.entries.put("moved", 1)
    mail = Mail((Grant("moved", "m.1", "r"), Grant("known", "k.1", "r")), (Order("moved", "expired"),))
    assert Mail((Grant("known", "k.1", "r"),), ()) == seen.own_mail(0, mail)
    assert 0 == seen.entries.get("known")


def test_a_store_that_lost_its_data_changes_the_pools_identity_and_a_new_cell_does_not() -> None:
    seen = CellsSeen(Layout(2))
    seen.heard(0, reply("zero"))
    assert "zero" == seen.reply(Mail()).run_id
    seen.heard(1, reply("one"))
    before = seen.reply(Mail()).run_id
    assert "zero" == before
    seen.heard(1, reply("another"))
    changed = seen.reply(Mail()).run_id
    assert before != changed
    seen.heard(0, reply("new"))
    assert changed != seen.reply(Mail()).run_id


def test_a_cell_that_is_away_gets_nothing_new_and_keeps_its_replicas() -> None:
    seen = CellsSeen(Layout(2))
    seen.heard(0, reply(replicas=(record("a"),), positions={"p": 2}))
    seen.heard(1, reply(replicas=(record("b"),), positions={"q": 3}))
    assert {"p": 4, "q": 6} == seen.reply(Mail()).positions
    seen.lost(frozenset({1}))
    assert [0] == [each.cell for each in seen.views()]
    merged = seen.reply(Mail())
    assert ["a", "b"] == [each.replica_id for each in merged.replicas or ()]
    assert {"p": 4} == merged.positions


@pytest.mark.parametrize(("waiting", "expected"), [(0, 3), (2, 5)])
def test_what_was_sent_since_the_last_answer_counts(waiting: int, expected: int) -> None:
    seen = CellsSeen(Layout(1))
    seen.heard(0, reply(waiting=(0, waiting, 0), replicas=(record("a"),)))
    for _ in range(3):
        seen.sent(0)
    (found,) = seen.views()
    assert expected / 4 == found.pressure
    seen.heard(0, reply(replicas=(record("a"),)))
    assert 0 == seen.views()[0].pressure
