"""Authentication: from the credentials of a call to its caller."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from prometheus_client import CollectorRegistry

from cluster.clock import Clock, SystemClock
from cluster.errors import TooManyAttemptsError, UnauthenticatedError
from cluster.lifecycle import timeout_awake
from cluster.settings import Settings, access_of
from cluster.trust.file_watch import OnReload, Watched
from router.identity.attempts import Attempts
from router.identity.caller import ANONYMOUS, Caller, Role
from router.identity.keys_file import read_keys_file
from router.identity.metrics import IdentityMetrics
from router.identity.table import Entry, KeyTable, Validity

if TYPE_CHECKING:
    from router.identity.issuers.tokens import Issuer

_LOG = logging.getLogger(__name__)

HEADER = "authorization"
_SCHEME = "bearer"
LOOK_S = 1.0
"""Pause between two looks at the keys file."""


KEYS_FILE = "auth.keys_file"
"""Name of the keys file in logs and metrics."""
_TOKEN = re.compile(r"eyJ[^.]*\.[^.]*\.[^.]*")

Bearer: TypeAlias = Callable[[str], Entry | None]
"""A kind of bearer credential: returns the entry of a credential, or None for one of another kind or that it does not
know. Raises UnauthenticatedError for one of its kind that is wrong."""


class Authenticator:
    """Authentication of calls: by the key or token in the call's metadata, else by the client certificate of the
    connection. A call without any is anonymous.

    Credentials in a call must be right, even where callers without credentials are let in. A client that means to call
    as one tenant must not end up as another.
    """

    def __init__(
        self,
        settings: Settings,
        on_reload: OnReload = lambda _name, _good: None,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Read the keys. `registry` gets the metrics.

        Raises:
            SettingsError: a file is not valid, or no client could call.
        """
        access = access_of(settings)
        self._anonymous = replace(ANONYMOUS, role=Role[access.role.upper()]) if access.anonymous else None
        self._clock = clock or SystemClock()
        path = settings.auth.keys_file
        self._file = (
            Watched(KEYS_FILE, [path], lambda: KeyTable(read_keys_file(path)), on_reload) if path is not None else None
        )
        issuers = _open_issuers(settings, self._clock, on_reload)
        self._issuers = issuers
        self.bearers = self._chain(issuers)
        """Kinds of bearer credentials, in the order in which they are tried."""
        self._attempts = Attempts(settings.auth.failures_per_minute, self._clock)
        if registry is not None:
            registry.register(IdentityMetrics(self._attempts, issuers))

    def _chain(self, issuers: Sequence[Issuer]) -> list[Bearer]:
        """Return the kinds of bearer credentials, in the order in which they are tried."""
        kinds: list[Bearer] = []
        if self._file is not None:
            kinds.append(self._by_file)
        if issuers:
            from router.identity.issuers.tokens import Tokens

            kinds.append(Tokens(issuers))
        return kinds

    async def watch(self) -> NoReturn:
        """Apply changes of the keys file about a second after they are written, and keep issuers' keys new; runs until
        it is cancelled.
        """
        async with asyncio.TaskGroup() as group:
            for issuer in self._issuers:
                group.create_task(issuer.keys.keep())
            while True:
                await asyncio.sleep(LOOK_S)
                await self.refresh()

    async def issuers_known(self, seconds: float) -> list[str]:
        """Wait for the first keys of every issuer, for so long at most, while `watch` runs. Return the names of those
        that did not come.
        """
        waits = {issuer.name: asyncio.ensure_future(issuer.keys.first()) for issuer in self._issuers}
        if waits:
            with suppress(TimeoutError):
                async with timeout_awake(seconds):
                    await asyncio.wait(waits.values())
        missing = [name for name, wait in waits.items() if not wait.done()]
        for wait in waits.values():
            wait.cancel()
        return missing

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
            TooManyAttemptsError: they were not looked at, because their address sent too many wrong ones.
            IssuerUnavailableError: they are a token whose key is not known yet.
        """
        credential = bearer(context.invocation_metadata() or ())
        if credential is not None:
            return self._within_limit(credential, context)
        if (
            self._file is not None
            and (entry := _by_certificate(context.auth_context(), self._file.content)) is not None
        ):
            return self._now_valid(entry)
        if self._anonymous is None:
            raise UnauthenticatedError("credentials are missing: send `authorization: Bearer <API key>`")
        return self._anonymous

    def _within_limit(self, credential: str, context: Any) -> Caller:
        attempts = self._attempts
        if not attempts.quiet and (wait_s := attempts.wait_s(context.peer_address(), credential)):
            raise TooManyAttemptsError(attempts.limit, wait_s)
        try:
            caller = self._now_valid(self._by_bearer(credential))
        except UnauthenticatedError:
            attempts.failed(context.peer_address(), credential)
            raise
        attempts.succeeded(credential)
        return caller

    def _by_bearer(self, credential: str) -> Entry:
        if not credential.isascii():
            # HTTP headers may have any bytes. Those that are no text can't even be hashed.
            raise UnauthenticatedError("the API key is not known: no key or token has other characters than ASCII")
        for kind in self.bearers:
            if (entry := kind(credential)) is not None:
                return entry
        if self._file is None and not self._issuers and self._anonymous is not None:
            told = (
                "the API key is not known: auth.keys_file is unset, and the registry has no such key; call without one"
            )
            raise UnauthenticatedError(told)
        if _TOKEN.fullmatch(credential) and not self._issuers:
            raise UnauthenticatedError("this router takes no tokens (auth.jwt is unset); send an API key")
        raise UnauthenticatedError("the API key is not known")

    def _by_file(self, credential: str) -> Entry | None:
        return self._file.content.by_key(credential) if self._file is not None else None

    def _now_valid(self, entry: Entry) -> Caller:
        validity = entry.validity(self._clock.wall_ms())
        if validity is not Validity.VALID:
            what = entry.caller.credential.kind.value
            # The name is public. It shows the operator which key or certificate was not renewed.
            _LOG.warning("auth.refused", extra={"what": what, "entry": entry.name, "why": validity.value})
            raise UnauthenticatedError(f"the {what} is {validity.value}")
        return entry.caller


def _open_issuers(settings: Settings, clock: Clock, on_reload: OnReload) -> list[Issuer]:
    if not settings.auth.jwt:
        return []
    # It takes a good part of a second to import, and most clusters have no issuer.
    from router.identity.issuers.tokens import open_issuers

    return open_issuers(settings, clock, on_reload)


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the key or token in a call's metadata; None when there is none.

    Raises:
        UnauthenticatedError: there are several keys, or the header has no bearer token.
    """
    values = [value for name, value in metadata if name == HEADER]
    if not values:
        return None
    scheme, _, key = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != _SCHEME or not key.strip():
        raise UnauthenticatedError("`authorization` must be given once, as: Bearer <API key or token>")
    return key.strip()


def _by_certificate(connection: Mapping[str, Iterable[bytes]], table: KeyTable) -> Entry | None:
    # The TLS handshake has verified every certificate that gets here.
    return table.by_certificate(_texts(connection, "peer_uri"), _texts(connection, "x509_common_name"))


def _texts(connection: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [value.decode(errors="replace") for value in connection.get(name, ())]
