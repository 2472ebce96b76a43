"""The routers that a driver calls, and its identity there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError
from penstock.client import Tls
from penstock.client.connection import Access, Connection


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of requests."""

    routers: tuple[str, ...]
    """host:port of each router, or the base URL of each HTTP server. Requests go to one after the other."""
    model: str = ""
    """Model name. Empty: the only one that the cluster serves."""
    api_key: str = field(default="", repr=False)
    allow_plaintext_key: bool = False
    tls: bool = False
    """Whether to use TLS and trust the public authorities."""
    ca: str = ""
    """Use TLS and trust the authorities in this file (PEM)."""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    timeout_s: float = 600.0
    """Deadline of a request, in seconds from its sending."""
    flush_s: float | None = None
    """Seconds for which routers merge a stream's deltas. 0 sends each at once; None leaves it to the routers."""

    @property
    def http(self) -> bool:
        """Whether the target speaks OpenAI's HTTP API."""
        return _is_url(self.routers[0])

    def check(self, flags: str = "--tls") -> None:
        """Check that the parts fit together.

        Args:
            flags: what the names of the flags for certificates begin with.

        Raises:
            SettingsError: they don't, or a file can't be read.
        """
        if bool(self.cert) != bool(self.key):
            raise SettingsError("a certificate and its key must be given together")
        for part in ("ca", "cert", "key"):
            _read(getattr(self, part), f"{flags}-{part}")
        if not self.http:
            self.connection()
            return
        if self.flush_s is not None:
            raise SettingsError(f"flush-interval is for gRPC routers, got {self.flush_s:g} s with {self.routers[0]}")
        if self.api_key and not self.allow_plaintext_key and any(url.startswith("http:") for url in self.routers):
            raise SettingsError("a key would travel in the clear; use https, or allow-plaintext-key")

    def connection(self) -> Connection:
        """Describe the connection to gRPC routers.

        Raises:
            SettingsError: the parts don't fit together, or a file can't be read.
        """
        if self.http:
            raise SettingsError(f"host must name gRPC routers as host:port here, got {', '.join(self.routers)}")
        if bool(self.cert) != bool(self.key):
            raise SettingsError("a certificate and its key must be given together")
        tls = None
        if self.tls or self.ca or self.cert:
            tls = Tls(_read(self.ca, "ca"), _read(self.cert, "cert"), _read(self.key, "key"), self.server_name)
        access = Access(tls, self.api_key or None, self.allow_plaintext_key)
        try:
            return Connection.build(self.routers, access, None, None, ())
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for `from_wire`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Target:
        return cls(**{**wire, "routers": tuple(wire["routers"])})


def split_routers(text: str) -> tuple[str, ...]:
    """Read a list of host:port, or of base URLs, separated by commas.

    Raises:
        SettingsError: the list is empty, or has both.
    """
    routers = tuple(part.strip().removeprefix("grpc://") for part in text.split(",") if part.strip())
    if not routers:
        raise SettingsError("host must name routers as host:port, separated by commas; it is empty")
    urls = [router for router in routers if _is_url(router)]
    if urls and len(urls) < len(routers):
        raise SettingsError(f"host must name either gRPC routers or HTTP servers, got {', '.join(routers)}")
    return tuple(map(_base_url, urls)) or routers


def _is_url(router: str) -> bool:
    return router.startswith(("http://", "https://"))


def _base_url(url: str) -> str:
    """Return a URL with the version of the API at its end, which people leave out."""
    bare = url.rstrip("/")
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def _read(name: str, flag: str) -> bytes | None:
    try:
        return Path(name).expanduser().read_bytes() if name else None
    except OSError as error:
        raise SettingsError(f"{flag}: {name} cannot be read: {error.strerror}") from error
