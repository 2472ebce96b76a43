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
    """host:port of each router. Requests go to one after the other."""
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

    def connection(self) -> Connection:
        """Describe the connection.

        Raises:
            SettingsError: the parts don't fit together, or a file can't be read.
        """
        if bool(self.cert) != bool(self.key):
            raise SettingsError("a certificate and its key must be given together")
        tls = None
        if self.tls or self.ca or self.cert:
            tls = Tls(_read(self.ca), _read(self.cert), _read(self.key), self.server_name)
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
    """Read a list of host:port, separated by commas.

    Raises:
        SettingsError: the list is empty, or an entry is an HTTP URL.
    """
    routers = tuple(part.strip().removeprefix("grpc://") for part in text.split(",") if part.strip())
    if not routers:
        raise SettingsError("host must name routers as host:port, separated by commas; it is empty")
    if wrong := [router for router in routers if router.startswith(("http://", "https://"))]:
        raise SettingsError(f"host must name gRPC routers as host:port, got {', '.join(wrong)}")
    return routers


def _read(name: str) -> bytes | None:
    try:
        return Path(name).expanduser().read_bytes() if name else None
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}") from error
