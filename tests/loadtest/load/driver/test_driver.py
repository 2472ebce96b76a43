"""The process that sends requests, without one."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.lifecycle import TaskOwner
from loadtest.load.driver import driver
from loadtest.load.driver.driver import Driver
from loadtest.load.driver.frames import Unframer
from loadtest.load.schedule.plan import PlannedRequest
from tests.support.waiting import until


class Sent:
    """Notes what kinds of messages a driver sends."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def write(self, data: bytes) -> None:
        self.kinds += [kind for kind, _ in Unframer().feed(data)]


async def test_nothing_is_told_of_a_run_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one would begin with a second of the last."""
    monkeypatch.setattr(driver, "_REPORT_S", 0.001)
    owner, sent = TaskOwner("test"), Sent()
    made: Any = Driver(asyncio.StreamReader(), sent, owner)  # type: ignore[arg-type]
    made._run = SimpleNamespace(starts_at=time.monotonic() - 100.0, clipped=0, over=False)
    await made._drain(1.0)
    # Seconds pass.
    made._run.starts_at -= 100.0
    owner.spawn(made._report(), "report")
    for _ in range(2):
        made._ended, before = [["chat"]], len(sent.kinds)
        await until(lambda before=before: "ended" in sent.kinds[before:])  # type: ignore[misc]
    await owner.close()

    assert ["window", "drain", "ended", "ended"] == sent.kinds


async def test_a_request_is_open_from_its_time_on() -> None:
    """The driver has requests half a second before they are due, which at a high rate are many."""
    due, released, sent = time.monotonic(), asyncio.Event(), list[int]()

    async def send(planned: PlannedRequest, *_: object) -> None:
        sent.append(planned.number)
        await released.wait()

    owner, windows = TaskOwner("test"), list[Any]()
    made: Any = Driver(asyncio.StreamReader(), Sent(), owner)  # type: ignore[arg-type]
    made._send = lambda kind, body: windows.append(body) if kind == "window" else None
    made._run = SimpleNamespace(
        starts_at=due, warmup_s=0.0, clipped=0, over=False, slos={}, content=lambda _: ([1], 1),
        transport=SimpleNamespace(send=send),
    )  # fmt: skip
    for number, at_s in enumerate((0.0, 3600.0, 3600.0)):
        made._arrive(PlannedRequest(number, at_s, "chat", 2, 1, 1))
    await until(lambda: sent == [0])
    made._close_window(made._run)
    released.set()
    await until(lambda: len(made._streams) == 2)
    made._close_window(made._run)
    await made._cut()
    await owner.close()
    assert [1, 0] == [window["running"] for window in windows]
