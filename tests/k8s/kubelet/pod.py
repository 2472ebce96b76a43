"""One running pod: its files, its process, its probes, its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.k8s.kubelet.texts import Translation, expand
from tests.k8s.view import PodSpec
from tests.support.waiting import TimedOutError

LOG_TAIL = 1_500
LOOK_S = 0.5
TURN_S = 0.02
"""Parts of a pause. A process that stands still misses one of them, so that the others, who wait for more of them, go
on in the same order as without it.
"""


class PodError(Exception):
    """Says why a pod does not run, in the words that `kubectl get pods` has for it."""


class LatePodError(PodError, TimedOutError):
    """A pod that runs and is not ready in time."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What holds a pod's processes."""

    enter: tuple[str, ...]
    """Goes before each of its commands."""
    clear: Callable[[], None]
    """Ends whatever is left."""


@dataclass(frozen=True, slots=True)
class Init:
    """A container that has to end well before the pod's own starts."""

    container: Mapping[str, Any]
    environ: Mapping[str, str]


class Pod:
    """Runs the first container of a pod, after those that come before it."""

    def __init__(
        self,
        name: str,
        spec: PodSpec,
        view: Translation,
        environ: Mapping[str, str],
        folder: Path,
        speed: float,
        sandbox: Sandbox,
        init: Sequence[Init] = (),
    ) -> None:
        """`environ` is the whole environment; the files lie under `view.mounts` already; `speed` divides periods."""
        self._init = tuple(init)
        self._starts = bool(init)
        self.name = name
        self.spec = spec
        self.ip = view.ip
        self.ready = False
        self.terminating = False
        self.killed = False
        """Whether its grace was over before it ended."""
        self.restarts = 0
        self.log_file = folder / "log"
        self.view = view
        self._environ = environ
        self._sandbox = sandbox
        self._speed = speed
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._container: dict[str, Any] = spec.spec["containers"][0]

    @property
    def environ(self) -> Mapping[str, str]:
        """Its whole environment."""
        return self._environ

    @property
    def grace_s(self) -> float:
        """Seconds from its deletion to SIGKILL."""
        return float(self.spec.spec.get("terminationGracePeriodSeconds", 30))

    def port(self, port: int | str) -> int:
        """Return a port's number."""
        return self.spec.ports()[port] if isinstance(port, str) else port

    def start(self) -> None:
        """Start its containers and look after the last one."""
        if not self._init:
            self._spawn(self._container, self._environ)
        self._watch = asyncio.create_task(self._look_after(), name=self.name)

    def _spawn(self, container: Mapping[str, Any], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        texts = [*container["command"], *container.get("args", [])]
        command = [self.view.of(expand(text, environ)) for text in texts]
        # A test that is killed leaves nothing running.
        setpriv = shutil.which("setpriv")
        leash = (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
        program = shutil.which(command[0], path=environ["PATH"]) or command[0]
        with self.log_file.open("ab") as log:
            self._process = process = subprocess.Popen(
                (*leash, *self._sandbox.enter, program, *command[1:]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                process_group=0,
            )
        return process

    async def _prepare(self) -> None:
        """Run the containers that come first, one after the other; one that fails runs again."""
        for init in self._init:
            while await asyncio.to_thread(self._spawn(init.container, init.environ).wait):
                self.restarts += 1
                await asyncio.sleep(LOOK_S)
        if self._init:
            self._spawn(self._container, self._environ)
            self._starts = False

    @property
    def running(self) -> bool:
        """Whether its process has not ended, or is still to come."""
        return self._starts or (self._process is not None and self._process.poll() is None)

    def check(self) -> None:
        """Raise PodError when it has ended though nobody asked for it."""
        if not self.running and not self.terminating:
            status = self._process.returncode if self._process is not None else None
            raise PodError(f"{self.name}: CrashLoopBackOff, status {status}: {self.log_tail()}")

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]

    # --- probes -------------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        await self._prepare()
        if probe := self._container.get("startupProbe"):
            await self._started(probe)
        await asyncio.gather(self._watch_readiness(), self._watch_liveness())

    async def _started(self, probe: dict[str, Any]) -> None:
        for _ in range(self._failures(probe)):
            if await self._ask(probe):
                return
            await self._period(probe)
        await asyncio.to_thread(self._restart)

    async def _watch_readiness(self) -> None:
        probe = self._container.get("readinessProbe")
        failures = 0
        while True:
            good = self.running if probe is None else await self._ask(probe)
            failures = 0 if good else failures + 1
            if good:
                self.ready = not self.terminating
            elif failures >= (probe or {}).get("failureThreshold", 3):
                self.ready = False
            await self._period(probe or {"periodSeconds": 1})

    async def _watch_liveness(self) -> None:
        probe = self._container.get("livenessProbe")
        failures = 0
        while probe is not None:
            failures = 0 if await self._ask(probe) else failures + 1
            if failures >= self._failures(probe):
                failures = 0
                await asyncio.to_thread(self._restart)
            await self._period(probe)

    def _failures(self, probe: dict[str, Any]) -> int:
        # Programs start no faster than in a cluster, so what ends them counts real time.
        return round(probe.get("failureThreshold", 3) * self._speed)

    def _restart(self) -> None:
        self.restarts += 1
        self._kill()
        self._spawn(self._container, self._environ)

    async def _period(self, probe: dict[str, Any]) -> None:
        await asyncio.sleep(probe.get("periodSeconds", 10) / self._speed)

    async def _ask(self, probe: dict[str, Any]) -> bool:
        seconds = probe.get("timeoutSeconds", 1)
        return await asyncio.to_thread(self._answers, probe, seconds)

    def _answers(self, probe: dict[str, Any], seconds: float) -> bool:
        if "exec" in probe:
            return self._run(probe["exec"]["command"], seconds)
        (kind, target), *_ = ((key, probe[key]) for key in ("httpGet", "tcpSocket") if key in probe)
        if kind == "httpGet":
            return http_ok(f"http://{self.ip}:{self.port(target['port'])}{target['path']}", seconds)
        return connects(self.ip, self.port(target["port"]), seconds)

    def _run(self, command: list[str], seconds: float) -> bool:
        translated = [self.view.of(text) for text in command]
        try:
            done = subprocess.run(
                [*self._sandbox.enter, *translated],
                env=dict(self._environ),
                timeout=seconds,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    # --- end ----------------------------------------------------------------------------------------------------------

    async def terminate(self) -> None:
        """Delete it: preStop, SIGTERM, and SIGKILL when the grace is over, which began with preStop."""
        self.terminating, self.ready = True, False
        began = time.monotonic()
        hook = self._container.get("lifecycle", {}).get("preStop", {})
        pause = min(float(hook.get("sleep", {}).get("seconds", 0)), self.grace_s)
        if "exec" in hook:
            await asyncio.to_thread(self._run, hook["exec"]["command"], self.grace_s)
        for _ in range(round(pause / TURN_S)):
            await asyncio.sleep(TURN_S)
        await self._stop_watch()
        self._starts = False
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGTERM)
            left = max(0.0, self.grace_s - (time.monotonic() - began))
            try:
                await asyncio.to_thread(self._process.wait, left)
            except subprocess.TimeoutExpired:
                self.killed = True
        self._kill()

    async def destroy(self) -> None:
        """End it at once."""
        self.terminating = True
        await self._stop_watch()
        self._starts = False
        self._kill()

    async def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _kill(self) -> None:
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()
        self._sandbox.clear()


def http_ok(url: str, seconds: float) -> bool:
    """Say whether a GET is answered as a probe wants it."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as reply:  # noqa: S310 - a probe's
            return 200 <= reply.status < 400
    except (OSError, urllib.error.HTTPError):
        return False


def connects(host: str, port: int, seconds: float) -> bool:
    """Say whether somebody listens."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError:
        return False
    return True
