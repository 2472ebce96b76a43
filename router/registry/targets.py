"""Aliases and the adapters that they send requests to: what an edit would tear apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from cluster.registry.adapters import KIND, settings_of
from cluster.registry.contract import Edit, Entry
from cluster.registry.view import RegistryView
from cluster.settings import AliasSettings, EngineKind, Settings
from penstock.models import FieldViolation
from router.registry.kinds import ALIAS

_SHOWN = 20


def torn_targets(
    edits: Sequence[Edit], settings: Settings, view: RegistryView, *, force: bool
) -> Iterator[FieldViolation]:
    """Yield the edits of aliases that name adapters which are not there, and of adapters that an alias still names.
    Deleting an alias may bring back one of the settings, which then counts as put.

    Args:
        edits: all edits of a call, each checked by itself.
        settings: the cluster's.
        view: the registry before the edits.
        force: whether adapters may go although aliases name them, and aliases of the settings come back without theirs.
    """
    after = {
        kind: dict(view.entries(kind)) | {edit.name: _entry(edit) for edit in edits if edit.kind == kind}
        for kind in (KIND, ALIAS.name)
    }
    adapters = _adapters(settings, after[KIND])
    for place, edit in enumerate(edits):
        if edit.kind == ALIAS.name and edit.value is not None:
            for field, pool, adapter in _named(ALIAS.load(edit.name, edit.value)):
                if adapter not in (known := adapters.get(pool, set())):
                    names = ", ".join(sorted(known)[:_SHOWN]) or "which has none"
                    problem = f"must be an adapter of pool {pool!r}: {names}; got {adapter!r}"
                    yield FieldViolation(f"edits[{place}].value.{field}", problem)
        elif edit.kind == ALIAS.name and not force and view.get(ALIAS.name, edit.name) is not None:
            back = settings.aliases.get(edit.name)
            for _field, pool, adapter in _named(back) if back is not None else ():
                if adapter not in adapters.get(pool, set()):
                    problem = (
                        f"the alias {edit.name!r} of the settings comes back, which sends requests to {adapter!r}, no "
                        f"adapter of pool {pool!r} now; put that first, or force it"
                    )
                    yield FieldViolation(f"edits[{place}].name", problem)
        elif edit.kind == KIND and not force:
            for alias in _users(edit.name, adapters, settings, after[ALIAS.name]):
                problem = f"alias {alias!r} sends requests to the adapter {edit.name!r}; change that first, or force it"
                yield FieldViolation(f"edits[{place}].name", problem)


def _entry(edit: Edit) -> Entry:
    return Entry(edit.kind, edit.name, 0, 0, edit.value)


def _adapters(settings: Settings, entries: Mapping[str, Entry]) -> dict[str, set[str]]:
    """Return the names of all adapters by pool."""
    found = {
        name: set(pool.vllm.lora_modules) if pool.engine is EngineKind.VLLM else set[str]()
        for name, pool in settings.pools.items()
    }
    for name, entry in entries.items():
        if (adapter := settings_of(entry)) is not None:
            found.setdefault(adapter.pool, set()).add(name)
    return found


def _named(alias: AliasSettings) -> Iterator[tuple[str, str, str]]:
    """Yield the adapters that an alias names, as field, pool and adapter."""
    for number, target in enumerate(alias.targets):
        if target.adapter:
            yield f"targets[{number}].adapter", target.model, target.adapter
    if alias.shadow is not None and alias.shadow.adapter:
        yield "shadow.adapter", alias.shadow.model, alias.shadow.adapter


def _users(
    adapter: str, adapters: Mapping[str, set[str]], settings: Settings, entries: Mapping[str, Entry]
) -> Iterator[str]:
    """Yield the aliases that name an adapter which is not in their pool."""
    registered: dict[str, AliasSettings] = {}
    for name, entry in entries.items():
        if entry.value is not None and not settings.registry.holds(ALIAS.name, name):
            # One that a newer release wrote changes nothing here.
            with suppress(ValueError):
                registered[name] = ALIAS.load(name, entry.value)
    for name, alias in sorted((dict(settings.aliases) | registered).items()):
        if any(each == adapter and each not in adapters.get(pool, set()) for _field, pool, each in _named(alias)):
            yield name
