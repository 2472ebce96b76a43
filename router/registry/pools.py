"""Pools of the registry, as its calls see them: what can be changed while the cluster runs, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from cluster.registry.contract import Edit, Entry
from cluster.registry.pools import (
    KIND,
    LIVE,
    LauncherReport,
    PoolEntry,
    PoolState,
    digest_of,
    launcher_of,
    read_entry,
)
from cluster.registry.view import RegistryView
from cluster.settings import AliasSettings, EngineKind, PoolSettings, Settings
from penstock.models import FieldViolation
from penstock.v1 import registry_pb2 as api
from router.registry.kinds import ALIAS

_RESTART = "change the settings and restart the cluster; on Kubernetes change `pools` in the chart's values"
_RAYLESS = f"this cluster runs without Ray, and that needs it: {_RESTART}"


class PoolCalls:
    """What calls on the registry do beyond it for pools."""

    def __init__(self, settings: Settings, view: RegistryView) -> None:
        """`settings`: those that the router was started with; their pools become those that run."""
        self._settings = settings
        self._view = view
        self._bases = {name: digest_of(pool) for name, pool in settings.pools.items()}

    def based(self, name: str, entry: PoolEntry) -> PoolEntry:
        """Return an entry with the digest of the settings that it stands over."""
        return entry.model_copy(update={"base": self._bases.get(name, "")})

    async def problems(self, edits: Sequence[Edit]) -> list[FieldViolation]:
        """Return what does not fit in edits of pools.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        if not any(edit.kind == KIND for edit in edits):
            return []
        launcher = launcher_of(await self._view.watchers())
        aliases = self._aliases(edits)
        found: list[FieldViolation] = []
        left = set(self._settings.pools)
        for place, edit in enumerate(edits):
            if edit.kind != KIND:
                continue
            entry = read_entry(Entry(KIND, edit.name, 0, 0, edit.value))
            left = left - {edit.name} if entry is None or entry.removed else left | {edit.name}
            found += [
                FieldViolation(f"edits[{place}].{field}", problem)
                for field, problem in self._of(edit.name, entry, launcher, aliases)
            ]
        if not left and not found:
            found.append(FieldViolation("edits", "must leave at least one pool"))
        return found

    def _of(
        self, name: str, entry: PoolEntry | None, launcher: LauncherReport | None, aliases: Mapping[str, AliasSettings]
    ) -> Iterator[tuple[str, str]]:
        """Yield the problems of one edit, as field and text."""
        running = self._settings.pools.get(name)
        if launcher is None or not launcher.changes:
            yield "name", f"pools of this cluster can't come, go or change their size while it runs: {_RESTART}"
        elif entry is None:
            yield "value", "must be given: an entry with removed = true removes a pool"
        elif entry.settings is None:
            if running is None:
                yield "name", f"must be one of {', '.join(sorted(self._settings.pools))}, got {name!r}"
            for alias, content in sorted(aliases.items()):
                if name in _pools_of(content):
                    yield "name", f"alias {alias!r} sends requests to the pool {name!r}; change that first"
        elif running is None:
            state = report.state if (report := launcher.pools.get(name)) is not None else None
            present = self._view.get(KIND, name)
            before = read_entry(present) if present is not None else None
            removed = before is not None and before.removed
            # Right after the removal the launcher may not have told that the pool ends.
            if state is PoolState.DRAINING or (removed and state is not PoolState.GONE):
                yield "name", f"pool {name!r} is being removed; wait until it has gone"
            yield from _of_new(name, entry.settings, launcher, aliases)
        else:
            yield from _of_changed(running, entry.settings, launcher)

    def _aliases(self, edits: Sequence[Edit]) -> dict[str, AliasSettings]:
        """Return all aliases as they are after the edits."""
        entries = {name: entry.value for name, entry in self._view.entries(ALIAS.name).items()}
        entries |= {edit.name: edit.value for edit in edits if edit.kind == ALIAS.name}
        found = dict(self._settings.aliases)
        for name, value in entries.items():
            if value is not None and not self._settings.registry.holds(ALIAS.name, name):
                # One that a newer release wrote changes nothing here.
                with suppress(ValueError):
                    found[name] = ALIAS.load(name, value)
        return found

    async def fill(self, entries: Iterable[api.RegistryEntry]) -> None:
        """Add to the entries of pools how far their launcher is.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        wanted = [entry for entry in entries if entry.kind == KIND]
        launcher = launcher_of(await self._view.watchers()) if wanted else None
        for entry in wanted:
            report = launcher.pools.get(entry.name) if launcher is not None else None
            # An older report is about what the entry was before.
            if report is not None and report.version >= entry.version:
                entry.state, entry.why = report.state.value, report.why


def _of_new(
    name: str, settings: PoolSettings, launcher: LauncherReport, aliases: Mapping[str, AliasSettings]
) -> Iterator[tuple[str, str]]:
    if name in aliases:
        yield "name", f"{name!r} is an alias; a pool needs a name of its own"
    if not launcher.ray:
        if settings.engine is not EngineKind.SIM:
            # Without Ray nothing gives replicas their accelerators.
            yield "value.settings.engine", f"must be 'sim', got {settings.engine.value!r}; {_RAYLESS}"
        if settings.autoscale.mode != "off":
            yield "value.settings.autoscale.mode", _needs_ray(settings)


def _of_changed(running: PoolSettings, settings: PoolSettings, launcher: LauncherReport) -> Iterator[tuple[str, str]]:
    for field in type(running).model_fields:
        if field not in LIVE and getattr(running, field) != getattr(settings, field):
            yield f"value.settings.{field}", "can't change here; `penstock apply` says how each setting changes"
    if not launcher.ray and running.autoscale.mode != settings.autoscale.mode:
        yield "value.settings.autoscale.mode", _needs_ray(settings)


def _needs_ray(settings: PoolSettings) -> str:
    # Without Ray no autoscaler runs.
    return f"must be 'off', got {settings.autoscale.mode!r}; {_RAYLESS}"


def _pools_of(alias: AliasSettings) -> set[str]:
    """Return the pools that an alias names."""
    named = {target.model for target in alias.targets}
    named |= {alias.fallback} if alias.fallback is not None else set()
    return named | ({alias.shadow.model} if alias.shadow is not None else set())
