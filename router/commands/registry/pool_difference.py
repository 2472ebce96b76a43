"""What a file of settings changes in the pools of a running cluster, and how each change is made. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.control.settings import operating_point
from cluster.errors import SettingsError
from cluster.registry.pools import LIVE
from cluster.rollout.changes import CHANGEABLE, PARSERS, changed, successor
from cluster.settings import PoolSettings
from cluster.settings.rollout import REASONS, WAYS, Way, settings_that_change
from cluster.trust.masking import filled, still_masked
from penstock.values.slo import ClassSlo, OperatingPoint

_POINT = settings_that_change(Way.POINT)
"""Settings that are a pool's operating point."""
_SCALED = "the pool's autoscaler decides on it; its bounds are autoscale.min_replicas and autoscale.max_replicas"
_BACK = "a roll-out can't take a setting out again that the pool began with"
_CLASSES = ("interactive", "standard", "batch")


class Means(enum.StrEnum):
    """How a change of a setting is made."""

    ROLLOUT = "roll-out"
    """Its replicas change one by one."""
    AT_ONCE = "at once"
    """Routers, replicas and the autoscaler follow."""
    RESTART = "restart"
    """Not while the pool runs."""


_MEANS = {
    Way.ROLLOUT: Means.ROLLOUT,
    Way.ENTRY: Means.AT_ONCE,
    Way.POINT: Means.AT_ONCE,
    Way.NEVER: Means.RESTART,
}


@dataclass(frozen=True, slots=True)
class FieldChange:
    """Change of one setting."""

    path: tuple[str, ...]
    """Its name within the pool, part by part."""
    before: Any
    after: Any
    means: Means
    why: str = ""
    """Why it can't be made while the pool runs."""

    @property
    def field(self) -> str:
        """Its name within the pool, with dots."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class RunningPool:
    """A pool as it runs."""

    own: PoolSettings
    """Settings without roll-outs."""
    revision: Mapping[str, Any]
    """Settings that roll-outs have changed."""
    point: OperatingPoint
    """Operating point in force."""
    version: int = 0
    """Version of its entry; 0 without one."""
    rolls: bool = False
    """Whether a roll-out goes on."""

    @property
    def settings(self) -> PoolSettings:
        """Settings in force."""
        pool = changed(self.own, self.revision) if self.revision else self.own
        tree = pool.model_dump(mode="json")
        for name in _CLASSES:
            slo: ClassSlo = getattr(self.point, name)
            tree["slo"][name] |= {"ttft_p99_s": slo.ttft_p99_s, "itl_p95_s": slo.itl_p95_s}
        tree["slo"]["attainment"] = self.point.attainment
        for name in _POINT:
            if name != "slo":
                tree[name] = getattr(self.point, name)
        return PoolSettings.model_validate(tree)


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Change of a pool."""

    name: str
    before: RunningPool | None
    """None for a pool that is added."""
    after: PoolSettings | None
    """None for a pool that is removed."""
    fields: tuple[FieldChange, ...] = ()

    def of(self, means: Means) -> tuple[FieldChange, ...]:
        """Return the changes that are made in a way."""
        return tuple(each for each in self.fields if each.means is means)

    @property
    def entry(self) -> PoolSettings | None:
        """New settings of its entry; None where they stay."""
        changed = {each.path[0] for each in self.of(Means.AT_ONCE)}.intersection(LIVE)
        if not changed or self.before is None or self.after is None:
            return None
        return self.before.own.model_copy(update={name: getattr(self.after, name) for name in changed})

    @property
    def replicas(self) -> int | None:
        """New number of replicas; None where it stays."""
        return next((each.after for each in self.of(Means.AT_ONCE) if each.field == "replicas"), None)

    @property
    def point(self) -> OperatingPoint | None:
        """New operating point; None where it stays."""
        moved = any(each.path[0] in _POINT for each in self.of(Means.AT_ONCE))
        return operating_point(self.after) if moved and self.after is not None else None

    @property
    def revision(self) -> dict[str, Any]:
        """Settings that a roll-out has to change."""
        found: dict[str, Any] = {}
        for each in self.of(Means.ROLLOUT):
            *path, last = each.path
            inner = found
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = each.after
        if "model" in found and self.after is not None:
            # They would go with the model, also where the file has the same ones for the next.
            if self.after.revision:
                found["revision"] = self.after.revision
            for name in PARSERS:
                if (parser := getattr(self.after.vllm, name)) is not None:
                    found.setdefault("vllm", {})[name] = parser
        return found


