"""Forms of hosts and ports: gRPC and URLs need IPv6 addresses in brackets, sockets need them bare."""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache

EVERY_ADDRESS = "::"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d+)?")


def bare_host(host: str) -> str:
    """Remove the brackets of an IPv6 address; any other host stays as it is.

    Raises:
        ValueError: the host has a colon but is no IPv6 address, such as host:port.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare or bare != host:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError:
            raise ValueError("must be a name or an address without a port") from None
    return bare


def host_port(host: str, port: int) -> str:
    """Join host and port for gRPC or a URL."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of sockets that can be bound to a host; names are looked up as IPv4."""
    return socket.AF_INET6 if ":" in bare_host(host) else socket.AF_INET


def listening_host(host: str) -> str:
    """Return the host to bind a socket to. :: means every address of both families, as in gRPC; on a machine without
    IPv6 it is every IPv4 address.
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


def name_of(host: str) -> str:
    """Return the name or the bare address of a Host header, lower case; empty where the header is none."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found is not None else ""


@lru_cache(maxsize=64)
def is_own_name(host: str) -> bool:
    """Return whether a Host header is an address, or a name that leads to this machine only."""
    name = name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
