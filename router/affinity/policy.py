"""The replicas that a request prefers. Pure: values in, names out. The queue decides which wishes it can follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cluster.queue.heartbeats import ReplicaRecord
from cluster.settings import AffinitySettings
from router.affinity.blocks import Trail, adapter_place, block_ends, trail_of
from router.affinity.index import BlockIndex
from router.affinity.loads import LoadView

_NOWHERE = Trail()
WORTH = 1 / 8
"""Least part of the prompt that a known beginning must cover: a system prompt that all prompts share says nothing."""
NEARLY = 3 / 4
"""Part of the longest known beginning from which another replica is as good as the one that knows most."""


class Affinity:
    """Prefix affinity of one pool on one router.

    Every session and every beginning has a home replica, drawn by rendezvous hashing: routers agree on it without
    talking to each other. A request that ran elsewhere, because its home was full, is remembered; that replica is then
    preferred besides the home. A preference is only a wish. A replica that is far fuller than the others is not
    preferred, and `fill` never leaves a replica idle because of one. So a popular beginning spreads to several
    replicas.

    Where a pool has more adapters than a replica holds, the home is drawn by the adapter, so that each adapter is read
    by few replicas. A prompt whose beginning is known goes to the replicas that know it.
    """

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._index = BlockIndex(settings.index_blocks, settings.max_preferred)
        self._loads = LoadView()
        self.hits = 0
        """Grants on a preferred replica."""
        self.misses = 0
        """Grants on another replica than the preferred ones."""
        self.indifferent = 0
        """Grants without a preference."""

    @property
    def known_blocks(self) -> int:
        """Number of names in the index."""
        return len(self._index)

    def look(
        self, ids: Sequence[int], scope: bytes, session: str, records: Mapping[str, ReplicaRecord], adapter: str = ""
    ) -> tuple[Trail, tuple[str, ...]]:
        """Return a request's trail, which `granted` takes later, and the replicas that it prefers, its home first.

        Args:
            ids: the prompt's token ids.
            scope: tenant salt and adapter, which separate caches.
            session: the client's session id; empty for none.
            records: the pool's registry, a new mapping whenever it has changed.
            adapter: adapter of the request, where replicas do not hold all adapters at the same time; else empty.
        """
        self._loads.update(records)
        if len(self._loads.live) < 2:
            return _NOWHERE, ()
        settings = self._settings
        trail = trail_of(
            ids,
            scope,
            session,
            block_tokens=settings.block_tokens,
            prefix=settings.prefix,
            sessions=settings.session,
        )
        if adapter and settings.prefix:
            trail = replace(trail, place=adapter_place(adapter), of_adapter=True)
        return trail, self._prefer(trail) if trail.place else ()

    def known_tokens(self, trail: Trail) -> int:
        """Return how many of a prompt's first tokens ran on a replica before, as far as this router knows."""
        depth = self._index.deepest(trail.blocks)
        return block_ends(self._settings.block_tokens, trail.tokens)[depth - 1] if depth else 0

    def granted(self, trail: Trail, preferred: Sequence[str], replica: str, kv_tokens: int) -> None:
        """Note where a request runs: from now on its beginning is cached there."""
        self._index.note(trail.blocks, replica)
        if trail.session is not None:
            self._index.note((trail.session,), replica)
        self._loads.granted(replica, kv_tokens)
        if not preferred:
            self.indifferent += 1
        elif replica in preferred:
            self.hits += 1
        else:
            self.misses += 1

    def _prefer(self, trail: Trail) -> tuple[str, ...]:
        home = self._home(trail)
        known = [replica for replica in dict.fromkeys(self._known(trail)) if self._loads.bears(replica)]
        if home is None or (trail.of_adapter and known):
            return tuple(known[: self._settings.max_preferred])
        if not known or home in known:
            return (home,)
        return (home, *known)[: self._settings.max_preferred]

    def _known(self, trail: Trail) -> Iterator[str]:
        """Yield replicas that have the prompt cached: that of the session, then by length of the cached beginning."""
        session = self._index.replicas(trail.session)[:1] if trail.session is not None else ()
        yield from session
        depth = self._index.deepest(trail.blocks)
        if not depth:
            return
        ends = block_ends(self._settings.block_tokens, trail.tokens)
        least = max(WORTH * trail.tokens, NEARLY * ends[depth - 1])
        while depth and ends[depth - 1] >= least:
            yield from self._index.replicas(trail.blocks[depth - 1])
            depth -= 1

    def _home(self, trail: Trail) -> str | None:
        """Return the replica that every router draws first and that is not too full; None for none."""
        return next((replica for replica in self._loads.homes.ranked(trail.place) if self._loads.bears(replica)), None)
