"""The start of a router."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest

from router import server
from router.server import Router


async def test_a_router_that_stands_still_at_its_start_waits_for_links_to_its_replicas(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "MEET_S", 0.8)
    links: list[str] = []
    replicas = SimpleNamespace(any_announcement=lambda: "r1", connected=lambda: links)
    router = SimpleNamespace(pools={"demo": SimpleNamespace(name="demo", replicas=replicas)})

    loop = asyncio.get_running_loop()
    loop.call_soon(time.sleep, 1.0)
    loop.call_later(1.1, links.append, "r1")
    await Router._meet_replicas(cast("Router", router))
    assert (["r1"], []) == (links, caplog.records)
