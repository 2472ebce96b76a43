"""Reason why a router can't be reached, found by a connection of our own. gRPC's text often does not say it."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass

_TIMEOUT_S = 2.0
_TARGET = re.compile(r"(?P<host>\[[^]]+\]|[^:/\[\],]+):(?P<port>\d{1,5})")
_SPEAKS_TLS = "the router speaks TLS: give --tls-ca FILE with its authority, or --tls for a public one"
_NO_CERTIFICATE = "the router asks for a client certificate: give --tls-cert and --tls-key"
_START = "`penstock up` starts a cluster here, --target names another one"


@dataclass(frozen=True, slots=True)
class Tried:
    """How a command tried to reach a router."""

    target: str
    tls: bool = False
    ca: bytes | None = None
    """Authorities in PEM; None trusts the public ones."""
    server_name: str = ""
    shows_certificate: bool = False


def diagnose(tried: Tried, said: str) -> str:
    """Return what is wrong and what to do about it, as a sentence; empty where that is not known.

    `said` is gRPC's own text. Takes some seconds at most.
    """
    if "http1.x" in said or "Failed parsing HTTP/2" in said:
        return "this port speaks HTTP and not gRPC; give the router's own port, by default 50051"
    found = _TARGET.fullmatch(tried.target)
    if found is None:
        return ""
    host, port = found["host"].strip("[]"), int(found["port"])
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            return _with_tls(tried, host, connection) if tried.tls else _in_plain(host, connection)
    except ConnectionRefusedError:
        return f"nothing listens there; {_START}"
    except socket.gaierror as error:
        return f"there is no host {host}: {error.strerror}"
    except TimeoutError:
        return f"there is no answer from {host}; is it the right address, and open in the firewall?"
    except OSError as error:
        return f"{error.strerror or error}"


def _in_plain(host: str, connection: socket.socket) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only to see whether the port speaks TLS. Nothing is sent over this connection.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return _SPEAKS_TLS
    except ssl.SSLError as error:
        return _SPEAKS_TLS if "ALERT" in str(error.reason) else ""
    except (OSError, ValueError):
        return ""


def _with_tls(tried: Tried, host: str, connection: socket.socket) -> str:
    # Not Python's default context, which refuses certificates that gRPC takes.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tried.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=tried.ca.decode())
    except (ssl.SSLError, ValueError):
        return "--tls-ca has no certificate in PEM"
    context.set_alpn_protocols(["h2"])
    name = tried.server_name or host
    try:
        with context.wrap_socket(connection, server_hostname=name) as wrapped:
            # Under TLS 1.3 a server that asks for a certificate ends the connection after the handshake. Another one
            # sends its HTTP/2 settings.
            ended = not wrapped.recv(1)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_WRONG_NAME, _WRONG_ADDRESS):
            return f"the router's certificate is not for {name}; --tls-server-name gives the name that it has"
        if error.verify_code in _NOT_NOW:
            return f"the router's certificate is not valid now ({error.verify_message}); its operator can renew it"
        file = "the public authorities" if tried.ca is None else "the authorities in --tls-ca"
        return f"the router's certificate does not come from {file} ({error.verify_message})"
    except ssl.SSLError as error:
        return _handshake(tried, str(error.reason or error))
    except (OSError, ValueError):
        return ""
    return _NO_CERTIFICATE if ended and not tried.shows_certificate else ""


_WRONG_NAME, _WRONG_ADDRESS = 62, 64
"""OpenSSL's codes for a certificate of another host name, and of another IP address."""
_NOT_NOW = (9, 10)
"""OpenSSL's codes for a certificate that is not yet valid, and for one that has expired."""


def _handshake(tried: Tried, reason: str) -> str:
    if any(word in reason for word in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")) and not tried.shows_certificate:
        return _NO_CERTIFICATE
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason or "UNEXPECTED_EOF" in reason:
        return "the router does not speak TLS: leave the --tls flags out"
    return ""
