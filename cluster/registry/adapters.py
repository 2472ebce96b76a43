"""State of the registry's adapters on each replica: what replicas report, and what everybody else makes of it."""

from __future__ import annotations

import asyncio
import enum
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pydantic import ValidationError

from cluster.models import ModelInfo
from cluster.registry.contract import Entry, Sighting
from cluster.registry.view import LOOK_S, RegistryView
from cluster.settings.adapters import AdapterSettings

KIND = "adapter"
"""Kind of an adapter's entry."""


class AdapterState(enum.StrEnum):
    """State of an adapter on a replica."""

    LOADING = "loading"
    """Not there yet; an earlier one of the same name serves until then."""
    LOADED = "loaded"
    FAILED = "failed"
    """Not there. The replica tries again."""
    UNLOADING = "unloading"
    """Deleted or replaced; requests that began with it still run."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """State of one adapter on one replica."""

    state: AdapterState
    version: int = 0
    """Version of the entry that this is about."""
    why: str = ""
    """Reason why it can't be loaded."""
    digest: str = ""
    """SHA-256 of its files, in hex; empty where they were not read yet."""
    seconds: float = 0.0
    """Time that loading took."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica made of the registry's adapters."""

    adapters: Mapping[str, AdapterReport] = field(default_factory=dict)
    """State by name: of all that are not loaded, and of those that were loaded last."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """Sequences that run with an adapter, by its name."""

    def pack(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def read(cls, report: bytes) -> ReplicaReport:
        """Read what `pack` wrote; an empty report from anything else."""
        try:
            tree = json.loads(report or b"{}")
            adapters = {
                name: AdapterReport(
                    AdapterState(each["state"]), each["version"], each["why"], each["digest"], each["seconds"]
                )
                for name, each in tree.get("adapters", {}).items()
            }
            return cls(adapters, tree.get("uses", {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()


@dataclass(frozen=True, slots=True)
class AdapterOnReplica:
    """An adapter on a replica."""

    replica: str
    report: AdapterReport
    uses: int = 0
    """Sequences that run with it."""


def settings_of(entry: Entry) -> AdapterSettings | None:
    """Return the value of an adapter's entry; None for a deleted one, or one that a later release wrote."""
    if entry.value is None:
        return None
    try:
        return AdapterSettings.model_validate_json(entry.value)
    except ValidationError:
        return None


def status_of(entry: Entry, seen: Iterable[Sighting]) -> list[AdapterOnReplica]:
    """Return the state of an adapter on the replicas of its pool, in order of their names.

    A replica that does not know the entry yet loads it. One that a later release wrote has states only where a replica
    tells one.
    """
    settings = settings_of(entry)
    found = []
    for each in seen:
        if each.watcher.kind != "replica" or (settings is not None and each.watcher.pool != settings.pool):
            continue
        told = ReplicaReport.read(each.watcher.report)
        report = told.adapters.get(entry.name)
        if settings is None:
            if report is None:
                continue
        elif each.version < entry.version:
            report = AdapterReport(AdapterState.LOADING, entry.version)
        elif report is None:
            report = AdapterReport(AdapterState.LOADED, entry.version)
        found.append(AdapterOnReplica(each.watcher.id, report, told.uses.get(entry.name, 0)))
    return sorted(found, key=lambda one: one.replica)


async def adapter_status(view: RegistryView, names: Iterable[str]) -> Mapping[str, Sequence[AdapterOnReplica]]:
    """Return the state of adapters on each replica of their pools, by the adapters' names.

    Raises:
        QueueUnavailableError: Redis does not answer.
    """
    entries = view.entries(KIND)
    seen = await view.watchers()
    return {name: status_of(entries[name], seen) for name in sorted(set(names) & set(entries))}


async def wait_until_loaded(view: RegistryView, name: str, timeout_s: float) -> Sequence[AdapterOnReplica]:
    """Wait until each live replica of the pool has loaded an adapter that was put, or has failed to.

    Returns the last states. After the timeout some may still be LOADING. Where the entry is gone, the list is empty.

    Raises:
        QueueUnavailableError: Redis does not answer.
    """
    until = time.monotonic() + timeout_s
    while True:
        states = (await adapter_status(view, [name])).get(name, ())
        busy = any(each.report.state is AdapterState.LOADING for each in states)
        if not busy or time.monotonic() >= until:
            return states
        await asyncio.sleep(LOOK_S / 2)


async def wait_until_unused(view: RegistryView, name: str, timeout_s: float) -> int:
    """Wait until no sequence runs with an adapter. Return how many still do after the timeout; 0 s does not wait.

    Raises:
        QueueUnavailableError: Redis does not answer.
    """
    until = time.monotonic() + timeout_s
    while True:
        told = [ReplicaReport.read(each.watcher.report) for each in await view.watchers()]
        uses = sum(each.uses.get(name, 0) for each in told)
        if not uses or time.monotonic() >= until:
            return uses
        await asyncio.sleep(min(LOOK_S / 2, max(0.0, until - time.monotonic())))


class PoolAdapters:
    """Names of the registry's adapters, by pool: which ones a request may name."""

    def __init__(self) -> None:
        self._pools: dict[str, str] = {}
        """Pool of each adapter, by its name."""
        self._names: dict[str, tuple[str, ...]] = {}

    def hear(self, entry: Entry) -> None:
        """Take a change of the registry."""
        before, settings = self._pools.pop(entry.name, None), settings_of(entry)
        if settings is not None:
            self._pools[entry.name] = settings.pool
        for pool in {before, self._pools.get(entry.name)} - {None}:
            self._names.pop(str(pool), None)

    def names(self, pool: str) -> tuple[str, ...]:
        """Return the names of a pool's adapters, in order."""
        if (found := self._names.get(pool)) is None:
            found = self._names[pool] = tuple(sorted(name for name, of in self._pools.items() if of == pool))
        return found

    def pool(self, name: str) -> str | None:
        """Return the pool of an adapter; None for an unknown one."""
        return self._pools.get(name)

    def added(self, pool: str, model: ModelInfo) -> ModelInfo:
        """Return a pool's model with its adapters of the registry behind those of its settings."""
        if not (names := self.names(pool)):
            return model
        own = model.lora_adapters
        return replace(model, lora_adapters=(*own, *(name for name in names if name not in own)))
