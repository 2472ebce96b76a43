"""The adapters of a replica: it follows the registry, and loads and unloads them."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from cluster.errors import EngineDeadError, EngineRequestError
from cluster.lifecycle import TaskOwner
from cluster.registry.adapters import KIND, ReplicaReport
from cluster.registry.contract import Entry, RegistryStore, Watcher
from cluster.registry.view import RegistryView
from deployments.engines.adapter_files import make_home
from deployments.engines.base import Engine
from deployments.replica.adapters import source
from deployments.replica.adapters.engine import AdaptingEngine
from deployments.replica.adapters.plan import AdapterPlan, Load, Unload, key_of

_LOG = logging.getLogger(__name__)

KNOWN_S = 15.0
"""Longest wait for the registry at a start. A replica whose Redis is away takes no work before it is back anyway."""
TICK_S = 0.25
"""Pause between two looks at what is in use, and at what may be tried again."""


class AdapterKeeper:
    """Loader of the adapters that the registry has for a replica's pool."""

    def __init__(self, store: RegistryStore, watcher: Watcher, engine: Engine, own: tuple[str, ...]) -> None:
        """`own`: adapters that the engine has by its settings."""
        self.view = RegistryView(store, watcher)
        self._engine = engine
        self._plan = AdapterPlan(watcher.pool, own)
        self.sequences = AdaptingEngine(engine, self._plan.key)
        """The engine for attempts, which name adapters as requests do."""
        self._owner = TaskOwner("adapters")
        self._folders: dict[str, Path] = {}
        """Copy of each adapter's files, by its key."""
        self._home: Path | None = None
        self._base = Path(tempfile.gettempdir())
        self._report = ReplicaReport()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()

    async def start(self, base: Path | None = None) -> None:
        """Load what the registry has for the pool. Return when each adapter is loaded or has failed.

        Args:
            base: folder for copies of the adapters' files; None takes the one for temporary files.
        """
        self._base = base or self._base
        self.view.listen(KIND, self._hear)
        self._owner.spawn(self.view.watch(), "watch")
        with suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_S):
                await self.view.known.wait()
        if not self.view.known.is_set():
            _LOG.warning("adapters.registry_unknown")
        self._owner.spawn(self._keep(), "keep")
        await self._settled.wait()

    async def close(self) -> None:
        """Stop, and remove the copies. Call it after the engine is closed."""
        await self._owner.close()
        await self.view.close()
        if self._home is not None:
            await asyncio.to_thread(source.remove, self._home)

    def _hear(self, entry: Entry) -> None:
        self._plan.hear(entry)
        # Before others can read that this version is known here.
        self._tell()
        self._changed.set()

    def _tell(self) -> None:
        report = self._plan.report(self.sequences.uses())
        if report != self._report:
            self._report = report
            self.view.report(report.pack())

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            uses = self.sequences.uses()
            step = self._plan.next(time.monotonic(), lambda key, uses=uses: key in uses)  # type: ignore[misc]
            if step is None:
                self._settled.set()
                self._tell()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
                continue
            await (self._unload(step) if isinstance(step, Unload) else self._load(step))
            self._tell()

    async def _load(self, load: Load) -> None:
        began = time.monotonic()
        try:
            digest = await self._bring(load)
        except Exception as error:  # noqa: BLE001
            # Hubs and archives raise exceptions of many kinds. Others must load all the same.
            plain = isinstance(error, EngineRequestError | EngineDeadError | OSError | ValueError)
            why = str(error) if plain else f"{type(error).__name__}: {error}"
            self._plan.failed(load, why[:500], time.monotonic())
            _LOG.warning("adapters.failed", extra={"adapter": load.name, "version": load.version, "why": why[:500]})
            return
        seconds = time.monotonic() - began
        self._plan.loaded(load, digest, seconds)
        _LOG.info("adapters.loaded", extra={"adapter": load.name, "digest": digest, "seconds": round(seconds, 3)})

    async def _bring(self, load: Load) -> str:
        if self._home is None:
            self._home = await asyncio.to_thread(make_home, self._base)
        digest, copy = await asyncio.to_thread(source.fetch, load.settings, self._home)
        key = key_of(load.name, digest)
        try:
            if not self._plan.has(key):
                await self._engine.load_adapter(key, copy)
                self._folders[key] = copy
        finally:
            if self._folders.get(key) != copy:
                await asyncio.to_thread(source.remove, copy)
        return digest

    async def _unload(self, step: Unload) -> None:
        try:
            await self._engine.unload_adapter(step.key)
        except EngineDeadError:
            _LOG.warning("adapters.engine_dead", extra={"adapter": step.key})
        except Exception:  # noqa: BLE001 - others must come and go all the same
            _LOG.exception("adapters.not_unloaded", extra={"adapter": step.key})
        self._plan.unloaded(step.key)
        if (folder := self._folders.pop(step.key, None)) is not None:
            await asyncio.to_thread(source.remove, folder)
        _LOG.info("adapters.unloaded", extra={"adapter": step.key})
