"""A local Ray cluster that depends on nothing in the user's environment and leaves nothing outside the state folder."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import Progress, wait_file
from cluster.bootstrap.socket_dir import RAY, SocketDir
from cluster.errors import BootstrapError
from cluster.settings import Settings

_LOG = logging.getLogger(__name__)

RAY_TIMEOUT_S = 120.0
RAY_ATTEMPTS = 3
_AT_ONCE_S = 12.0
"""An end within this many seconds has a cause that another attempt would meet again."""
_LONGEST_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_OURS = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
    # Ray starts workers at niceness 15; replicas are the product here, not background work.
    "RAY_worker_niceness": "0",
    # It would start as many workers as it is told of CPUs before anybody needs them.
    "RAY_prestart_worker_first_driver": "0",
    # Seconds between loops of the Serve controller. Its default of 0.1 takes 3 % of a core from the engines.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_AUTH_MODE": "token",
}


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running local Ray cluster."""

    process: ChildProcess
    folder: SocketDir
    api: str
    """Address of Serve's API, http://host:port."""
    token_file: Path
    """File with the bearer token of the API."""
    dashboard: str
    """Address of Ray's dashboard; empty without one."""
    gpus: int


def ray_environment(environ: Mapping[str, str], temporary: Path, token_file: Path) -> dict[str, str | None]:
    """Return the changes to the environment of Ray's processes; None removes a variable.

    Variables of Ray's in capitals choose a cluster, credentials or ways to run that were meant for something else, such
    as RAY_ADDRESS. Those in small letters tune Ray, and stay.
    """
    return {
        **dict.fromkeys(foreign_variables(environ)),
        **_OURS,
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        # So that what Ray, torch or vLLM leave behind goes with the folder.
        "TMPDIR": str(temporary),
    }


def foreign_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of Ray's variables that are kept from a local Ray."""
    return sorted(name for name in environ if name.startswith("RAY_") and name.upper() == name and name not in _OURS)


async def start_local_ray(settings: Settings, run_dir: Path, progress: Progress) -> LocalRay:
    """Start Ray and the Serve controller.

    Raises:
        BootstrapError: Ray did not come up. None of its processes is left.
    """
    progress("ray", "starting a local cluster")
    if foreign := foreign_variables(os.environ):
        _LOG.warning("ray.variables_ignored", extra={"variables": ", ".join(foreign)})
    for attempt in range(1, RAY_ATTEMPTS + 1):
        began = time.monotonic()
        try:
            started = await _start(settings, run_dir, progress)
        except BootstrapError:
            # Ray's own agents must come up within 15 s, which a busy machine can miss; Ray has no setting for it.
            if attempt == RAY_ATTEMPTS or time.monotonic() - began < _AT_ONCE_S:
                raise
            progress("ray", f"it did not come up in its own time; attempt {attempt + 1} of {RAY_ATTEMPTS}")
        else:
            progress("ray", "ready")
            return started
    raise AssertionError("the last attempt returns or raises")


async def _start(settings: Settings, run_dir: Path, progress: Progress) -> LocalRay:
    ready_file, token_file = run_dir / "ray.json", run_dir / "ray-token"
    ready_file.unlink(missing_ok=True)
    _write_token(token_file)
    folder = SocketDir(RAY, _LONGEST_SOCKET)
    try:
        command = [
            *(sys.executable, "-m", "cluster.bootstrap.ray_host", "--ready-file", str(ready_file)),
            *("--token-file", str(token_file), "--temp-dir", str(folder.path)),
            *(["--dashboard"] if settings.cluster.ray_dashboard else []),
        ]
        environment = ray_environment(os.environ, folder.path, token_file)
        process = await ChildProcess.start("ray", command, run_dir / "ray.log", environment)
        try:
            fields: dict[str, Any] = await wait_file(
                ready_file, process, RAY_TIMEOUT_S, lambda: progress("ray", "starting a local cluster")
            )
        except BaseException:
            # Its descendants may outlive it.
            await process.stop_family(10.0)
            raise
    except BaseException:
        folder.remove()
        raise
    return LocalRay(process, folder, fields["api"], token_file, fields["dashboard"], int(fields["gpus"]))


def _write_token(path: Path) -> None:
    """Write a new bearer token. Ray would make one in the home folder, which may not exist or be another user's."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
