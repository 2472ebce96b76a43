"""Hosts and ports as others want them: gRPC and URLs have IPv6 addresses in brackets, sockets have them bare."""

from __future__ import annotations

import ipaddress
import socket

EVERY_ADDRESS = "::"


def bare_host(host: str) -> str:
    """Take the brackets off an IPv6 address; everything else stays as it is.

    Raises:
        ValueError: it has a colon but is no IPv6 address, such as host:port.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare or bare != host:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError:
            raise ValueError("must be a name or an address without a port") from None
    return bare


def host_port(host: str, port: int) -> str:
    """Join both for gRPC or a URL."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Say which sockets can be bound to a host; names are looked up as IPv4."""
    return socket.AF_INET6 if ":" in bare_host(host) else socket.AF_INET


def listening_host(host: str) -> str:
    """Return what a socket is bound to. :: is every address of both families, and those that there are on a machine
    without IPv6; gRPC takes it for the same.
    """
    bare = bare_host(host)
    if bare != EVERY_ADDRESS:
        return bare
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((bare, 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104 - what was asked for
    return bare


def free_port(host: str) -> int:
    """Return a port that was free a moment ago."""
    host = listening_host(host)
    with socket.socket(family_of(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
