"""Access to a router without credentials."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from cluster.errors import SettingsError
from cluster.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Access:
    """Access of callers without credentials, derived from the settings."""

    anonymous: bool
    """Whether callers without credentials are let in."""
    role: Literal["user", "operator", "admin"]
    """Role of callers without credentials."""


def access_of(settings: Settings) -> Access:
    """Return whether callers need credentials. A router is open only on a loopback address without a keys file, or
    where the settings say so.

    Raises:
        SettingsError: no caller could get in.
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
    """Return whether only processes of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
