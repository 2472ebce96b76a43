"""The replicas of a pool as this router sees them, and its links to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cluster.lifecycle import TaskOwner
from cluster.queue.heartbeats import DRAIN_CODES, ReplicaRecord
from cluster.ray_serve.successors import Standing, superseded
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from penstock.models import DrainReason, ReplicaState
from router.links.abandoned import AbandonedAttempts
from router.links.breaker import Breaker, BreakerLimits
from router.links.failure import NO_LIMITS, RecoveryLimits
from router.links.link import ReplicaLink
from router.links.orphaned_output import OrphanedOutput
from router.links.placement import Group, Placement
from router.links.safeguards import LinkSafeguards

_LOG = logging.getLogger(__name__)


class ReplicaSet:
    """Replicas of one pool. Follows the registry: opens links to new replicas, closes idle links to lost ones."""

    def __init__(
        self,
        pool: str,
        router_id: str,
        secret: ClusterSecret,
        dialer: LinkDialer,
        *,
        ping_s: float,
        attach_grace_s: float,
        limits: RecoveryLimits = NO_LIMITS,
        breakers: BreakerLimits = BreakerLimits(),  # noqa: B008  # frozen
        on_change: Callable[[], None],
        origins: Callable[[], Iterable[Group]] = tuple,
    ) -> None:
        """Start without replicas.

        `on_change` is called whenever the set of usable links changes. `origins` lists the groups in which output began
        that waits to go on.
        """
        self._pool = pool
        self._router_id = router_id
        self._secret = secret
        self._dialer = dialer
        self._ping_s = ping_s
        self._grace_s = attach_grace_s
        self._breaker_limits = breakers
        self._breakers: dict[str, Breaker] = {}
        self._abandoned = AbandonedAttempts()
        self.orphaned_output = OrphanedOutput(attach_grace_s)
        self._safeguards = LinkSafeguards(self.orphaned_output, self._abandoned, limits)
        self._on_change = on_change
        self._origins = origins
        self._links: dict[str, ReplicaLink] = {}
        self._awaited: Counter[str] = Counter()
        """Replicas whose links a caller of `reach` waits for; the registry may not know them."""
        self._owner = TaskOwner(f"replicas.{pool}")
        self.wanted: int | None = None
        """Number of replicas that the pool is to have; None while an autoscaler may choose another one."""
        self.records: dict[str, ReplicaRecord] = {}
        """Records of all replicas. Those that a newer Ray cluster replaces drain, whatever they say."""
        self._told: dict[str, ReplicaRecord] = {}
        """The same as the replicas report them."""
        self._superseded: dict[str, float] = {}
        """Replicas that a newer Ray cluster replaces, with the time since when; monotonic seconds."""
        self._kept = frozenset[str]()
        """Others that it replaces, and that are kept for output that waits."""
        self.announcements: dict[str, Announcement] = {}
        self._tokenizer = ""
        """Digest of the tokenizer that most of them have; in a roll-out there may be two."""
        self._cut_off_at: float | None = None
        """When the last link to a replica that takes work went down; monotonic seconds. None while one is up."""
        self.price_per_gpu_hour: float | None = None
        """Price of the pool's accelerators; None for those that replicas announce."""
        self.first_seen = asyncio.Event()
        """Set once a replica of this cluster has been seen."""

    def update(self, records: Sequence[ReplicaRecord], *, complete: bool = True) -> None:
        """Take the registry's current content. `complete`: a replica that is missing has lost its lease. After a
        restart of the store the registry is not complete until every replica had time to report again.
        """
        self._told = {}
        for record in records:
            announcement = self.announcements.get(record.replica_id) or self._trust(record)
            if announcement is None:
                continue
            self._told[record.replica_id] = record
            self.announcements[record.replica_id] = announcement
            if record.replica_id not in self._links and record.state is not ReplicaState.STARTING:
                self._dial(announcement.replica_id, announcement.address)
        for replica_id in self._told:
            if replica_id in self._links:
                self._links[replica_id].lease_found()
        for replica_id in [r for r in self._links if r not in self._told]:
            link = self._links[replica_id]
            # Its lease is lost, but its streams go on while the link is up.
            if complete:
                link.lease_lost()
            if not link.up and not link.busy and not self._awaited[replica_id]:
                del self._links[replica_id]
                self._breakers.pop(replica_id, None)
                self.announcements.pop(replica_id, None)
                self.orphaned_output.forget(replica_id)
                self._owner.spawn(link.close(), "close")
        self._supersede(time.monotonic())
        if self.records:
            self.first_seen.set()

    def _replaced(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the replicas that a newer Ray cluster replaces, and those of them that are kept for a while."""
        standings = []
        for replica_id, record in self._told.items():
            known, link = self.announcements[replica_id], self._links.get(replica_id)
            # After a pause it is tried beside those that it is to replace. Otherwise each try would stop the pool.
            works = link is not None and link.up and not link.suspect and not self._tripped(replica_id)
            ready = record.state is ReplicaState.READY
            standings.append(Standing(replica_id, known.ray_cluster, known.ray_started_at, ready, works))
        found = superseded(standings, self.wanted)
        needed = self._needed(found) if found else found
        return found - needed, found & needed

    def _needed(self, replaced: frozenset[str]) -> frozenset[str]:
        """Return those of the replaced ones that alone can go on with output that waits."""
        able = [name for name, link in self._links.items() if name in self._told and link.up and not link.suspect]
        able = [name for name in able if self._told[name].state is ReplicaState.READY]
        needed: set[str] = set()
        for origin in set(self._origins()):
            same = {name for name in able if self.announcements[name].group_id == origin.group_id}
            like = same or {name for name in able if self.announcements[name].model.digest == origin.model_digest}
            if like <= replaced:
                needed |= like
        return frozenset(needed)

    def _tripped(self, replica_id: str) -> bool:
        breaker = self._breakers.get(replica_id)
        return breaker is not None and breaker.tripped

    def _supersede(self, now: float) -> None:
        """Bring the records up to date with what replicas report, and with those that are replaced."""
        (found, self._kept), before = self._replaced(), self._superseded.keys()
        for replica_id in found - before:
            _LOG.info("replica.superseded", extra={"replica": replica_id})
        # A new value each time: `connected` reads it on another thread.
        self._superseded = {replica_id: self._superseded.get(replica_id, now) for replica_id in found}
        self.records = {
            replica_id: _draining(record, now - self._superseded[replica_id]) if replica_id in found else record
            for replica_id, record in self._told.items()
        }
        self._tokenizer = self._usual_tokenizer()
        if found != before:
            self._on_change()

    def _trust(self, record: ReplicaRecord) -> Announcement | None:
        announcement = Announcement.open(record.record, self._secret)
        # A real record under another id or in another pool was copied there by a writer who only has access to Redis.
        if announcement is None or (announcement.replica_id, announcement.pool) != (record.replica_id, self._pool):
            _LOG.error("replica.untrusted", extra={"replica": record.replica_id})
            return None
        return announcement

    def _usual_tokenizer(self) -> str:
        """Return the digest of the tokenizer that most replicas have which take work; of as many, the one before."""
        ready = [name for name, record in self.records.items() if record.state is ReplicaState.READY]
        ready = [name for name in ready if not self._tripped(name)] or ready
        found = Counter(self.announcements[name].model.tokenizer_digest for name in ready)
        most = max(found.values(), default=0)
        return (
            self._tokenizer if found[self._tokenizer] == most else next(each for each in found if found[each] == most)
        )

    def _dial(self, replica_id: str, address: str) -> ReplicaLink:
        link = ReplicaLink(
            replica_id,
            address,
            self._router_id,
            self._secret,
            self._dialer,
            ping_s=self._ping_s,
            attach_grace_s=self._grace_s,
            on_change=self._on_change,
            safeguards=self._safeguards,
        )
        self._links[replica_id] = link
        link.start()
        return link

    def reconsider(self, now: float) -> None:
        """Decide anew which replicas are replaced: a link came up or went, a replica failed or works again, or output
        waits to go on.
        """
        if self._replaced() != (frozenset(self._superseded), self._kept):
            self._supersede(now)

    def keeps(self, replica_id: str) -> bool:
        """Return whether a replica takes work only for output that goes on: what begins there would outlive it, and no
        other replica could finish it.
        """
        return replica_id in self._kept

    def keep_for(self, origin: Group) -> None:
        """Keep a place for output of this group, which waits from now on: a replaced replica may be the only one."""
        known = (self.announcements.get(name) for name in self._superseded)
        if any(each is not None and each.model.digest == origin.model_digest for each in known):
            self.reconsider(time.monotonic())

    def look(self, now: float) -> None:
        """Note whether this router reaches any replica that takes work; called with every heartbeat."""
        self.reconsider(now)
        ready = [name for name, record in self.records.items() if record.state is ReplicaState.READY]
        cut_off = bool(ready) and not any(name in self._links and self._links[name].up for name in ready)
        if not cut_off:
            self._cut_off_at = None
        elif self._cut_off_at is None:
            self._cut_off_at = now

    def cut_off_s(self, now: float) -> float:
        """Return for how long replicas have taken work and this router has reached none of them, in seconds."""
        return now - self._cut_off_at if self._cut_off_at is not None else 0.0

    def link(self, replica_id: str) -> ReplicaLink | None:
        """Return the replica's link if it is up."""
        link = self._links.get(replica_id)
        return link if link is not None and link.up else None

    def why_down(self, replica_id: str) -> str:
        """Return why the replica's link is down; empty where it is up."""
        link = self._links.get(replica_id)
        if link is None:
            return "this router does not dial it"
        return "" if link.up else link.down_because

    def place(self, replica_id: str) -> Placement | None:
        """Return the placement on a replica; None where its link is not up."""
        link = self.link(replica_id)
        return self.placement(link) if link is not None else None

    def placement(self, link: ReplicaLink) -> Placement:
        """Return the placement on a link's replica, with empty fields where the router knows too little of it."""
        known = self.announcements.get(link.replica_id)
        if known is None:
            return Placement(link, "", 0.0, "")
        model = known.model
        price_per_s = self.price_of(known) / 3600
        record = self.records.get(link.replica_id)
        return Placement(link, known.group_id, price_per_s, model.digest, model.tokenizer_digest, record)

    def price_of(self, known: Announcement) -> float:
        """Return the price of one of a replica's accelerators per hour."""
        return known.price_per_gpu_hour if self.price_per_gpu_hour is None else self.price_per_gpu_hour

    def cost_per_hour(self, replica_id: str) -> float:
        """Return the price of all accelerators of a known replica per hour."""
        known = self.announcements[replica_id]
        return self.price_of(known) * known.accelerators

    async def reach(self, replica_id: str, address: str, seconds: float) -> ReplicaLink | None:
        """Return a link that is up; None when that takes longer than `seconds`. An address that the registry does not
        know is dialled.
        """
        link = self._links.get(replica_id) or self._dial(replica_id, address)
        self._awaited[replica_id] += 1
        try:
            return link if link.up or await link.wait_up(seconds) else None
        finally:
            self._awaited -= Counter((replica_id,))

    def stop(self, replica_id: str, request_id: str, attempt: str) -> None:
        """Stop an attempt that has no receiver here, now or when its replica is reached again."""
        if (link := self.link(replica_id)) is not None:
            link.stop(request_id, attempt)
        else:
            self._abandoned.add(replica_id, request_id, attempt)

    def connected(self) -> tuple[str, ...]:
        """Return the replicas that can get work over a link that is up. Safe to call from another thread."""
        paused, replaced = self.paused(), self._superseded
        return tuple(
            replica_id
            for replica_id, link in self._links.copy().items()
            if link.up and not link.suspect and replica_id not in paused and replica_id not in replaced
        )

    def reading(self, tokenizer_digest: str) -> list[str]:
        """Return the replicas whose tokenizer has this digest, those first that get work: others can be asked too."""
        first = self.connected()
        others = [name for name, link in self._links.items() if link.up and name not in first]
        known = ((name, self.announcements.get(name)) for name in (*first, *others))
        # One that a client named may not have announced itself.
        return [name for name, each in known if each is not None and each.model.tokenizer_digest == tokenizer_digest]

    def paused(self) -> frozenset[str]:
        """Return the replicas that failed too often and get no work for a while. Safe to call from another thread."""
        now = time.monotonic()
        return frozenset(name for name, breaker in self._breakers.copy().items() if breaker.is_open(now))

    def failed(self, replica_id: str) -> None:
        """Note an attempt that a replica failed."""
        now = time.monotonic()
        breaker = self._breakers.setdefault(replica_id, Breaker(self._breaker_limits))
        was_open = breaker.is_open(now)
        breaker.failed(now)
        if breaker.is_open(now) and not was_open:
            _LOG.warning("replica.paused", extra={"replica": replica_id})
            self.reconsider(now)
            self._on_change()

    def succeeded(self, replica_id: str) -> None:
        """Note an attempt that produced output."""
        if self._breakers and (breaker := self._breakers.pop(replica_id, None)) is not None and breaker.tripped:
            _LOG.info("replica.works_again", extra={"replica": replica_id})
            self.reconsider(time.monotonic())
            self._on_change()

    def groups(self, besides: str) -> Iterator[Group]:
        """Yield the groups of the replicas that take work from this router, except for `besides`. Those that are paused
        will take some again.
        """
        for replica_id in (*self.connected(), *self.paused()):
            record, known = self.records.get(replica_id), self.announcements.get(replica_id)
            link, ready = self.link(replica_id), record is not None and record.state is ReplicaState.READY
            takes_work = ready and link is not None and not link.suspect
            if replica_id != besides and takes_work and known is not None:
                yield Group(known.group_id, known.model.digest, known.model.tokenizer_digest)

    def any_announcement(self) -> Announcement | None:
        """Return the announcement of one of the replicas, with the tokenizer that most of them have; None where there
        is none.
        """
        known = self.announcements.values()
        usual = (each for each in known if each.model.tokenizer_digest == self._tokenizer)
        return next(usual, next(iter(known), None))

    def alike(self, group_id: str) -> Announcement | None:
        """Return the announcement of a replica of a group; None where there is none, or no group."""
        known = self.announcements.values() if group_id else ()
        return next((each for each in known if each.group_id == group_id), None)

    def with_tokenizer(self, digest: str) -> Announcement | None:
        """Return the announcement of a replica whose tokenizer has this digest; None where there is none, or no
        digest.
        """
        known = self.announcements.values() if digest else ()
        return next((each for each in known if each.model.tokenizer_digest == digest), None)

    def ready(self) -> int:
        """Return the number of replicas that take work."""
        return sum(1 for record in self.records.values() if record.state is ReplicaState.READY)

    def capacity(self) -> int:
        """Return how many sequences the replicas that take work can hold at once."""
        return sum(r.windows.sequences for r in self.records.values() if r.state is ReplicaState.READY)

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
        await self._owner.close()


def _draining(record: ReplicaRecord, seconds: float) -> ReplicaRecord:
    """Return the record of a replica that a newer Ray cluster has replaced for so long."""
    why = {"drain_reason": DRAIN_CODES[DrainReason.SUPERSEDED], "draining_s": seconds}
    return replace(record, state=ReplicaState.DRAINING, stats={**record.stats, **why})
