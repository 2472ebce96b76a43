"""Adapters of the registry, as its calls see them: loaded before a put returns, unused before they go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cluster.errors import AdapterInUseError
from cluster.registry.adapters import (
    KIND,
    AdapterOnReplica,
    adapter_status,
    settings_of,
    wait_until_loaded,
    wait_until_unused,
)
from cluster.registry.contract import Edit, Entry
from cluster.registry.view import RegistryView
from penstock.v1 import registry_pb2 as api


class AdapterCalls:
    """What calls on the registry do beyond it for adapters."""

    def __init__(self, view: RegistryView) -> None:
        self._view = view

    async def check_unused(self, edits: Iterable[Edit], wait_s: float) -> None:
        """Wait until no sequence runs with the adapters that edits take from their pools.

        Raises:
            AdapterInUseError: one is in use after the wait.
            QueueUnavailableError: Redis does not answer.
        """
        gone = [edit.name for edit in edits if edit.kind == KIND and self._leaves(edit)]
        for name, uses in zip(
            gone, await asyncio.gather(*(wait_until_unused(self._view, name, wait_s) for name in gone)), strict=True
        ):
            if uses:
                raise AdapterInUseError(name, uses)

    def _leaves(self, edit: Edit) -> bool:
        if (present := self._view.get(edit.kind, edit.name)) is None:
            return False
        before, after = settings_of(present), settings_of(Entry(edit.kind, edit.name, 0, 0, edit.value))
        return before is not None and (after is None or after.pool != before.pool)

    async def loaded(self, edits: Iterable[Edit], wait_s: float) -> list[api.ReplicaAdapter]:
        """Wait until the adapters that edits put are loaded or have failed everywhere. Return their states.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        names = sorted({edit.name for edit in edits if edit.kind == KIND and edit.value is not None})
        waits = (wait_until_loaded(self._view, name, wait_s) for name in names)
        found = zip(names, await asyncio.gather(*waits), strict=True)
        return [each for name, states in found for each in _states(name, states)]

    async def fill(self, entries: Iterable[api.RegistryEntry]) -> None:
        """Add the states on replicas to the entries of adapters.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        wanted = {entry.name: entry for entry in entries if entry.kind == KIND}
        if wanted:
            for name, states in (await adapter_status(self._view, wanted)).items():
                wanted[name].replicas.extend(_states(name, states))


def _states(name: str, states: Sequence[AdapterOnReplica]) -> list[api.ReplicaAdapter]:
    return [
        api.ReplicaAdapter(
            adapter=name,
            replica=each.replica,
            state=each.report.state.value,
            why=each.report.why,
            digest=each.report.digest,
            seconds=each.report.seconds,
            uses=each.uses,
        )
        for each in states
    ]
