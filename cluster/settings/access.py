"""Access to a router without credentials."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.addresses import is_loopback
from cluster.errors import SettingsError
from cluster.settings.auth import RoleName
from cluster.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Access:
    """Access of callers without credentials, derived from the settings."""

    anonymous: bool
    """Whether callers without credentials are let in."""
    role: RoleName
    """Role of callers without credentials."""


def access_of(settings: Settings) -> Access:
    """Return whether callers need credentials. A router is open only on a loopback address with neither a keys file nor
    issuers, or where the settings say so.

    Raises:
        SettingsError: no caller could get in.
    """
    auth, host = settings.auth, settings.router.host
    local = not auth.credentials and is_loopback(host)
    anonymous = local if auth.anonymous is None else auth.anonymous
    if not anonymous and not auth.credentials:
        why = "auth.anonymous is false" if auth.anonymous is False else f"router.host {host!r} is no loopback address"
        raise SettingsError(
            f"auth.keys_file: must be set, because {why} and no caller could prove who it is (`penstock keys new` "
            f"writes the file; auth.jwt takes tokens of an issuer); auth.anonymous = true lets everybody in"
        )
    return Access(anonymous, auth.anonymous_role or ("admin" if local else "user"))
