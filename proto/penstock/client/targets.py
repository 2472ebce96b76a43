"""Addresses of routers, as callers give them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from penstock.values.fields import check_text, unfit

DEFAULT_PORT = 50_051
LAST_PORT = 65_535
"""Largest port. Of a larger one gRPC would use only the low 16 bits."""

_OF_GRPC = ("dns", "unix", "unix-abstract", "ipv4", "ipv6", "vsock", "xds", "passthrough")
"""Schemes that gRPC resolves by itself. Targets with one of these go to it as they are."""
_PORT = re.compile(r":0*(\d+)$")


def checked_targets(targets: str | Sequence[str], *, tls: bool) -> tuple[str, ...]:
    """Return the targets as a tuple. With TLS a host alone means port 443.

    Raises:
        ValueError: there is none, or one is not host:port; says what to write instead.
        TypeError: one is no text.
    """
    if not isinstance(targets, Iterable):
        raise unfit("targets", "text, or a sequence of texts", targets)
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    for name in names:
        check_text("targets", name)
    if not names or not all(names):
        raise ValueError(f"targets: at least one is needed and none may be empty, got {names}")
    for name in names:
        _check(name, tls)
    return names


def _check(target: str, tls: bool) -> None:
    scheme, _, rest = target.partition(":")
    if scheme in _OF_GRPC:
        if not scheme.startswith("unix"):
            _check_port(target)
        return
    if rest.startswith("//"):
        address = rest.removeprefix("//").split("/")[0]
        hint = " with tls=Tls()" if scheme in ("https", "grpcs") else ""
        raise ValueError(f"targets: must be host:port, without {scheme}://, got {target!r}: write {address!r}{hint}")
    if "/" in target or any(letter.isspace() for letter in target):
        raise ValueError(f"targets: must be host:port, without a path or spaces, got {target!r}")
    if _is_ipv6(target):
        raise ValueError(f"targets: must be host:port, such as [{target}]:{DEFAULT_PORT}, got {target!r}")
    if _check_port(target):
        return
    # gRPC would take port 443 without a word, which is likely right only with TLS.
    if not tls or ":" in target.rpartition("]")[2]:
        host = target if target.startswith("[") else target.partition(":")[0]
        raise ValueError(f"targets: must be host:port, such as {host}:{DEFAULT_PORT}, got {target!r}")


def _check_port(target: str) -> bool:
    """Return whether the target ends with a port.

    Raises:
        ValueError: there is no such port.
    """
    port = _PORT.search(target)
    # Of a number of any length the first digits tell enough.
    if port is not None and not 0 < int(port[1][:6]) <= LAST_PORT:
        raise ValueError(f"targets: a port must be 1 to {LAST_PORT}, got {target!r}")
    return port is not None


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
