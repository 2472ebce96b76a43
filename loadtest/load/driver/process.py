"""The driver as seen by a Locust process. Everything here runs under gevent."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult

from cluster.errors import GeneratorError
from loadtest.load.driver.frames import Unframer, frame
from loadtest.load.driver.target import Target
from loadtest.load.results.tally import Window
from loadtest.load.schedule.plan import PlannedRequest
from loadtest.load.schedule.scenario import Scenario

_LOG = logging.getLogger(__name__)

START_DELAY_S = 0.3
"""Seconds from the driver's answer to the first due time."""
_START_TIMEOUT_S = 60.0
_DRAIN_MARGIN_S = 10.0
_CHUNK = 1 << 16
_ROOT = Path(__file__).resolve().parents[3]

Ended = list[Any]
"""Kind, reason, detail, E2E, TTFT, queue and time per output token in seconds, tokens; see `Driver._end`."""


class DriverProcess:
    """Driver process of one Locust process.

    Args:
        on_window: takes each second's figures.
        on_ended: takes each request that ended.
        on_lost: called when the driver died by itself.
    """

    def __init__(
        self, on_window: Callable[[Window], None], on_ended: Callable[[Ended], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_window = on_window
        self._on_ended = on_ended
        self._on_lost = on_lost
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._closing = False
        self._answers: dict[str, AsyncResult] = {}
        code = "import sys; from loadtest.load.driver.driver import main; sys.exit(main())"
        words = [sys.executable, "-c", code, "--socket", str(theirs.fileno())]
        # Locust puts the folder of its file first. The driver must find our packages without that.
        path = os.pathsep.join([str(_ROOT), str(_ROOT / "proto"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": path}
        self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environ)
        theirs.close()
        self._reading = gevent.spawn(self._read)

    def wait_up(self) -> None:
        """Return when the driver answers.

        Raises:
            GeneratorError: it does not answer.
        """
        self._ask("hello", None, _START_TIMEOUT_S)

    def start(self, target: Target, scenario: Scenario) -> float:
        """Begin a run. Return its start as `time.monotonic`, a moment from now.

        Raises:
            GeneratorError: the routers don't answer, or don't serve the model.
        """
        slos: Mapping[str, Any] = {
            name: [kind.slo.ttft_p99_s, kind.slo.itl_p95_s]
            for name in (*scenario.mix, "trace")
            for kind in [scenario.kind(name)]
        }
        body = {
            "target": target.to_wire(),
            "seed": scenario.seed,
            "slos": slos,
            "warmup_s": scenario.warmup_s,
            "delay_s": START_DELAY_S,
        }
        answer = self._ask("start", body, _START_TIMEOUT_S)
        if "failed" in answer:
            raise GeneratorError(f"{', '.join(target.routers)}: {answer['failed']}")
        return float(answer["starts_at"])

    def arrive(self, planned: PlannedRequest) -> None:
        """Pass a request to the driver, which sends it when it is due."""
        self._send("arrive", planned.to_wire())

    def drain(self, seconds: float) -> int:
        """Wait until all requests have ended, and cut off those that take longer.

        Return the number of requests that were cut to the context.

        Raises:
            GeneratorError: the driver does not answer.
        """
        answer = self._ask("drain", seconds, seconds + _DRAIN_MARGIN_S)
        return int(answer["clipped"])

    def close(self) -> None:
        """End the driver."""
        self._closing = True
        self._socket.close()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._reading is not gevent.getcurrent():
            self._reading.kill()

    def _ask(self, kind: str, body: Any, timeout_s: float) -> Any:
        answer = self._answers[kind] = AsyncResult()
        self._send(kind, body)
        try:
            return answer.get(timeout=timeout_s)
        except gevent.Timeout:
            raise GeneratorError(f"the driver did not answer {kind!r} within {timeout_s:g} s") from None

    def _send(self, kind: str, body: Any) -> None:
        try:
            self._socket.sendall(frame(kind, body))
        except OSError as error:
            raise GeneratorError(f"the driver is gone: {error}") from error

    def _read(self) -> None:
        messages = Unframer()
        try:
            while data := self._socket.recv(_CHUNK):
                for kind, body in messages.feed(data):
                    self._take(kind, body)
        except OSError as error:
            _LOG.debug("driver.socket", extra={"error": str(error)})
        if not self._closing:
            for answer in self._answers.values():
                if not answer.ready():
                    answer.set_exception(GeneratorError("the driver died"))
            self._on_lost()

    def _take(self, kind: str, body: Any) -> None:
        if kind == "window":
            self._on_window(Window.from_wire(body))
        elif kind == "ended":
            for row in body:
                self._on_ended(row)
        else:
            self._answers[kind].set(body)
