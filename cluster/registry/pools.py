"""Pools of the registry: those that were added, changed or removed while the cluster runs."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pydantic import ValidationError, model_validator

from cluster.registry.contract import Entry, Sighting
from cluster.settings import PoolSettings
from cluster.settings.registry import RegistrySettings
from cluster.settings.rollout import Way, settings_that_change
from cluster.settings.section import Section

_LOG = logging.getLogger(__name__)

KIND = "pool"
"""Kind of a pool's entry."""
LAUNCHER = "launcher"
"""Kind of the watcher that starts and ends replicas for entries."""


NOTHING_FIXED = RegistrySettings()
"""Settings that let every entry change."""
LIVE = settings_that_change(Way.ENTRY)
"""Settings of a pool that an entry may change while the pool runs."""


class PoolEntry(Section):
    """Entry of a pool."""

    settings: PoolSettings | None = None
    """Its settings; None for a pool that was removed."""
    removed: bool = False
    """Whether the pool takes no new requests, and ends when it has served its others."""
    base: str = ""
    """Digest of the settings that the cluster was started with for this pool when the entry was made; empty where it
    was started without the pool."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> PoolEntry:
        if self.removed == (self.settings is not None):
            raise ValueError("must have either settings, or removed = true")
        return self


def digest_of(pool: PoolSettings | None) -> str:
    """Return the digest of a pool's settings, without those at their defaults: a release may bring other defaults."""
    if pool is None:
        return ""
    tree = pool.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


@functools.lru_cache(maxsize=512)
def read_entry(entry: Entry) -> PoolEntry | None:
    """Return the content of an entry; None for one that was deleted, or that a newer release wrote. It is logged once
    for each version.
    """
    if entry.value is None:
        return None
    try:
        return PoolEntry.model_validate(json.loads(entry.value))
    except (ValueError, ValidationError) as error:
        _LOG.error("registry.unreadable", extra={"kind": KIND, "entry": entry.name, "why": str(error)})
        return None


def in_force(
    declared: Mapping[str, PoolSettings],
    entries: Mapping[str, Entry],
    fixed: RegistrySettings = NOTHING_FIXED,
    before: Mapping[str, PoolSettings] | None = None,
) -> dict[str, PoolSettings]:
    """Return the pools that should run: those of the settings, with the entries over them.

    Args:
        declared: pools of the settings.
        entries: those of the registry.
        fixed: names that only the settings may change.
        before: what was in force here, and stays so where an entry can't be read; None for the pools of the settings.
    """
    found = dict(declared)
    for name in sorted(entries):
        if fixed.holds(KIND, name):
            continue
        entry = read_entry(entries[name])
        settings = entry.settings if entry is not None else (declared if before is None else before).get(name)
        if settings is None:
            found.pop(name, None)
        else:
            found[name] = settings
    return found


def same_but_live(one: PoolSettings, other: PoolSettings) -> bool:
    """Return whether two settings of a pool differ in what may change while it runs, or not at all."""
    return all(name in LIVE or getattr(one, name) == getattr(other, name) for name in type(one).model_fields)


def outdated(declared: Mapping[str, PoolSettings], entries: Mapping[str, Entry]) -> list[Entry]:
    """Return the entries of pools whose settings have changed since: these are the newer word."""
    found = []
    for name in sorted(entries):
        entry = read_entry(entries[name])
        if entry is not None and entry.base != digest_of(declared.get(name)):
            found.append(entries[name])
    return found


class PoolState(enum.StrEnum):
    """State of a pool at its launcher."""

    STARTING = "starting"
    SERVING = "serving"
    """All replicas were started."""
    FAILED = "failed"
    """A start failed. It is tried again."""
    DRAINING = "draining"
    """No new requests; others are served to their end."""
    GONE = "gone"
    """No replica is left."""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """State of one pool."""

    state: PoolState
    why: str = ""
    """Reason of a failure."""
    version: int = 0
    """Version of the entry that this is about; 0 where the settings alone declare the pool."""


@dataclass(frozen=True, slots=True)
class LauncherReport:
    """What the launcher made of the entries."""

    ray: bool = True
    """Whether Ray Serve hosts the replicas."""
    changes: bool = False
    """Whether pools can be added and removed."""
    gpus: int = 0
    """Number of GPUs that Ray gives to replicas."""
    pools: Mapping[str, PoolReport] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, text: bytes) -> LauncherReport:
        """Read what `pack` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        fields = json.loads(text)
        pools = {
            name: PoolReport(PoolState(one["state"]), one["why"], one["version"])
            for name, one in fields["pools"].items()
        }
        return cls(fields["ray"], fields["changes"], fields["gpus"], pools)


def launcher_of(watchers: Sequence[Sighting]) -> LauncherReport | None:
    """Return the report of the process that starts replicas; None where none follows the registry."""
    for one in watchers:
        if one.watcher.kind == LAUNCHER:
            try:
                return LauncherReport.unpack(one.watcher.report)
            except (ValueError, KeyError, TypeError):
                _LOG.warning("registry.launcher_unread")
    return None
