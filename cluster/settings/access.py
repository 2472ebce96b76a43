"""Who may call a router without credentials."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from cluster.errors import SettingsError
from cluster.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Access:
    """Is the answer that follows from the settings."""

    anonymous: bool
    role: Literal["user", "operator", "admin"]
    """What callers without credentials may do."""


def access_of(settings: Settings) -> Access:
    """Work out whether callers need credentials. Open only where nobody else can connect, or where somebody said so.

    Raises:
        SettingsError: nobody could call.
    """
    auth, host = settings.auth, settings.router.host
    local = auth.keys_file is None and is_loopback(host)
    anonymous = local if auth.anonymous is None else auth.anonymous
    if not anonymous and auth.keys_file is None:
        why = "auth.anonymous is false" if auth.anonymous is False else f"router.host {host!r} is no loopback address"
        raise SettingsError(
            f"auth.keys_file: must be set, because {why} and no caller could prove who it is (`penstock keys new` "
            f"writes the file); auth.anonymous = true lets everybody in"
        )
    return Access(anonymous, auth.anonymous_role or ("admin" if local else "user"))


def is_loopback(host: str) -> bool:
    """Say whether only processes of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
