"""TLS on gRPC ports and links, with certificates that may be replaced while streams are open.

A server looks at its files when a connection comes, once a second at most. Open connections keep the certificate that
they began with, so nothing is cut. To lock out a client at once, its connection must be closed.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

from cluster.addresses import bare_host
from cluster.errors import SettingsError
from cluster.settings import ReplicaTlsSettings, RouterTlsSettings
from cluster.trust.file_watch import OnReload, Watched, read_bytes
from cluster.trust.validity import Validity, read_validity
from cluster.wire.framing import ALPN, OtherProtocolError

_LOG = logging.getLogger(__name__)

Connection = TypeVar("Connection", bound=asyncio.BaseProtocol)
GRPC_ALPN = "h2"
"""Name of gRPC in TLS handshakes."""
LOOK_S = 1.0
"""Shortest time in seconds between two looks of a server at its files. Each is a call to the disk or more, and in a
storm of handshakes there are a thousand a second."""
ROUTER_TLS = "router.tls"
"""Name of the router's certificate files in logs and metrics."""
LINK_TLS = "replica.tls"
"""The same of the files of either end of a link."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """A certificate with its key, and the authority that signs the peer's. PEM; the key is kept out of repr."""

    certificate: bytes
    private_key: bytes = field(repr=False)
    peer_ca: bytes | None
    """Authority that signs the peer's certificate; None asks the peer for none."""

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the certificate that a server shows and the authority that it trusts, for gRPC."""
        return grpc.ssl_server_certificate_configuration([(self.private_key, self.certificate)], self.peer_ca)


class TlsFiles(Watched[TlsMaterial]):
    """Material of one port or link, read again when its files change."""

    def __init__(
        self,
        section: str,
        certificate_file: Path,
        private_key_file: Path,
        peer_ca_file: Path | None,
        on_reload: OnReload = lambda _name, _good: None,
        *,
        names: tuple[str, str] | None = None,
    ) -> None:
        """Read the files.

        Args:
            section: name of the settings in errors.
            certificate_file: certificate, and those of the authorities between it and the one that clients trust.
            private_key_file: the certificate's key.
            peer_ca_file: authority that signs the peer's certificate; None asks the peer for none.
            on_reload: called for every noticed change.
            names: what certificate and key are called in errors, where they are no settings.

        Raises:
            SettingsError: a file is missing or not PEM, or the key does not belong to the certificate.
        """
        self._section = section
        self._names = names or (f"{section}.certificate_file", f"{section}.private_key_file")
        self._files = (certificate_file, private_key_file, peer_ca_file)
        self._validity: Validity | None = None
        self._told = False
        paths = [path for path in self._files if path is not None]
        super().__init__(section, paths, self._material, on_reload)
        self._looked_at = time.monotonic()
        self._tell()

    @classmethod
    def of_router(cls, settings: RouterTlsSettings, on_reload: OnReload = lambda _name, _good: None) -> TlsFiles:
        """Read the material of a router's public port."""
        return cls(ROUTER_TLS, settings.certificate_file, settings.private_key_file, settings.client_ca_file, on_reload)

    @classmethod
    def of_link(cls, settings: ReplicaTlsSettings, on_reload: OnReload = lambda _name, _good: None) -> TlsFiles:
        """Read the material of either end of a link."""
        return cls(LINK_TLS, settings.certificate_file, settings.private_key_file, settings.ca_file, on_reload)

    def _material(self) -> TlsMaterial:
        certificate, key, peer_ca = self._files
        material = TlsMaterial(
            read_bytes(certificate, self._names[0]),
            read_bytes(key, self._names[1]),
            read_bytes(peer_ca, f"{self._section} CA file") if peer_ca is not None else None,
        )
        self._check(certificate, key, peer_ca)
        self._validity, self._told = read_validity(certificate), False
        return material

    def refresh(self) -> bool:
        """Read the files if they changed; log once if the certificate's time is not now. Blocks on the disk."""
        changed = super().refresh()
        self._tell()
        return changed

    def problem(self) -> str:
        """Return why the certificate's time is not now and what to do about it; empty if it is."""
        now = datetime.datetime.now(datetime.UTC)
        problem = self._validity.problem(now) if self._validity is not None else ""
        return f"{self._names[0]}: {self._files[0]} {problem}" if problem else ""

    def require_valid(self) -> None:
        """Check that the certificate's time is now.

        Raises:
            SettingsError: it is not.
        """
        if problem := self.problem():
            raise SettingsError(problem)

    def _tell(self) -> None:
        # The peer refuses it, and its user rarely knows why.
        if not self._told and (problem := self.problem()):
            self._told = True
            _LOG.warning("certificate.not_valid", extra={"problem": problem})

    def _check(self, certificate: Path, key: Path, peer_ca: Path | None) -> None:
        # gRPC would accept a key of another certificate and then fail every handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            what = f"{certificate} and {key} are no certificate with its unencrypted private key"
            raise SettingsError(f"{self._section}: {what}: {error}") from error
        if peer_ca is not None:
            try:
                context.load_verify_locations(peer_ca)
            except (OSError, ValueError) as error:
                raise SettingsError(f"{self._section}: {peer_ca} has no CA certificate: {error}") from error

    def _look_again(self) -> None:
        """Read the files again if they changed, and if the last look is long enough ago."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.refresh()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port. With a peer CA only clients with a certificate of that CA can connect."""
        shown = self.version

        # gRPC calls this for every new connection, on its own thread.
        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            self._look_again()
            if self.version == shown:
                return None
            shown = self.version
            return self.content.configuration()

        require = self.content.peer_ca is not None
        # The type stubs lack that None means "unchanged".
        return grpc.dynamic_ssl_server_credentials(self.content.configuration(), fetch, require)  # type: ignore[arg-type]

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        """Return the TLS of a port that is not gRPC's, with the protocols that it speaks (ALPN). Every new connection
        gets the newest certificate that was seen.
        """
        shown, newest = self.version, self._context(protocols)

        # OpenSSL calls this for every handshake, also for one that names no server.
        def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal shown, newest
            self._look_again()
            if self.version != shown:
                try:
                    newest = self._context(protocols)
                    shown = self.version
                except (OSError, ValueError):
                    # The files are being replaced again. The next connection reads them.
                    return
            connection.context = newest

        first = self._context(protocols)
        first.sni_callback = renew
        return first

    def client_context(self, *protocols: str) -> ssl.SSLContext:
        """Return the TLS of a client that shows its certificate and speaks these protocols (ALPN).

        Raises:
            OSError: the files are being replaced.
        """
        return self._context(protocols, client=True)

    def _context(self, protocols: Sequence[str], *, client: bool = False) -> ssl.SSLContext:
        certificate, key, peer_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if client else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key, password=_no_password)
        if peer_ca is not None:
            context.load_verify_locations(peer_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        if protocols:
            context.set_alpn_protocols(protocols)
        return context


def check_link(settings: ReplicaTlsSettings) -> None:
    """Check that a router and a replica with these files would accept each other.

    Raises:
        SettingsError: they would not, or a file is not good.
    """
    files = TlsFiles.of_link(settings)
    files.require_valid()
    to_replica, to_router = ssl.MemoryBIO(), ssl.MemoryBIO()
    router = files.client_context().wrap_bio(to_router, to_replica, server_hostname=settings.server_name)
    replica = files.server_context().wrap_bio(to_replica, to_router, server_side=True)
    for end in (router, replica, router, replica):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            shown_by, why = "replica's" if end is router else "router's", getattr(error, "verify_message", "") or error
            raise SettingsError(
                f"replica.tls: {settings.certificate_file} does not do as a {shown_by} certificate with the authority "
                f"{settings.ca_file} and the server_name {settings.server_name!r}: {why}"
            ) from error


def _no_password() -> str:
    # Without this callback OpenSSL would ask for a password at the terminal.
    raise ValueError("the private key is encrypted")


class LinkDialer:
    """Factory of a router's connections to replicas, in the clear or over mutual TLS."""

    def __init__(self, settings: ReplicaTlsSettings | None, on_reload: OnReload = lambda _name, _good: None) -> None:
        """Read the certificate files, if any. `on_reload` is called for every noticed change.

        Raises:
            SettingsError: a file is missing or not PEM, or the key does not belong to the certificate.
        """
        self._files = TlsFiles.of_link(settings, on_reload) if settings is not None else None
        # Routers connect by address, and replicas' certificates have one common name instead of every address.
        self._server_name = settings.server_name if settings is not None else None
        self._context = self._files.client_context(ALPN, GRPC_ALPN) if self._files is not None else None
        self._version = 0

    async def connect(self, address: str, protocol: Callable[[], Connection]) -> Connection:
        """Connect to an address, host:port, with the newest certificates.

        Raises:
            OSError: nobody listens there, or TLS fails.
            OtherProtocolError: the peer is a replica of release 0.2, which only speaks gRPC.
        """
        host, _, port = address.rpartition(":")
        context = self._newest()
        name = self._server_name if context is not None else None
        transport, made = await asyncio.get_running_loop().create_connection(
            protocol, bare_host(host), int(port), ssl=context, server_hostname=name
        )
        if context is not None and transport.get_extra_info("ssl_object").selected_alpn_protocol() == GRPC_ALPN:
            transport.abort()
            raise OtherProtocolError(f"{address} only speaks gRPC")
        return made

    def _newest(self) -> ssl.SSLContext | None:
        if self._files is None:
            return None
        self._files.refresh()
        if self._files.version != self._version:
            with suppress(OSError, ValueError):
                # While files are being replaced the last context stays.
                version = self._files.version
                self._context = self._files.client_context(ALPN, GRPC_ALPN)
                self._version = version
        return self._context

    def dial(self, address: str, options: tuple[tuple[str, int], ...]) -> grpc.aio.Channel:
        """Open a gRPC channel to an address, for replicas of release 0.2."""
        if self._files is None:
            return grpc.aio.insecure_channel(address, options=list(options))
        self._files.refresh()
        material = self._files.content
        credentials = grpc.ssl_channel_credentials(material.peer_ca, material.private_key, material.certificate)
        named = [*options, ("grpc.ssl_target_name_override", self._server_name)]
        return grpc.aio.secure_channel(address, credentials, options=named)
