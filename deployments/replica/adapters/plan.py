"""What the registry wants of a replica, what the replica has, and the next step between them. Pure bookkeeping."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cluster.errors import EngineRequestError
from cluster.registry.adapters import AdapterReport, AdapterState, ReplicaReport, settings_of
from cluster.registry.contract import Entry
from cluster.settings.adapters import AdapterSettings

_LOG = logging.getLogger(__name__)

FIRST_RETRY_S = 5.0
"""Pause before a failed adapter is tried again. It doubles each time."""
MOST_RETRY_S = 300.0
MOST_REPORTED = 32
"""Loaded adapters that a report names, which goes to Redis with every look."""
_KEY_DIGITS = 16
_OWN = "the name is that of an adapter in vllm.lora_modules"


@dataclass(frozen=True, slots=True)
class Load:
    """Step: load an adapter."""

    name: str
    version: int
    settings: AdapterSettings


@dataclass(frozen=True, slots=True)
class Unload:
    """Step: unload an adapter that no sequence uses."""

    key: str


@dataclass(frozen=True, slots=True)
class _Failure:
    version: int
    why: str
    tries: int
    retry_at: float


def key_of(name: str, digest: str) -> str:
    """Return the name of an adapter in the engine. Other files have another one, so caches never mix them up."""
    return f"{name}@{digest[:_KEY_DIGITS]}"


class AdapterPlan:
    """Adapters of one replica.

    A new version of an adapter takes over when it is loaded. Until then, and where it fails, the earlier one serves.
    """

    def __init__(self, pool: str, own: Collection[str]) -> None:
        """`own`: names of the adapters that the engine has by its settings."""
        self._pool = pool
        self._own = frozenset(own)
        self._wanted: dict[str, Load] = {}
        self._served: dict[str, tuple[str, AdapterReport]] = {}
        """Key and state of each loaded adapter, by its name; the last loaded one is last."""
        self._failed: dict[str, _Failure] = {}
        self._leaving: dict[str, str] = {}
        """Name of each adapter that is to be unloaded, by its key."""

    def hear(self, entry: Entry) -> None:
        """Take a change of the registry."""
        settings = settings_of(entry)
        self._failed.pop(entry.name, None)
        if settings is None and entry.value is not None:
            _LOG.error("adapters.unread", extra={"adapter": entry.name, "version": entry.version})
        if settings is not None and settings.pool == self._pool:
            self._wanted[entry.name] = Load(entry.name, entry.version, settings)
            if entry.name in self._own:
                self._failed[entry.name] = _Failure(entry.version, _OWN, 1, float("inf"))
            return
        self._wanted.pop(entry.name, None)
        if (served := self._served.pop(entry.name, None)) is not None:
            self._leaving[served[0]] = entry.name

    def next(self, now: float, in_use: Callable[[str], bool]) -> Load | Unload | None:
        """Return the next step; None where there is nothing to do now.

        Args:
            now: monotonic seconds.
            in_use: whether a sequence runs with the adapter of a key.
        """
        for key in self._leaving:
            if not in_use(key):
                return Unload(key)
        # In order of their changes, so that one that is slow to come holds up only later ones.
        for load in sorted(self._wanted.values(), key=lambda one: one.version):
            if self._is_there(load):
                continue
            if (failure := self._failed.get(load.name)) is None or failure.retry_at <= now:
                return load
        return None

    @property
    def settled(self) -> bool:
        """Whether every wanted adapter was loaded or failed."""
        return all(self._is_there(load) or name in self._failed for name, load in self._wanted.items())

    def has(self, key: str) -> bool:
        """Return whether the engine has an adapter."""
        return key in self._leaving or any(key == held for held, _ in self._served.values())

    def loaded(self, load: Load, digest: str, seconds: float) -> None:
        """Note that the engine has an adapter, perhaps because it had the same files before."""
        key = key_of(load.name, digest)
        self._leaving.pop(key, None)
        if (before := self._served.pop(load.name, None)) is not None and before[0] != key:
            self._leaving[before[0]] = load.name
        self._served[load.name] = key, AdapterReport(AdapterState.LOADED, load.version, "", digest, round(seconds, 3))
        wanted = self._wanted.get(load.name)
        if wanted is None:
            # It was deleted while it was loaded.
            del self._served[load.name]
            self._leaving[key] = load.name
        elif wanted.version == load.version:
            self._failed.pop(load.name, None)

    def failed(self, load: Load, why: str, now: float) -> None:
        """Note that an adapter can't be loaded."""
        if (wanted := self._wanted.get(load.name)) is None or wanted.version != load.version:
            return
        before = self._failed.get(load.name)
        tries = 1 if before is None else before.tries + 1
        pause = min(MOST_RETRY_S, FIRST_RETRY_S * 2 ** min(tries - 1, 10))
        self._failed[load.name] = _Failure(load.version, why, tries, now + pause)

    def unloaded(self, key: str) -> None:
        """Note that the engine does not have an adapter any more."""
        self._leaving.pop(key, None)

    def key(self, name: str) -> str:
        """Return the name in the engine of the adapter that a request names.

        Raises:
            EngineRequestError: it is not loaded.
        """
        if name in self._own:
            return name
        if (served := self._served.get(name)) is not None:
            return served[0]
        # Where its files are is not for those who send requests. Operators find it with `penstock get adapters`.
        why = "is not loaded"
        if name in self._failed:
            why = "could not be loaded"
        elif name in self._wanted:
            why = "is still being loaded"
        raise EngineRequestError(f"adapter {name!r} {why}", elsewhere=True)

    def report(self, uses: Mapping[str, int]) -> ReplicaReport:
        """Return what others should know.

        Args:
            uses: number of sequences that run with an adapter, by its key.
        """
        names = {key: name for name, (key, _) in self._served.items()} | self._leaving
        counts: dict[str, int] = {}
        for key, count in uses.items():
            name = names.get(key, key)
            counts[name] = counts.get(name, 0) + count
        recent = list(self._served.items())[-MOST_REPORTED:]
        states = {name: state for name, (_key, state) in recent}
        states |= {load.name: self._missing(load) for load in self._wanted.values() if not self._is_there(load)}
        gone = [name for name in self._leaving.values() if name not in self._wanted]
        return ReplicaReport(states | dict.fromkeys(gone, AdapterReport(AdapterState.UNLOADING)), counts)

    def _missing(self, load: Load) -> AdapterReport:
        if (failure := self._failed.get(load.name)) is None:
            return AdapterReport(AdapterState.LOADING, load.version)
        return AdapterReport(AdapterState.FAILED, load.version, failure.why)

    def _is_there(self, load: Load) -> bool:
        served = self._served.get(load.name)
        return served is not None and served[1].version == load.version
