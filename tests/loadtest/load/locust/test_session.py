"""A load test in one Locust process, without Locust."""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.load.locust.options import add_load_flags
from loadtest.load.schedule.plan import PlannedRequest
from loadtest.load.schedule.scenario import Scenario

gevent = pytest.importorskip("gevent")
session = pytest.importorskip("loadtest.load.locust.session")


def test_figures_behind_a_reset_are_of_the_time_since_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(session, "time", clock)
    environment: Any = SimpleNamespace(parsed_options=SimpleNamespace(scenario="chat", rate=None, trace=None))
    load = session.LoadTest(environment, drives=False)
    load.scenario, load.starts_at = Scenario("chat", duration_s=600.0, warmup_s=10.0), 100.0
    now = 160.0
    assert 50.0 == load.counted_s

    load.reset()
    now = 190.0
    assert 30.0 == load.counted_s


class Driver:
    """Takes what it is given; the run began long ago."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def start(self, *_of: object) -> float:
        self.numbers = []
        return time.monotonic() - 1000.0

    def arrive(self, planned: PlannedRequest) -> None:
        self.numbers.append(planned.number)

    def drain(self, _seconds: float) -> int:
        return 0


def environment_of(duration: str = "") -> Any:
    parser = argparse.ArgumentParser()
    add_load_flags(parser, "")
    access = {"api_key_file": "", "allow_plaintext_key": False, "duration": duration, "run_time": None}
    tls = dict.fromkeys(("router_tls", "router_ca", "router_cert", "router_key", "router_server_name"), "")
    flags = parser.parse_args(["--scenario", "smoke", "--arrivals", "constant"])
    return SimpleNamespace(
        parsed_options=argparse.Namespace(**vars(flags), **access, **tls), host="127.0.0.1:1", process_exit_code=None
    )


def test_a_duration_that_is_none_ends_the_test_with_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    environment = environment_of("5x")
    environment.web_ui, environment.runner = None, SimpleNamespace(quit=lambda: None)
    load = session.LoadTest(environment, drives=False)

    load.start()

    assert "duration must be a number of seconds, got '5x'" in caplog.text
    assert 2 == environment.process_exit_code


def test_a_worker_that_comes_in_the_middle_of_a_test_has_no_part_in_its_plan() -> None:
    """Those that were there have all parts between them."""
    load, driver = session.LoadTest(environment_of(), drives=True), Driver()
    load._driver = driver
    load.join()

    def sent() -> list[int]:
        load.start()
        gevent.sleep(0.01)
        load.drain()
        return driver.numbers

    assert [] == sent()
    load.shard, load.shards = 1, 2
    assert list(range(1, 200, 2)) == sent()
    # The next test has begun without it, too.
    assert [] == sent()
