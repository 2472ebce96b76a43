"""Decides which replicas a request prefers. Pure: values in, names out; the queue decides what can be honoured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.queue.heartbeats import ReplicaRecord
from cluster.settings import AffinitySettings
from router.affinity.blocks import Trail, block_ends, trail_of
from router.affinity.index import BlockIndex
from router.affinity.loads import LoadView

_NOWHERE = Trail()
WORTH = 1 / 8
"""A known beginning counts from this part of the prompt on: what everybody shares (a system prompt) tells nothing."""

NEARLY = 3 / 4
"""Another replica is as good as the one that knows most from this part of the beginning on."""


class Affinity:
    """Is one pool's policy on one router.

    Every session and every beginning has a home, drawn by rendezvous: routers that share nothing agree on it. What ran
    elsewhere, because its home was full, is learned first hand and preferred beside the home. A preference is a wish: a
    replica far fuller than the others is not wished for, and `fill` never leaves a replica idle for it. So a hot
    beginning spreads, and is then known on several replicas.
    """

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._index = BlockIndex(settings.index_blocks, settings.max_preferred)
        self._loads = LoadView()
        self.hits = 0
        """Grants on a preferred replica."""
        self.misses = 0
        """Grants elsewhere though there was a preference."""
        self.indifferent = 0
        """Grants without a preference."""

    @property
    def known_blocks(self) -> int:
        """Names in the index."""
        return len(self._index)

    def look(
        self, ids: Sequence[int], scope: bytes, session: str, records: Mapping[str, ReplicaRecord]
    ) -> tuple[Trail, tuple[str, ...]]:
        """Return what `granted` needs of a request later, and the replicas that it prefers, its home first.

        Args:
            ids: the prompt's token ids.
            scope: what keeps caches apart: tenant salt and adapter.
            session: the client's session id; empty for none.
            records: the pool's registry, a new mapping whenever it changed.
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
        return trail, self._prefer(trail) if trail.place else ()

    def granted(self, trail: Trail, preferred: Sequence[str], replica: str, kv_tokens: int) -> None:
        """Learn where a request runs: from now on its beginning is cached there."""
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
        if home is None:
            return tuple(known[: self._settings.max_preferred])
        if not known or home in known:
            return (home,)
        return (home, *known)[: self._settings.max_preferred]

    def _known(self, trail: Trail) -> Iterator[str]:
        """Yield replicas by how much they know, the session's own first, then those of the deepest beginnings."""
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
        """Draw the replica that every router would draw; while it is too full, the next one."""
        return next((replica for replica in self._loads.homes.ranked(trail.place) if self._loads.bears(replica)), None)
