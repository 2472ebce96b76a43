"""Authentication: from the credentials of a call to its caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from cluster.clock import Clock, SystemClock
from cluster.errors import UnauthenticatedError
from cluster.settings import Settings, access_of
from cluster.trust.file_watch import OnReload, Watched
from router.identity.caller import ANONYMOUS, Caller, Role
from router.identity.keys_file import read_keys_file
from router.identity.table import Entry, KeyTable, Validity

_LOG = logging.getLogger(__name__)

HEADER = "authorization"
_SCHEME = "bearer"
LOOK_S = 1.0
"""Pause between two looks at the keys file."""


KEYS_FILE = "auth.keys_file"
"""Name of the keys file in logs and metrics."""


class Authenticator:
    """Authentication of calls: by the key in the call's metadata, else by the client certificate of the connection. A
    call without both is anonymous.

    Credentials in a call must be right, even where callers without credentials are let in. A client that means to call
    as one tenant must not end up as another.
    """

    def __init__(
        self,
        settings: Settings,
        on_reload: OnReload = lambda _name, _good: None,
        clock: Clock | None = None,
    ) -> None:
        """Read the keys.

        Raises:
            SettingsError: the keys file is not valid, or no client could call.
        """
        access = access_of(settings)
        self._anonymous = replace(ANONYMOUS, role=Role[access.role.upper()]) if access.anonymous else None
        self._clock = clock or SystemClock()
        path = settings.auth.keys_file
        self._file = (
            Watched(KEYS_FILE, [path], lambda: KeyTable(read_keys_file(path)), on_reload) if path is not None else None
        )

    async def watch(self) -> NoReturn:
        """Apply changes of the keys file about a second after they are written; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the keys file now if it has changed."""
        if self._file is not None:
            await asyncio.to_thread(self._file.refresh)

    def __call__(self, context: Any) -> Caller:
        """Return the caller.

        Args:
            context: that of the call.

        Raises:
            UnauthenticatedError: the call needs credentials and has none, or its credentials are wrong.
        """
        key = bearer(context.invocation_metadata() or ())
        table = self._file.content if self._file is not None else None
        if key is not None:
            return self._by_key(key, table)
        if table is not None and (entry := _by_certificate(context.auth_context(), table)) is not None:
            return self._now_valid(entry, "client certificate")
        if self._anonymous is None:
            raise UnauthenticatedError("credentials are missing: send metadata `authorization: Bearer <API key>`")
        return self._anonymous

    def _by_key(self, key: str, table: KeyTable | None) -> Caller:
        if table is None:
            raise UnauthenticatedError("this router knows no API keys (auth.keys_file is unset); call without one")
        entry = table.by_key(key)
        if entry is None:
            raise UnauthenticatedError("the API key is not known")
        return self._now_valid(entry, "API key")

    def _now_valid(self, entry: Entry, what: str) -> Caller:
        validity = entry.validity(self._clock.wall_ms())
        if validity is not Validity.VALID:
            # The name is public. It shows the operator which key or certificate was not renewed.
            _LOG.warning("auth.refused", extra={"what": what, "entry": entry.name, "why": validity.value})
            raise UnauthenticatedError(f"the {what} is {validity.value}")
        return entry.caller


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the key in a call's metadata; None when there is none.

    Raises:
        UnauthenticatedError: there are several keys, or the header has no bearer token.
    """
    values = [value for name, value in metadata if name == HEADER]
    if not values:
        return None
    scheme, _, key = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != _SCHEME or not key.strip():
        raise UnauthenticatedError("metadata `authorization` must be given once, as: Bearer <API key>")
    return key.strip()


def _by_certificate(connection: Mapping[str, Iterable[bytes]], table: KeyTable) -> Entry | None:
    # The TLS handshake has verified every certificate that gets here.
    return table.by_certificate(_texts(connection, "peer_uri"), _texts(connection, "x509_common_name"))


def _texts(connection: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [value.decode(errors="replace") for value in connection.get(name, ())]
