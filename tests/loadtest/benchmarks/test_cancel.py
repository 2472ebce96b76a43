"""The cancel benchmark on small numbers: its bars hold, and it says so when they don't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.benchmarks.cancel import latency, overload, storm
from loadtest.benchmarks.cancel.__main__ import missed
from tests.cluster.queue.servers import Server, running


@pytest.fixture
def server() -> Iterator[Server]:
    with running("redis-6.2") as server:
        yield server


def ignore(_count: int) -> None:
    """Show no progress."""


@pytest.mark.slow
async def test_a_storm_of_cancels_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    figures = await storm.run(tmp_path, server.url, 500, ignore)

    assert 500 == figures["generations"] == sum(figures["ends"].values())
    assert {"unheard", "queued", "prefill", "decode"} == set(figures["states"])
    assert [] == missed({"storm": figures})
    assert [] == figures["new_keys"]


@pytest.mark.slow
async def test_a_cancel_leaves_the_router_and_frees_the_slot_in_time(server: Server, tmp_path: Path) -> None:
    figures = await latency.run(tmp_path, server.url, 48, ignore)

    assert {"same router", "other router"} == set(figures)
    for row in figures.values():
        assert 24 == sum(row["cancels"].values())
        # At the end of the step that ran; the bar of 100 ms is the benchmark's, on a machine that does nothing else.
        assert {"1"} == set(row["steps_to_free"])


@pytest.mark.slow
async def test_a_full_queue_refuses_with_a_time_to_come_back(server: Server, tmp_path: Path) -> None:
    figures = await overload.run(tmp_path, server.url, 20, ignore)

    assert {"per tenant", "in total"} == set(figures)
    assert all(row["p50"] > 0 for rows in figures.values() for row in rows.values())


@pytest.mark.parametrize(
    ("change", "miss"),
    [
        ({}, 0),
        ({"errors": {"gone: OK": 1}}, 1),
        ({"mixed_replies": 1}, 1),
        ({"left": {"slots": 1}}, 1),
        ({"left_tasks": -1}, 0),
        ({"left_tasks": 1}, 1),
        ({"rss_mb": {"0": 90.0, "60000": 100.0, "100000": 110.0}}, 1),
    ],
)
def test_what_a_storm_leaves_is_a_missed_bar(change: dict[str, Any], miss: int) -> None:
    clean = {"errors": {}, "mixed_replies": 0, "left": {}, "left_objects": {}, "left_tasks": 0, "left_keys": {}}
    rss = {"rss_mb": {"0": 90.0, "60000": 100.0, "100000": 101.0}}

    assert miss == len(missed({"storm": clean | rss | change}))
