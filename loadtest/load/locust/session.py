"""A load test in one Locust process, in any role: alone, worker or master."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import gevent

from cluster.errors import GeneratorError, PenstockError, SettingsError
from loadtest.load.driver.process import START_DELAY_S, DriverProcess, Ended
from loadtest.load.locust.options import DEFAULT_DRAIN_S, DEFAULT_USER_RATE, drain_of, scenario_of, target_of
from loadtest.load.results.record import RunRecord
from loadtest.load.results.tally import Window
from loadtest.load.schedule.plan import PlannedRequest, plan, plan_of_user, until_last
from loadtest.load.schedule.scenario import Scenario

_LOG = logging.getLogger(__name__)

REQUEST_TYPE = "gRPC"
LEAD_S = 0.5
"""Seconds by which requests are passed to the driver before they are due. gevent's delays then do not count."""
_HARDLY_S = 3.0
_EXIT_SETUP = 2


class RequestFailedError(Exception):
    """Failure of a request, as reported to Locust. Equal reasons count as one failure there."""


class LoadTest:
    """Load test of one Locust environment.

    Args:
        environment: Locust's.
        drives: whether this process sends requests; a master does not.
    """

    def __init__(self, environment: Any, *, drives: bool) -> None:
        self.environment = environment
        self.record = RunRecord()
        self.pending: list[Window] = []
        """Windows that were not yet sent to the master."""
        self.scenario: Scenario | None = None
        self.starts_at: float | None = None
        """`time.monotonic` of the start."""
        self.forgotten_s = 0.0
        """Seconds since the start before which nothing counts."""
        self.stopped_at: float | None = None
        self.drain_s = DEFAULT_DRAIN_S
        """Seconds that the end may wait for open requests."""
        self.hurried = False
        """Whether the test shall end before all planned requests were sent."""
        self.shard, self.shards = 0, 1
        """This process's part of the plan, and the number of parts; 0 parts for a worker that has not been told."""
        self.reports = False
        """Whether this is a worker whose windows go to a master."""
        self.workers: set[str] = set()
        """On a master: workers with a part in the plan."""
        self.drained: set[str] = set()
        """On a master: workers that have sent all their figures."""
        self._drives = drives
        self._driver: DriverProcess | None = None
        self._plan: Iterator[PlannedRequest] | None = None
        self._open = False
        self._users = itertools.count()
        self._ran: dict[str, int] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Become a worker. It has no part in the plan until a master gives it one."""
        self.reports, self.shards = True, 0

    def launch(self, *, wait: bool) -> None:
        """Start the driver.

        Args:
            wait: return when it is up, for tests that start at once; otherwise the start would take some of their time.

        Raises:
            GeneratorError: it does not come up.
        """
        if self._drives and self._driver is None:
            self._driver = DriverProcess(self._window, self._ended, self._lost)
            if wait:
                self._driver.wait_up()
        # gevent's timers count from its last turn. Otherwise --run-time would end a test early by the time of the
        # start.
        gevent.get_hub().loop.update_now()

    def start(self) -> None:
        """Begin a test. If it can't begin, end the process with a sentence and status 2."""
        self.record, self.pending = RunRecord(), []
        self.stopped_at, self.hurried = None, False
        self.forgotten_s = 0.0
        self._users = itertools.count()
        self.environment.process_exit_code = None
        try:
            # This does nothing unless the last driver died.
            self.launch(wait=False)
            options = self.environment.parsed_options
            self.scenario = self._scenario()
            target = target_of(options, self.environment.host or "")
            self.drain_s = drain_of(options)
            self._plan = None
            if self.planned and not self.shards:
                _LOG.warning("this worker came late: the others share all requests of the test, so it sends none")
            elif self.planned:
                mine = plan(self.scenario, self.shard, self.shards)
                # The first request reads the trace. The clock must not run meanwhile.
                self._plan = itertools.chain([first for first in [next(mine, None)] if first is not None], mine)
            if self._driver is None:
                self.starts_at = time.monotonic() + START_DELAY_S
                return
            self.starts_at = self._driver.start(target, self.scenario)
            self._open = True
            if self.planned:
                # Users do not send it: Locust may give a worker no users, and its part must still be sent.
                gevent.spawn(self._send_plan)
        except PenstockError as error:
            self.fail(str(error))

    @property
    def planned(self) -> bool:
        """Whether the load comes from a scenario, and not from users."""
        options = self.environment.parsed_options
        return bool(options.scenario or options.rate or options.trace)

    @property
    def user_rate(self) -> float:
        """Requests per second of each user.

        Raises:
            ValueError: the flag is no number.
        """
        asked = self.environment.parsed_options.user_rate
        return float(DEFAULT_USER_RATE if asked in (None, "") else asked)

    def users(self) -> dict[str, int]:
        """Return the number of users of each class that run, or that ran last."""
        wanted = getattr(self.environment.runner, "target_user_classes_count", {})
        self._ran = {name: count for name, count in wanted.items() if count} or self._ran
        return self._ran

    def kinds_of_users(self) -> dict[str, float]:
        """Return the number of users by the kind of request that they send."""
        kinds = {user.__name__: user.kind for user in self.environment.user_classes}
        return {kinds[name]: float(count) for name, count in self.users().items() if name in kinds}

    def length_s(self) -> float | None:
        """Return the seconds that a planned load lasts; None where the load comes from users.

        Raises:
            SettingsError: a flag is wrong.
        """
        return self._scenario().duration_s if self.planned else None

    def _scenario(self) -> Scenario:
        options = self.environment.parsed_options
        scenario = until_last(scenario_of(options, _seconds(options.duration) or _seconds(options.run_time)))
        if options.scenario or scenario.trace:
            return scenario
        weights = {user.kind: float(user.weight) for user in self.environment.user_classes if user.weight > 0}
        return replace(scenario, mix=weights or scenario.mix)

    def fail(self, text: str) -> None:
        """End this process, or tell the master, because of a failure that the cluster did not cause."""
        _LOG.error("%s", text)
        self._open = False
        self.environment.process_exit_code = _EXIT_SETUP
        runner = self.environment.runner
        if self.reports:
            runner.send_message("penstock_failed", text)
        elif self.environment.web_ui is None:
            gevent.spawn(runner.quit)
        else:
            gevent.spawn(runner.stop)

    def lose(self, workers: Iterable[str]) -> None:
        """Mark the test as failed: workers left before their last reports, so their parts are missing."""
        _LOG.error("no last report from %s: the figures miss their part", ", ".join(sorted(workers)))
        self.environment.process_exit_code = _EXIT_SETUP

    def drain(self) -> None:
        """Send nothing more, and wait up to the bound for open requests.

        With `--duration`, or when little of a plan is left, first send all planned requests, unless the test was told
        to hurry.
        """
        if not self._open:
            return
        if self.planned and not self.hurried and self.scenario is not None and self.starts_at is not None:
            # Locust's own limit began when the first process was ready. On a busy machine that is seconds earlier.
            left = self.starts_at + self.scenario.duration_s - time.monotonic()
            if _seconds(self.environment.parsed_options.duration) or left < _HARDLY_S:
                gevent.sleep(max(0.0, left))
        self._open = False
        self.stopped_at = time.monotonic()
        if self._driver is not None:
            try:
                self.record.clipped += self._driver.drain(self.drain_s)
            except GeneratorError as error:
                self.fail(str(error))
        if self.reports:
            self.shards = 0

    def reset(self) -> None:
        """Forget all figures. The test goes on."""
        self.record, self.pending = RunRecord(), []
        if self.starts_at is not None:
            self.forgotten_s = max(0.0, time.monotonic() - self.starts_at)

    def close(self) -> None:
        """End the driver."""
        self._open = False
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # --- what users do ------------------------------------------------------------------------------------------------

    def plan_for(self, kind: str) -> Iterator[PlannedRequest] | None:
        """Return the requests of a new user; None where all users share a scenario."""
        if self.scenario is None or self.starts_at is None or self.planned:
            return None
        try:
            rate = self.user_rate
            began = max(0.0, time.monotonic() - self.starts_at)
            mine = plan_of_user(self.scenario, kind, rate, f"{self.shard}/{next(self._users)}")
        except (PenstockError, ValueError) as error:
            self.fail(f"user-rate or scenario: {error}")
            return None
        return (replace(each, at_s=each.at_s + began) for each in mine)

    def next_of(self, own: Iterator[PlannedRequest] | None) -> PlannedRequest | None:
        """Return the user's next request; None when there is none, or the test has ended."""
        return next(own, None) if self._open and own is not None else None

    def _send_plan(self) -> None:
        plan = self._plan
        for planned in plan or ():
            self.wait_for(planned)
            # A later test has a plan of its own.
            if not self._open or self._plan is not plan:
                return
            self.hand_over(planned)

    def wait_for(self, planned: PlannedRequest) -> None:
        """Sleep until a request is nearly due."""
        if self.starts_at is not None and (wait := self.starts_at + planned.at_s - LEAD_S - time.monotonic()) > 0:
            gevent.sleep(wait)

    def hand_over(self, planned: PlannedRequest) -> None:
        if self._open and self._driver is not None:
            try:
                self._driver.arrive(planned)
            except GeneratorError as error:
                self.fail(str(error))

    # --- what comes back ----------------------------------------------------------------------------------------------

    def _window(self, window: Window) -> None:
        self.record.add(window)
        if self.reports:
            self.pending.append(window)

    def _ended(self, row: Ended) -> None:
        kind, reason, detail, e2e_s, ttft_s, queue_s, tpot_s, tokens = row
        self.environment.events.request.fire(
            request_type=REQUEST_TYPE,
            name=kind,
            response_time=1e3 * e2e_s,
            response_length=tokens,
            exception=RequestFailedError(f"{reason}: {detail}"[:200]) if reason else None,
            context={},
        )
        # These rows are not logged as requests, so Locust's totals count requests only. It still merges the rows from
        # workers.
        for name, value in (("TTFT", ttft_s), ("queue", queue_s), ("time/token", tpot_s)):
            if value is not None:
                self.environment.stats.get(kind, name).log(1e3 * value, 0)

    def _lost(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        self.fail("the driver died; its last words are above")

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def counted_s(self) -> float:
        """Seconds that the figures cover.

        They begin at the end of the warm-up, or at a reset. They end with the load, or with the last token or end if
        that came later.
        """
        if self.starts_at is None or self.scenario is None:
            return 0.0
        until = (time.monotonic() if self.stopped_at is None else self.stopped_at) - self.starts_at
        if self.planned:
            until = min(until, self.scenario.duration_s)
        return max(1e-3, max(until, self.record.last_s) - max(self.scenario.warmup_s, self.forgotten_s))


def _seconds(value: Any) -> float | None:
    try:
        return float(value) if value else None
    except ValueError:
        raise SettingsError(f"duration must be a number of seconds, got {value!r}") from None
