"""Start and stop of a cluster of simulated engines, as a program of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client import AsyncClient, Client

COMMAND_VARIABLE = "PENSTOCK_COMMAND"
"""Environment variable with the path of the program `penstock`, where it is neither beside Python nor on PATH."""
START_S = 60.0
"""Seconds that a start may take. A quiet machine needs less than five."""
STOP_S = 30.0
"""Seconds after which a cluster that does not stop is killed."""
_LAST = 2_000
"""Characters of the program's output that an error repeats."""


class ClusterStartError(RuntimeError):
    """Error of a cluster that did not start; names what to install, or repeats what the program printed."""


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """A running cluster."""

    target: str
    """Address of its router, host:port."""
    models: tuple[str, ...]
    """Names of the models it serves."""
    client: Client
    """Client that is connected to it."""
    openai_base_url: str
    """Base URL for OpenAI's SDKs."""

    def async_client(self) -> AsyncClient:
        """Return a new client for asyncio; end it with `close` or `async with`."""
        return AsyncClient(self.target)


@contextmanager
def running_cluster(*flags: str) -> Iterator[SimulatedCluster]:
    """Run a cluster while the block runs. It takes any free port and keeps its files in a temporary folder.

    Args:
        flags: further flags of `penstock up`, such as "--replicas", "2" or "--settings", "cluster.toml".

    Raises:
        ClusterStartError: the server is not installed, or the cluster did not start.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
        folder = Path(name)
        with (folder / "output.txt").open("wb") as output, _started(folder, flags, output.fileno()) as process:
            fields = _ready(folder, process)
            with Client(fields["target"]) as client:
                yield SimulatedCluster(fields["target"], tuple(fields["pools"]), client, fields["http"])


def find_command() -> list[str]:
    """Return the command line that runs `penstock`.

    Raises:
        ClusterStartError: the server's distribution is not installed.
    """
    if given := os.environ.get(COMMAND_VARIABLE):
        if shutil.which(given) is None:
            raise ClusterStartError(f"{COMMAND_VARIABLE}: there is no program {given}")
        return [given]
    beside = Path(sys.executable).with_name("penstock")
    found = str(beside) if beside.exists() else shutil.which("penstock")
    if found is None:
        raise ClusterStartError(
            "a cluster for tests needs the server, and there is no program `penstock`: install `penstock-llm[sim]` "
            f"here, or in another environment whose `penstock` is on PATH or named by {COMMAND_VARIABLE}"
        )
    return [found]


@contextmanager
def _started(folder: Path, flags: Sequence[str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(*find_command(), "up", "--engine", "sim", "--port", "0", "--http-port", "0"),
        *("--state-dir", str(folder / "state"), "--ready-file", str(folder / "ready.json"), "--until-eof", *flags),
    ]
    # A key or an address in the environment is for another cluster.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    # Its own group, because Ctrl-C is for the tests, which then stop the cluster. A pipe, because it ends with this
    # process, even if that is killed.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environ, process_group=0
    )
    try:
        yield process
    finally:
        # `communicate` closes the pipe.
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            fields: dict[str, Any] = json.loads((folder / "ready.json").read_text(encoding="utf-8"))
            return fields
        if process.poll() is not None:
            raise ClusterStartError(f"`penstock up` ended with status {process.returncode}:\n{_printed(folder)}")
        time.sleep(0.02)
    raise ClusterStartError(f"`penstock up` was not ready within {START_S:.0f} s; it printed:\n{_printed(folder)}")


def _printed(folder: Path) -> str:
    return (folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-_LAST:]
