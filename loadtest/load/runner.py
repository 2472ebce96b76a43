"""Locust for one scenario, in a process of its own, and the code that follows it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import GeneratorError
from loadtest.load.driver.target import Target
from loadtest.load.locust.options import HURRY
from loadtest.load.schedule.scenario import Scenario, scenario_fields
from loadtest.load.watch import ClusterWatch

_LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
_POLL_S = 0.2
_STARTING_S = 60.0
_SILENT_S = 30.0
"""Seconds without a line of progress after which a run that has begun counts as hung. Locust writes one a second."""
_TAIL = 12
_REFUSED = 2
"""Locust's status if our users could not begin."""
_ERROR_LINE = re.compile(r"/ERROR/[^:\s]+: (.+)")

Progress = Callable[[Mapping[str, Any]], None]
"""Receiver of a line of `outputs.progress_line`, about once a second."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Parameters of a scenario's run."""

    target: Target
    processes: int = 1
    """Number of generator processes."""
    drain_s: float = 30.0


def run_scenario(
    scenario: Scenario,
    run: RunOptions,
    progress: Progress = lambda _line: None,
    on_interrupt: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run a scenario. Return the figures of `outputs.figures`, the cluster's side, and whether it was interrupted.

    With `on_interrupt`, the first Ctrl-C only ends the run early: the function is called, no more requests are sent,
    and open ones may end within their bound.

    Raises:
        GeneratorError: Locust failed; the message has its last lines.
        KeyboardInterrupt: without `on_interrupt`, the second time, or before any request was sent.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-loadtest-") as name:
        folder = Path(name)
        log = folder / "locust.log"
        with ClusterWatch(run.target, run.target.model) as watch:
            with log.open("wb") as file:
                child = subprocess.Popen(
                    _words(scenario, run, folder),
                    # Locust reads keys from a terminal. The kernel stops a process group in the background for that.
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=_environ(run.target),
                    # A terminal sends Ctrl-C to its whole group. Locust would then end in its own way.
                    process_group=0,
                )
            follow = _Follow(child, folder / "progress.jsonl", scenario, run, progress)
            interrupted = False
            try:
                while not follow.to_end():
                    if on_interrupt is None:
                        raise KeyboardInterrupt
                    interrupted = True
                    on_interrupt()
                    follow.hurry()
            finally:
                _end(child)
            begun_at = follow.begun_at
        figures_file = folder / "figures.json"
        if interrupted and not figures_file.exists():
            raise KeyboardInterrupt
        if child.returncode not in (0, 1) or not figures_file.exists():
            text = log.read_text(encoding="utf-8", errors="replace")
            if child.returncode == _REFUSED and (said := _ERROR_LINE.findall(text)):
                raise GeneratorError(said[-1])
            if child.returncode == 0:
                # Locust's time was over while it still connected.
                routers = ", ".join(run.target.routers)
                raise GeneratorError(f"{routers}: no connection within the {scenario.duration_s:g} s of the test")
            tail = "\n".join(text.splitlines()[-_TAIL:])
            raise GeneratorError(f"Locust ended with status {child.returncode}:\n{tail}")
        figures: dict[str, Any] = json.loads(figures_file.read_text(encoding="utf-8"))
        figures["cluster"] = watch.as_json(begun_at - watch.began_at) if begun_at is not None else []
        figures["cluster_failure"] = watch.failure
        figures["interrupted"] = interrupted
        return figures


def _words(scenario: Scenario, run: RunOptions, folder: Path) -> list[str]:
    target = run.target
    scenario_file = folder / "scenario.toml"
    scenario_file.write_text(_toml(scenario), encoding="utf-8")
    words = {
        "locustfile": _LOCUSTFILE,
        "host": ",".join(target.routers),
        "scenario": scenario_file,
        "duration": scenario.duration_s,
        # All planned requests are sent, also where Locust's time is over earlier.
        "run-time": f"{math.ceil(scenario.duration_s)}s",
        "users": run.processes,
        "spawn-rate": run.processes,
        "drain": run.drain_s,
        "model": target.model,
        "request-timeout": target.timeout_s,
        "flush-interval": target.flush_s,
        "load-json": folder / "figures.json",
        "progress-file": folder / "progress.jsonl",
        "router-ca": target.ca,
        "router-cert": target.cert,
        "router-key": target.key,
        "router-server-name": target.server_name,
        "loglevel": "WARNING",
    }
    if run.processes > 1:
        port = _free_port()
        words |= {"processes": run.processes, "master-bind-host": "127.0.0.1"}
        words |= {"master-bind-port": port, "master-port": port}
    flags = [word for name, value in words.items() if value not in ("", None) for word in (f"--{name}", str(value))]
    switches = {"--router-tls": target.tls, "--allow-plaintext-key": target.allow_plaintext_key}
    chosen = [flag for flag, on in switches.items() if on]
    return [sys.executable, "-m", "locust", "--headless", "--only-summary", *flags, *chosen]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _toml(scenario: Scenario) -> str:
    # JSON is valid TOML except for the colon of a table, surrogate pairs, and an unescaped DEL.
    lines = []
    for name, value in scenario_fields(scenario).items():
        if isinstance(value, dict):
            parts = ", ".join(f"{json.dumps(key)} = {json.dumps(each)}" for key, each in value.items())
            lines.append(f"{name} = {{ {parts} }}")
        elif value != "":
            said = str(Path(value).resolve()) if name in _PATHS else value
            text = json.dumps(said, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"


_PATHS = ("trace", "lengths")


def _environ(target: Target) -> dict[str, str]:
    # This is no flag, because other users of a machine can read command lines.
    key = {"PENSTOCK_API_KEY": target.api_key} if target.api_key else {}
    return {**os.environ, **key}


class _Follow:
    """Reader of the progress until Locust has ended."""

    def __init__(
        self, child: subprocess.Popen[bytes], path: Path, scenario: Scenario, run: RunOptions, progress: Progress
    ) -> None:
        self.begun_at: float | None = None
        """Start of the run, if known."""
        self._child = child
        self._path = path
        self._drain_s = run.drain_s
        self._progress = progress
        self._read = 0
        self._bound = time.monotonic() + scenario.duration_s + run.drain_s + 2 * _STARTING_S
        self._silent_at = time.monotonic() + 2 * _STARTING_S
        """Time at which the run counts as hung."""
        self._hurried = False

    def to_end(self) -> bool:
        """Return True at the end. Return False after an interrupt; then call it again.

        Raises:
            GeneratorError: Locust does not end in time, or shows no progress.
            KeyboardInterrupt: the second interrupt.
        """
        try:
            while self._child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(timeout=_POLL_S)
                self._tell()
                if self._child.poll() is None:
                    self._check_time()
        except KeyboardInterrupt:
            if self._hurried:
                raise
            return False
        return True

    def _check_time(self) -> None:
        now = time.monotonic()
        if now > self._bound:
            raise GeneratorError("Locust did not end in time")
        if now > self._silent_at:
            limit = 2 * _STARTING_S if self.begun_at is None else _SILENT_S
            raise GeneratorError(f"Locust, process {self._child.pid}, has shown no progress for {limit:g} s")

    def hurry(self) -> None:
        """Tell Locust to send no more requests."""
        self._hurried = True
        self._bound = min(self._bound, time.monotonic() + self._drain_s + _STARTING_S)
        self._child.send_signal(HURRY)

    def _tell(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().split(b"\n")
        # The last line may not be complete yet.
        for line in lines[:-1]:
            self._read += len(line) + 1
            told = json.loads(line)
            if self.begun_at is None:
                self.begun_at = time.monotonic() - told["elapsed_s"]
            self._silent_at = time.monotonic() + _SILENT_S
            self._progress(told)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    # A process that was stopped takes no other signal before this one.
    child.send_signal(signal.SIGCONT)
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        # The group has Locust's workers and drivers, too.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
