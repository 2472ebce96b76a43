"""A load test in one Locust process, without Locust."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gevent")

from loadtest.load import session
from loadtest.load.scenario import Scenario
from loadtest.load.session import LoadTest


def test_figures_behind_a_reset_are_of_the_time_since_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(session, "time", clock)
    environment: Any = SimpleNamespace(parsed_options=SimpleNamespace(scenario="chat", rate=None, trace=None))
    load = LoadTest(environment, drives=False)
    load.scenario, load.starts_at = Scenario("chat", duration_s=600.0, warmup_s=10.0), 100.0
    now = 160.0
    assert 50.0 == load.counted_s

    load.reset()
    now = 190.0
    assert 30.0 == load.counted_s