def with_secrets(
    wanted: Mapping[str, PoolSettings], running: Mapping[str, RunningPool]
) -> tuple[dict[str, PoolSettings], dict[str, RunningPool]]:
    """Return both with the secrets that one of them only stands for, from the other one: a file that was written from
    what is shown, and pools as they are shown to who is no admin.
    """
    files = {name: pool.model_dump(mode="json", exclude_unset=True) for name, pool in wanted.items()}
    here = {name: pool.settings.model_dump(mode="json") for name, pool in running.items()}
    files = {name: filled(tree, here.get(name, {})) for name, tree in files.items()}
    known = {
        name: replace(
            pool,
            own=_filled(pool.own, files.get(name, {})),
            revision=filled(pool.revision, files.get(name, {})),
        )
        for name, pool in running.items()
    }
    return {name: PoolSettings.model_validate(tree) for name, tree in files.items()}, known


def not_compared(wanted: Mapping[str, PoolSettings], running: Mapping[str, RunningPool]) -> list[str]:
    """Return the settings of which a file has the secret, and of which that of the pool is not shown."""
    found = []
    for name in sorted(wanted.keys() & running.keys()):
        shown = running[name].settings.model_dump(mode="json")
        file, here = _flat(wanted[name].model_dump(mode="json")), _flat(shown)
        found += [
            f"pools.{name}.{'.'.join(path)}" for path in still_masked(shown) if file.get(path) not in (None, here[path])
        ]
    return found


def _filled(pool: PoolSettings, source: Mapping[str, Any]) -> PoolSettings:
    return PoolSettings.model_validate(filled(pool.model_dump(mode="json", exclude_unset=True), source))


def pool_changes(
    wanted: Mapping[str, PoolSettings], running: Mapping[str, RunningPool], *, prune: bool
) -> list[PoolChange]:
    """Return what has to change, in order of names. `prune`: remove pools that are not wanted."""
    found = []
    for name in sorted({*wanted, *(running if prune else ())}):
        before, after = running.get(name), wanted.get(name)
        fields = _fields(before, after) if before is not None and after is not None else ()
        if before is None or after is None or fields:
            found.append(PoolChange(name, before, after, fields))
    return found


def _fields(before: RunningPool, after: PoolSettings) -> tuple[FieldChange, ...]:
    old, new = _flat(before.settings.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    found = [
        FieldChange(path, old.get(path), new.get(path), *_means(path[0], after))
        for path in dict.fromkeys((*old, *new))
        if old.get(path) != new.get(path)
    ]
    change = PoolChange("", before, after, tuple(found))
    if change.revision and not _arrives(before, change.revision, after):
        # A roll-out can't set what the pool's own settings have back to nothing.
        found = [
            replace(each, means=Means.RESTART, why=_BACK) if each.means is Means.ROLLOUT else each for each in found
        ]
    return tuple(found)


def _arrives(before: RunningPool, revision: Mapping[str, Any], after: PoolSettings) -> bool:
    try:
        reached = changed(before.own, successor(before.own, before.revision, revision))
    except SettingsError:
        return False
    return all(getattr(reached, name) == getattr(after, name) for name in CHANGEABLE)


def _means(setting: str, after: PoolSettings) -> tuple[Means, str]:
    if setting == "replicas" and after.autoscale.mode == "active":
        return Means.RESTART, _SCALED
    return _MEANS[WAYS[setting]], REASONS.get(setting, "")


def _flat(tree: Mapping[str, Any], place: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, (*place, name))
        else:
            found[*place, name] = value
    return found
