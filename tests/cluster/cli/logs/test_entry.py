"""Lines of every program of a cluster."""

from __future__ import annotations

import argparse
import datetime
import logging

import pytest

from cluster.cli.logs.choice import Choice, Chosen, when
from cluster.cli.logs.entry import LogEntry, Reader
from cluster.cli.logs.show import parts_of
from cluster.telemetry.logs import JsonFormatter, TextFormatter

DAY = datetime.date(2026, 11, 26)
READY = (
    '\x1b[36m(ServeReplica:penstock-demo:replica pid=26014)\x1b[0m {"time": "2026-11-26T09:03:52.824Z", '
    '"level": "info", "event": "replica.ready", "logger": "deployments.replica.replica", "replica": "demo-o6cicjsl"}'
)
AT = datetime.datetime(2026, 11, 26, 9, 3, 52, 824_000, datetime.UTC).timestamp()


def read(*lines: str) -> list[LogEntry]:
    reader = Reader(DAY)
    return [reader.read(line) for line in lines]


def local(*parts: int) -> float:
    return datetime.datetime(2026, 11, 26, *parts).astimezone().timestamp()


def shown(entry: LogEntry) -> str:
    return "".join(text for text, _ in parts_of(entry, DAY))


def test_an_event_of_ours_behind_rays_prefix() -> None:
    (entry,) = read(READY)
    assert (AT, "info", "replica.ready", "demo-o6cicjsl") == (entry.at, entry.level, entry.text, entry.process)
    assert {"replica": "demo-o6cicjsl"} == entry.fields


def test_the_process_of_a_replica_has_its_name_from_then_on() -> None:
    _, line = read(
        READY, "\x1b[36m(ServeReplica:penstock-demo:replica pid=26014)\x1b[0m WARNING 11-26 09:03:53 [core.py:7] slow"
    )
    assert ("demo-o6cicjsl", "warning", "[core.py:7] slow") == (line.process, line.level, line.text)
    assert local(9, 3, 53) == line.at


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("25368:M 26 Nov 2026 09:03:00.193 # Server initialized", "warning", "Server initialized"),
        ("25368:M 26 Nov 2026 09:03:00.193 * Ready", "info", "Ready"),
        ("ERROR 2026-11-26 09:03:00,193 serve 25372 -- No node", "error", "No node"),
        ("INFO 2026-11-26 09:03:00,193 worker.py:1 one", "info", "worker.py:1 one"),
    ],
)
def test_lines_of_redis_and_ray(line: str, level: str, text: str) -> None:
    (entry,) = read(line)
    assert (local(9, 3, 0, 193_000), level, text) == (entry.at, entry.level, entry.text)


def test_what_our_formatters_write_is_read() -> None:
    record = logging.LogRecord("cluster.some", logging.WARNING, __file__, 1, "%s.restarted", ("router",), None)
    record.created, record.port = AT, 50051
    for formatter in (JsonFormatter(), TextFormatter()):
        (entry,) = read(formatter.format(record))
        assert ("warning", "router.restarted port=50051") == (entry.level, shown(entry)[21:])


def test_the_innermost_process_is_named() -> None:
    (entry,) = read("(ServeReplica:x:replica pid=1) (EngineCore pid=2) ERROR 11-26 09:00:00 [a.py:1] no memory")
    assert ("EngineCore pid=2", "error") == (entry.process, entry.level)


def test_lines_without_a_time_belong_to_the_line_before() -> None:
    first, second = read("ERROR 2026-11-26 09:03:00,193 serve 1 -- failed", "Traceback (most recent call last):")
    assert (True, first.at, "error") == (second.more, second.at, second.level)


def test_a_line_of_another_process_without_a_time_is_near_its_neighbours() -> None:
    first, second = read(LOG[1], "(raylet) no worker")
    assert (first.at, "info", "raylet", False) == (second.at, second.level, second.process, second.more)
    assert "[raylet] no worker" == shown(second)


def test_a_line_for_people_has_time_level_and_fields() -> None:
    (entry,) = read('{"time": "2026-11-26T09:03:52.824Z", "level": "error", "event": "a.b", "why": "no room", "n": 3}')
    clock = datetime.datetime.fromtimestamp(AT)
    assert f"{clock:%H:%M:%S}.824 error   a.b why='no room' n=3" == shown(entry)
    other_day = "".join(text for text, _ in parts_of(entry, datetime.date(2026, 11, 27)))
    assert other_day.startswith("2026-11-2")


def test_an_exception_has_lines_of_its_own() -> None:
    (entry,) = read(
        '{"time": "2026-11-26T09:03:52Z", "level": "error", "event": "a", "exception": "T:\\n  ValueError: x"}'
    )
    assert "\n    T:\n      ValueError: x" in shown(entry)


def test_json_that_is_no_event_stays_as_it_is() -> None:
    assert ['{"a": 1}', "{half"] == [shown(entry) for entry in read('{"a": 1}', "{half")]


LOG = (
    '{"time": "2026-11-26T09:00:00Z", "level": "info", "event": "link.up"}',
    '{"time": "2026-11-26T09:00:01Z", "level": "error", "event": "choice.lost", "request": "req-7/0"}',
    "Traceback of req-7",
    '{"time": "2026-11-26T09:00:02Z", "level": "warning", "event": "grant.fenced", "request": "req-8"}',
    "Traceback of req-8",
)


def taken(choice: Choice) -> list[str]:
    chosen = Chosen(choice)
    return [entry.text for entry in read(*LOG) if chosen.takes(entry)]


def test_lines_are_chosen_by_level_request_and_time() -> None:
    assert 5 == len(taken(Choice()))
    assert ["choice.lost", "Traceback of req-7"] == taken(Choice(level="error"))
    assert ["grant.fenced", "Traceback of req-8"] == taken(Choice(request="req-8"))
    second = datetime.datetime(2026, 11, 26, 9, 0, 2, tzinfo=datetime.UTC).timestamp()
    assert ["grant.fenced", "Traceback of req-8"] == taken(Choice(since=second))
    assert [] == taken(Choice(process="demo-"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", local(8, 50)),
        ("1.5h", local(7, 30)),
        ("90 s", local(8, 58, 30)),
        ("08:30", local(8, 30)),
        ("9:00", local(9, 0)),
        ("10:00", local(10, 0) - 86_400),
        ("2026-11-26", local(0, 0)),
        ("2026-11-26T09:03:52.824Z", AT),
    ],
)
def test_times_are_read(text: str, expected: float) -> None:
    now = datetime.datetime(2026, 11, 26, 9, 0).astimezone()
    assert expected == when(text, now)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be how long ago such as 10m.*got 'soon'"):
        when("soon")
