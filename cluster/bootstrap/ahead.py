"""Checks before Ray and engines are started, which takes minutes."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from cluster.addresses import family_of, listening_host
from cluster.errors import SettingsError
from cluster.redis.connections import ConnectionSource
from cluster.settings import PoolSettings, Settings
from cluster.trust.file_watch import read_bytes
from cluster.trust.tls import TlsFiles

_FOLDERS = ("/", "./", "../", "~")
"""Beginnings of a model's name that mean a folder, not a name on a hub."""


def check_ahead(settings: Settings) -> None:
    """Check models, keys, certificates, the router's port and the options in Redis' address.

    Raises:
        SettingsError: a model's folder or the keys file is missing, certificates and keys don't fit, the port is in
            use, or Redis' address has an unknown option.
    """
    for name, pool in settings.pools.items():
        check_model(name, pool)
    if settings.auth.keys_file is not None:
        # Routers check its content.
        read_bytes(settings.auth.keys_file, "auth.keys_file")
    if settings.router.tls is not None:
        TlsFiles.of_router(settings.router.tls)
    if settings.replica.tls is not None:
        TlsFiles.of_link(settings.replica.tls)
    if settings.redis.url:
        ConnectionSource(settings.redis.url, settings.redis.timeout_s, key="")
    router = settings.router
    if router.port and _taken(router.host, router.port):
        raise SettingsError(f"router.port: {router.port} on {router.host} is in use; choose another one with --port")


def check_model(name: str, pool: PoolSettings) -> None:
    """Check that a pool's model exists if it is a folder. A missing one would be looked up on a hub, several times.

    Raises:
        SettingsError: the folder does not exist.
    """
    if pool.model.startswith(_FOLDERS) and not Path(pool.model).expanduser().is_dir():
        raise SettingsError(f"pools.{name}.model: there is no folder {pool.model}")


def _taken(host: str, port: int) -> bool:
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
