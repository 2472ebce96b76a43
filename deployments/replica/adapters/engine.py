"""The engine under the names of the registry's adapters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from deployments.engines.base import AdapterSink, SequenceEngine, TokenSink

_MOST_ENDED = 1_000


class AdaptingEngine:
    """Engine that knows which of its sequences run with which adapter."""

    def __init__(self, engine: SequenceEngine, key_of: Callable[[str], str]) -> None:
        """`key_of` returns the engine's name of an adapter, or raises EngineRequestError."""
        self._engine = engine
        self._key_of = key_of
        self._users: dict[str, set[str]] = {}
        """Sequences by the adapter's key, perhaps with some that have ended."""

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence.

        Raises:
            EngineRequestError: the adapter is not loaded or has other files than the output to go on with, or for the
                engine's reasons.
            EngineDeadError: the engine is dead.
        """
        if spec.lora_adapter:
            key = self._key_of(spec.lora_adapter)
            if spec.resume is not None and spec.resume.adapter_files not in ("", key):
                # Two adapters would have made one output.
                why = f"adapter {spec.lora_adapter!r} has other files here than its output began with"
                raise EngineRequestError(why, elsewhere=True)
            if isinstance(sink, AdapterSink):
                sink.on_adapter(key)
            spec = replace(spec, lora_adapter=key)
            users = self._users.setdefault(key, set())
            if len(users) > _MOST_ENDED:
                users &= set(self._engine.live_ids())
            users.add(sequence_id)
        await self._engine.submit(sequence_id, spec, sink)

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None:
        """Stop sequences."""
        await self._engine.abort(sequence_ids, reason, release_text=release_text)

    def live_ids(self) -> Collection[str]:
        """Return the ids of the sequences that have not ended."""
        return self._engine.live_ids()

    def uses(self) -> Mapping[str, int]:
        """Return the number of sequences that run with each adapter, by its key; without unused ones."""
        if not self._users:
            return {}
        live = set(self._engine.live_ids())
        self._users = {key: running for key, users in self._users.items() if (running := users & live)}
        return {key: len(users) for key, users in self._users.items()}
