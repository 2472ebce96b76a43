"""What is kept of a run leads from what clients saw to the lines of logs."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from pathlib import Path

import pytest

from tests.chaos.history import Accepted, Attempted, Failed, FaultRecord, History, Request, Tokens
from tests.chaos.lag import LoopLag
from tests.chaos.told import copy_logs, write_history


def test_times_count_from_the_first_fault_whose_time_of_day_is_told(tmp_path: Path) -> None:
    least_s, broken_at = time.time() - 5.0, time.monotonic() - 5.0
    request = Request("client 1 request 2", (7, 8), 9.0)
    request.events += [
        Attempted(broken_at - 1.0, restart=True),
        Accepted(broken_at + 0.25, "a1"),
        Tokens(broken_at + 0.5, 0, (7, 8)),
        Failed(broken_at + 2.0, "UNAVAILABLE", "QUEUE_UNAVAILABLE", final=True),
    ]
    faults = [FaultRecord("kill", broken_at, "gone"), FaultRecord("start", broken_at + 1.5, "back", heals=True)]
    write_history(History(requests=[request], faults=faults), tmp_path / "logs" / "history.jsonl")
    zero, *lines = map(json.loads, (tmp_path / "logs" / "history.jsonl").read_text().splitlines())

    told_s = datetime.datetime.fromisoformat(zero["zero"]).timestamp()
    assert least_s - 0.1 <= told_s <= time.time() - 4.9
    assert [(0.0, "kill"), (1.5, "start")] == [(line["at"], line["fault"]) for line in lines[:2]]
    assert [
        [-1.0, "attempted"],
        [0.25, "accepted", "a1"],
        [0.5, "tokens", 0, 2],
        [2.0, "failed", "UNAVAILABLE", "QUEUE_UNAVAILABLE", True],
    ] == lines[2]["events"]


def test_logs_and_journals_are_copied_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.mkdir()
    for name in ("router-0.log", "replica-0.0.jsonl", "secret"):
        (source / name).write_text(name, encoding="utf-8")
    copy_logs(source, tmp_path / "kept")
    assert ["replica-0.0.jsonl", "router-0.log"] == sorted(path.name for path in (tmp_path / "kept").iterdir())


async def test_a_standstill_of_the_loop_is_seen() -> None:
    lag, over = LoopLag(), asyncio.Event()
    watch = asyncio.create_task(lag.watch(over))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still
    over.set()
    await watch
    assert lag.longest_s >= 0.25
    assert max(ended - began for began, ended in lag.standstills) == pytest.approx(lag.longest_s)
