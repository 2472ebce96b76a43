"""The API key that a client sends, and checks of where it may go."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ApiKey = str | Callable[[], str]
"""A key, or a function that returns the current one. The function is called before every attempt, so that keys can
change while a client runs."""

_HEADER = re.compile(r"[a-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key as metadata. The key is kept out of repr and of every error."""

    key: ApiKey = field(repr=False)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one attempt.

        Raises:
            ValueError: the key can't be sent.
        """
        key = self.key() if callable(self.key) else self.key
        # gRPC would print a value that it can't send, and this one is secret.
        if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("the API key must be printable ASCII without spaces or line ends, and not empty")
        return (("authorization", f"Bearer {key}"),)


def check_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Check that gRPC can send the metadata that a caller adds. gRPC's own errors name no header, and those of its
    asyncio stack have an unexpected type. Errors do not repeat values, because they may be secret.

    Raises:
        ValueError: a name or a value can't be sent.
        TypeError: they are of another type.
    """
    for pair in metadata:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError("metadata: must be pairs of a name and a value")
        name, value = pair
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"metadata: {name!r} must be lower case letters, digits, dots, dashes and underscores")
        if not isinstance(value, str | bytes):
            raise TypeError(f"metadata: the value of {name!r} must be text or bytes, got {type(value).__name__}")
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if not (name.endswith("-bin") or (text.isascii() and text.isprintable())):
            raise ValueError(f"metadata: the value of {name!r} must be printable ASCII without line ends")


def check_plaintext(targets: Sequence[str]) -> None:
    """Check that a key sent in the clear stays on this machine.

    Raises:
        ValueError: a target is on another machine.
    """
    if away := [target for target in targets if not is_local(target)]:
        raise ValueError(
            f"the API key would cross the network in the clear to {', '.join(away)}: "
            f"give tls, or allow_plaintext_key=True where the network is trusted"
        )


def is_local(target: str) -> bool:
    """Return whether a gRPC target is certainly on this machine; a name other than localhost could be anywhere."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    address = target
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        address = address.removeprefix(scheme)
    # dns://authority/host:port
    address = address.rpartition("/")[2] if address.startswith("//") else address
    return all(_is_loopback(_host(one)) for one in address.split(","))


def _host(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
