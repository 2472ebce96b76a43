"""Where an issuer's keys come from: its address, or a file."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import NoReturn, Protocol

from cluster.clock import Clock
from cluster.errors import SettingsError
from cluster.settings import IssuerSettings
from cluster.trust.file_watch import OnReload, Watched, read_bytes
from router.identity.issuers import jwks_setting
from router.identity.issuers.fetch import check_ca_file, fetch_keys
from router.identity.issuers.key_set import KeySet, KeySetError, read_key_set
from router.identity.issuers.schedule import FetchSchedule

_LOG = logging.getLogger(__name__)

LOOK_S = 1.0
"""Pause between two looks at a file, or at what is wanted from an issuer."""
_SOON_S = 0.05


class KeySource(Protocol):
    """Source of an issuer's newest keys."""

    @property
    def fetches(self) -> dict[str, int]:
        """Number of requests to the issuer by outcome, "good" and "bad"."""
        ...

    def current(self) -> KeySet | None:
        """Return the keys in force; None while there are none."""
        ...

    def age_s(self) -> float | None:
        """Return how old the keys are; None where there are none, or where they can't age."""
        ...

    def ask_for(self, key_id: str) -> float | None:
        """Ask for a key that is not among the current ones. Return the seconds after which it may be; None where the
        issuer has no such key.
        """
        ...

    async def first(self) -> None:
        """Wait for the first keys."""
        ...

    async def keep(self) -> NoReturn:
        """Keep the keys new until it is cancelled."""
        ...


class FileKeySource:
    """Keys in a file."""

    def __init__(self, name: str, path: Path, on_reload: OnReload) -> None:
        """Read the file.

        Raises:
            SettingsError: it has no keys.
        """
        setting = jwks_setting(name)
        self.fetches: dict[str, int] = {}
        self._file = Watched(setting, [path], lambda: _read(path, setting), on_reload)

    def current(self) -> KeySet:
        return self._file.content

    def age_s(self) -> None:
        return None

    def ask_for(self, key_id: str) -> None:
        return None

    async def first(self) -> None:
        """Return: the file was read."""

    async def keep(self) -> NoReturn:
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self._file.refresh)


def _read(path: Path, setting: str) -> KeySet:
    try:
        return read_key_set(json.loads(read_bytes(path, setting)))
    except KeySetError as error:
        raise SettingsError(f"{setting}: {path} {error}") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"{setting}: {path} is no JSON") from None


class FetchedKeySource:
    """Keys that are fetched again and again. The last good ones stay in force for a bounded time without the issuer."""

    def __init__(self, name: str, settings: IssuerSettings, clock: Clock) -> None:
        """Prepare; `keep` fetches.

        Raises:
            SettingsError: the file of authorities has none.
        """
        check_ca_file(name, settings)
        self.fetches = {"good": 0, "bad": 0}
        self._name = name
        self._settings = settings
        self._clock = clock
        self._schedule = FetchSchedule(settings)
        self._keys: KeySet | None = None
        self._wanted = asyncio.Event()
        self._known = asyncio.Event()

    def current(self) -> KeySet | None:
        age_s = self.age_s()
        return self._keys if age_s is not None and age_s < self._settings.keep_s else None

    def age_s(self) -> float | None:
        return self._schedule.age(self._clock.monotonic())

    def ask_for(self, key_id: str) -> float | None:
        wait_s = self._schedule.ask_for(key_id, self._clock.monotonic())
        if wait_s is not None:
            self._wanted.set()
            return max(wait_s, _SOON_S)
        return None

    async def first(self) -> None:
        await self._known.wait()

    async def keep(self) -> NoReturn:
        while True:
            wait_s = self._schedule.due_in(self._clock.monotonic())
            if wait_s <= 0:
                await self._fetch()
                continue
            self._wanted.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            # A token with an unknown key has come. Others may come until the next request may begin.
            await asyncio.sleep(self._schedule.due_in(self._clock.monotonic()))

    async def _fetch(self) -> None:
        self._schedule.began(self._clock.monotonic())
        try:
            keys = await fetch_keys(self._settings)
        except Exception as error:  # noqa: BLE001 - no answer of an issuer may end this task
            self.fetches["bad"] += 1
            _LOG.warning("issuer.away", extra={"issuer": self._name, "error": str(error)})
            return
        self.fetches["good"] += 1
        self._schedule.succeeded()
        if self._keys is None or not self._keys.same(keys):
            _LOG.info("issuer.keys", extra={"issuer": self._name, "keys": len(keys)})
        self._keys = keys
        self._known.set()
