"""Serves a pool under a manual clock: requests arrive, run for as long as their tokens take, and end."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import QueueFullError, QuotaExceededError
from cluster.queue.entries import Grant, QueueEntry, Settlement
from tests.cluster.queue.backends import Scene, entry

ROUTERS = ("A", "B")
PREFILL_S = 0.001
"""Per prompt token."""
DECODE_S = 0.02
"""Per output token."""


@dataclass(order=True)
class Event:
    """Something that happens at a moment."""

    at: float
    number: int
    what: str = field(compare=False)
    job: Job = field(compare=False)


@dataclass
class Job:
    """A request's life."""

    entry: QueueEntry
    router: str
    used: int
    arrives: float
    started: float = -1.0
    ended: float = -1.0
    attempt: str = ""


class Shop:
    """Acts two routers that share a pool; every job goes in by the next of them."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.jobs: dict[str, Job] = {}
        self.refused: list[tuple[str, Exception]] = []
        self._events: list[Event] = []
        self._count = 0
        self._start = scene.clock.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the shop opened."""
        return self.scene.clock.monotonic() - self._start

    def job(self, tenant: str, at: float, prompt: int, used: int, declared: int | None = None, **changes: Any) -> Job:
        """Plan an arrival; `declared` is its max_tokens, by default what it uses."""
        name = f"{tenant}-{self._count}"
        expected = used if declared is None else declared
        fields = {"prompt_tokens": prompt, "expected_tokens": expected, "kv_tokens": prompt + expected}
        new = entry(name, tenant=tenant, max_tokens=expected, **{**fields, **changes})
        job = Job(new, ROUTERS[self._count % 2], used, at)
        self.jobs[name] = job
        self._plan(at, "arrive", job)
        return job

    def _plan(self, at: float, what: str, job: Job) -> None:
        self._count += 1
        heapq.heappush(self._events, Event(at, self._count, what, job))

    async def run(self, until: float) -> None:
        """Let time pass up to a moment."""
        beat_at = self.now
        while self._events and self._events[0].at <= until:
            event = heapq.heappop(self._events)
            while event.at - beat_at >= 1.0:
                beat_at += 1.0
                self._to(beat_at)
                await self._beat()
            self._to(event.at)
            await (self._arrive(event.job) if event.what == "arrive" else self._end(event.job))
        self._to(until)

    def _to(self, at: float) -> None:
        if at > self.now:
            self.scene.clock.advance(at - self.now)

    async def _beat(self) -> None:
        for name in self.scene.replicas:
            running = tuple((j.entry.request_id, j.attempt) for j in self.jobs.values() if j.started >= 0 > j.ended)
            await self.scene.beat_replica(name, running=running, prefilled=tuple(name for name, _ in running))
        for router in ROUTERS:
            reply = await self.scene.beat_router(router)
            for grant in reply.mail.grants:
                self._granted(grant)

    async def _arrive(self, job: Job) -> None:
        try:
            answer = await self.scene.queue.submit(job.router, job.entry)
        except (QueueFullError, QuotaExceededError) as error:
            self.refused.append((job.entry.tenant, error))
            del self.jobs[job.entry.request_id]
            return
        if answer.grant:
            self._granted(answer.grant)

    async def _end(self, job: Job) -> None:
        job.ended = self.now
        mail = await self.scene.queue.release(job.router, job.entry.request_id, job.attempt, Settlement(job.used))
        for grant in mail.grants:
            self._granted(grant)
        for router in ROUTERS:
            for grant in (await self.scene.queue.collect(router)).grants:
                self._granted(grant)

    def _granted(self, grant: Grant) -> None:
        job = self.jobs[grant.request_id]
        if job.attempt == grant.attempt:
            return
        assert job.started < 0, "granted twice"
        job.attempt, job.started = grant.attempt, self.now
        self._plan(self.now + service_s(job), "end", job)

    # --- what came of it ---

    def served(self, since: float = 0.0) -> dict[str, float]:
        """Tokens of ended jobs by tenant, prompt and output."""
        tokens: dict[str, float] = defaultdict(float)
        for job in self.jobs.values():
            if job.ended >= since:
                tokens[job.entry.tenant] += job.entry.prompt_tokens + job.used
        return dict(tokens)

    def waits(self, tenant: str) -> list[float]:
        """Seconds that each started job of a tenant waited, in order."""
        return sorted(j.started - j.arrives for j in self.jobs.values() if j.entry.tenant == tenant and j.started >= 0)


def service_s(job: Job) -> float:
    """How long a job runs."""
    return job.entry.prompt_tokens * PREFILL_S + job.used * DECODE_S
