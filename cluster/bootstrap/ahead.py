"""Checks before Ray and engines are started, which takes minutes."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from redis.exceptions import BusyLoadingError

from cluster.addresses import family_of, free_port, listening_host
from cluster.bootstrap.models import check_hub, check_model, hub_models
from cluster.bootstrap.ready import POLL_S, Progress
from cluster.bootstrap.redis_server import LOAD_TIMEOUT_S, find_server
from cluster.errors import BootstrapError, QueueUnavailableError, SettingsError
from cluster.redis.check import check_redis
from cluster.redis.connections import ConnectionSource
from cluster.settings import RedisSettings, Settings
from cluster.trust.file_watch import read_bytes
from cluster.trust.tls import TlsFiles, check_link

LEAST_FREE = 64 << 20
"""Least bytes that the state folder's disk must have free."""
HTTP_PORT = 8000
"""Port of the HTTP API where nobody asks for another one."""


def check_ahead(settings: Settings) -> None:
    """Check models, keys, certificates, the router's port and the options in Redis' address.

    Raises:
        SettingsError: a file that the settings name is missing, certificates and keys don't fit, a certificate's time
            is not now, the port is in use, or Redis' address has an unknown option.
    """
    for check in file_checks(settings):
        check()
    if settings.redis.url:
        ConnectionSource(settings.redis.url, settings.redis.timeout_s, key="")
    router = settings.router
    ports = range(router.metrics_port, router.metrics_port + router.processes) if router.metrics_port else ()
    if taken := [port for port in ports if port_taken(router.host, port)]:
        raise _in_use("router.metrics_port", router.host, taken[0], "")
    if router.http.port and port_taken(router.host, router.http.port):
        raise _in_use("router.http.port", router.host, router.http.port, " with --http-port")
    if router.port and port_taken(router.host, router.port):
        raise _in_use("router.port", router.host, router.port, " with --port")


def file_checks(settings: Settings) -> Iterator[Callable[[], object]]:
    """Yield a check of each model, certificate, and file of keys or issuers that settings name. It raises SettingsError
    where one is missing, does not fit or has a time that is not now.
    """
    for name, pool in settings.pools.items():
        yield partial(check_model, name, pool)
    if settings.auth.keys_file is not None:
        # Routers check its content.
        yield partial(read_bytes, settings.auth.keys_file, "auth.keys_file")
    for name, issuer in settings.auth.jwt.items():
        for field in ("jwks_file", "ca_file", "token_file"):
            if (path := getattr(issuer, field)) is not None:
                yield partial(read_bytes, path, f"auth.jwt.{name}.{field}")
    router, link = settings.router.tls, settings.replica.tls
    if router is not None:
        # A router alone starts: in Kubernetes the next certificate may be on its way, and counts without a restart.
        yield lambda: TlsFiles.of_router(router).require_valid()
    if link is not None:
        # In a Ray cluster that is there already, replicas may have other files.
        if settings.cluster.ray_address:
            yield lambda: TlsFiles.of_link(link).require_valid()
        else:
            yield partial(check_link, link)


def check_embedded(folder: Path, binary: str) -> None:
    """Check that the embedded Redis has a program, and can write its file in the state folder.

    Raises:
        BootstrapError: there is no such program, the folder can't be made, or its disk is full.
    """
    if binary and shutil.which(binary) is None:
        raise BootstrapError("redis", f"redis.server_binary: {binary} can't be run: there is no such program")
    if not binary:
        find_server()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise BootstrapError("redis", f"the state folder {folder} cannot be used: {error.strerror}") from error
    if free < LEAST_FREE:
        needed = f"{LEAST_FREE >> 20} MiB are needed; free some, or give another --state-dir"
        raise BootstrapError("redis", f"the disk of the state folder {folder} has {free >> 20} MiB free: {needed}")


async def check_given(redis: RedisSettings, pool: str, progress: Progress) -> tuple[str, ...]:
    """Check the Redis of the settings; wait while it reads its data. Return what its operator should know.

    Raises:
        SettingsError: it can't be used.
    """
    until = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        try:
            return (await check_redis(redis.url, pool, redis.timeout_s, allow_eviction=redis.allow_eviction)).warnings
        except QueueUnavailableError as error:
            if not isinstance(error.__cause__, BusyLoadingError) or time.monotonic() > until:
                raise SettingsError(str(error)) from error
            progress("redis", "reading its data")
            await asyncio.sleep(POLL_S)


async def check_hubs(settings: Settings, progress: Progress) -> None:
    """Check that models from a hub can be had.

    Raises:
        SettingsError: one can't.
    """
    for name, setting, source in hub_models(settings):
        progress(f"model {source.name}", "looking it up")
        await asyncio.to_thread(check_hub, name, setting, source)
        progress(f"model {source.name}", "ready")


def with_http(settings: Settings) -> tuple[Settings, bool]:
    """Return the settings with a port of the HTTP API, and whether any other one will do. A port that the settings give
    stays.
    """
    router = settings.router
    if router.http.port is not None:
        return settings, False
    http = router.http.model_copy(
        update={"port": free_port(router.host) if port_taken(router.host, HTTP_PORT) else HTTP_PORT}
    )
    return settings.model_copy(update={"router": router.model_copy(update={"http": http})}), True


def _in_use(setting: str, host: str, port: int, how: str) -> SettingsError:
    owner = _listener(port)
    by = "" if owner is None else f" by process {owner}"
    return SettingsError(f"{setting}: {port} on {host} is in use{by}; choose another one{how}")


def _listener(port: int) -> str | None:
    """Return the id and name of a process that listens on a port; None where this user can't see any."""
    with suppress(psutil.Error, OSError):
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        found = [(each.pid, getattr(each.laddr, "port", None)) for each in listening]
        # Of several, such as routers that share the port, the first is enough to find the others.
        pid = min((pid for pid, at in found if pid and at == port), default=None)
        return None if pid is None else f"{pid} ({psutil.Process(pid).name()})"
    return None


def port_taken(host: str, port: int) -> bool:
    """Return whether the port is in use. Routers can share a port, even with those of another cluster."""
    host = listening_host(host)
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # The router reports other problems of the address.
            return error.errno == errno.EADDRINUSE
    return False
