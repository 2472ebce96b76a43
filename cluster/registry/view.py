"""A process' view of the registry: all entries in memory, followed by one cheap look a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner, timeout_awake
from cluster.registry.contract import Author, Edit, Entry, Look, Past, Position, RegistryStore, Sighting, Watcher

_LOG = logging.getLogger(__name__)

LOOK_S = 0.5
"""Pause between two looks. With it a change is in force everywhere within a second."""
FOLLOWERS = ("router", "replica", "autoscaler")
"""Kinds of processes that put entries in force."""
GONE_MS = 5_000
"""A watcher that has not looked for so long is not waited for."""
_TRIES = 3
"""Tries of an edit in a registry that is being given back."""

Listener = Callable[[Entry], None]
"""Function that gets each entry of a kind that has changed, also a deleted one."""


class RegistryView:
    """View of the registry. It outlives a Redis that loses its data: what it knows goes back there.

    It never forgets while it can't look: what was in force stays in force.
    """

    def __init__(self, store: RegistryStore, watcher: Watcher) -> None:
        self._store = store
        self._watcher = watcher
        self._position = Position()
        self._held: Position | None = None
        """What other processes read as known here; None for the position itself."""
        self._entries: dict[tuple[str, str], Entry] = {}
        self._kinds: dict[str, dict[str, Entry]] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._looking = asyncio.Lock()
        self._away = False
        self.known = asyncio.Event()
        """Set after the first look that succeeded."""

    @property
    def version(self) -> int:
        """Version of the registry that is in force here."""
        return self._position.version

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """Return the entries of a kind by name, without deleted ones."""
        return MappingProxyType(self._kinds.get(kind, {}))

    def get(self, kind: str, name: str) -> Entry | None:
        """Return an entry; None where there is none."""
        return self._kinds.get(kind, {}).get(name)

    def listen(self, kind: str, listener: Listener) -> None:
        """Call a function with each changed entry of a kind, and at once with those that are known."""
        self._listeners.setdefault(kind, []).append(listener)
        for entry in list(self.entries(kind).values()):
            listener(entry)

    def report(self, report: bytes) -> None:
        """Tell other processes, from the next look on, what this one made of the entries."""
        self._watcher = replace(self._watcher, report=report)

    def hold(self) -> None:
        """Bring what has changed into force later: until `release` other processes read that it is not in force here.
        For listeners.
        """
        if self._held is None:
            self._held = self._position

    def release(self) -> None:
        """Note that all that is known here is in force."""
        self._held = None

    @property
    def _shown(self) -> Position:
        return self._position if self._held is None else self._held

    async def start(self, owner: TaskOwner, seconds: float) -> None:
        """Follow the registry from now on. Returns after the first look, or after so many seconds without Redis."""
        owner.spawn(self.watch(), "registry")
        with suppress(TimeoutError):
            async with timeout_awake(seconds):
                await self.known.wait()

    async def watch(self) -> NoReturn:
        """Look again and again; runs until it is cancelled."""
        while True:
            try:
                await self.refresh()
            except QueueUnavailableError as error:
                if not self._away:
                    _LOG.warning("registry.away", extra={"why": str(error), "version": self.version})
                self._away = True
            else:
                self._away = False
            await asyncio.sleep(LOOK_S)

    async def refresh(self) -> None:
        """Look now.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        async with self._looking:
            look = await self._store.look(self._watcher, self._shown)
            if await self._give_back(look.position):
                look = await self._store.look(self._watcher, self._shown)
            await self._take(look)
            self.known.set()

    async def _give_back(self, theirs: Position) -> bool:
        """Give back what the store lost. Return whether there was something to give."""
        mine = self._position
        if not self._entries or (theirs.life == mine.life and theirs.version >= mine.version):
            return False
        lost = [one for one in self._entries.values() if theirs.life != mine.life or one.version > theirs.version]
        back = await self._store.restore(mine, sorted(lost, key=lambda one: one.version))
        _LOG.warning("registry.restored", extra={"entries": back, "version": mine.version, "found": theirs.version})
        return True

    async def _take(self, look: Look) -> None:
        position, whole, found = look.position, look.whole, list(look.entries)
        while look.more:
            look = await self._store.look(self._watcher, self._shown, look.entries[-1].version)
            found += look.entries
        if whole:
            here = {(entry.kind, entry.name) for entry in found}
            gone = [one for key, one in self._entries.items() if key not in here and one.value is not None]
            found += [replace(one, value=None) for one in gone]
        changed = [entry for entry in found if self._put(entry)]
        # After the listeners: other processes read that this version is in force here.
        for entry in changed:
            for listener in self._listeners.get(entry.kind, ()):
                listener(entry)
        self._position = position

    def _put(self, entry: Entry) -> bool:
        key = entry.kind, entry.name
        old = self._entries.get(key)
        self._entries[key] = entry
        kind = self._kinds.setdefault(entry.kind, {})
        if entry.value is None:
            kind.pop(entry.name, None)
        else:
            kind[entry.name] = entry
        return old is None or old.value != entry.value

    async def apply(self, edits: Sequence[Edit], author: Author) -> int:
        """Make edits, all or none. Return the version of the registry with them; they are in force here.

        Raises:
            RegistryConflictError: an entry does not have the version that was expected.
            QueueUnavailableError: Redis does not answer.
        """
        for _ in range(_TRIES):
            position = await self._store.apply(edits, author, self._position)
            await self.refresh()
            mine = self._position
            # A store that loses its data between the two has lost the edits too.
            if position is not None and position.life == mine.life and position.version <= mine.version:
                return position.version
        raise QueueUnavailableError("the registry is being restored")

    async def watchers(self) -> Sequence[Sighting]:
        """Return the processes that follow the registry and live."""
        return [each for each in await self._store.watchers() if each.age_ms <= GONE_MS]

    async def behind(self, version: int, timeout_s: float, kinds: Iterable[str] = FOLLOWERS) -> list[str]:
        """Wait until every process knows a version. Return the ids of those that do not after the timeout."""
        until, wanted = time.monotonic() + timeout_s, frozenset(kinds)
        while True:
            seen = await self.watchers()
            late = sorted(
                each.watcher.id
                for each in seen
                if each.watcher.kind in wanted and each.version < version and each.watcher.id != self._watcher.id
            )
            if not late or time.monotonic() >= until:
                return late
            await asyncio.sleep(min(LOOK_S / 2, max(0.0, until - time.monotonic())))

    async def history(self, kind: str, name: str, limit: int, before: int | None = None) -> Past:
        """Return changes. The arguments are those of the store."""
        return await self._store.history(kind, name, limit, before)

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()
