"""Prefill on replicas of its own: prompts go there first, and their KV entries then to the replica that decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.parts.disaggregation import SplitTally, Transfers
from loadtest.simulate.parts.replica import PartsReplica
from loadtest.simulate.pool.approach import with_parts
from loadtest.simulate.pool.fleet import Member
from loadtest.simulate.pool.loop import EventLoop


@dataclass(slots=True, eq=False)
class _Prefiller:
    replica: PartsReplica
    place: int
    tokens: int = 0
    """Prompt tokens that are outstanding here."""
    due_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """A prompt on its way, with the request as a prefill replica sees it."""

    member: Member
    item: SimRequest
    attempt: str
    asked: SimRequest
    tokens: int


class PrefillPool:
    """Prefill replicas of a pool. A prompt goes to the one with the fewest outstanding tokens.

    Args:
        loop: of the pool.
        replicas: for prefill only.
        transfers: of KV entries.
        tally: figures of the run.
        drive: plans the steps of a replica that decodes.
    """

    def __init__(
        self,
        loop: EventLoop,
        replicas: Sequence[PartsReplica],
        transfers: Transfers,
        *,
        tally: SplitTally,
        drive: Callable[[Member], None],
    ) -> None:
        self._loop = loop
        self._pool = [_Prefiller(each, place) for place, each in enumerate(replicas)]
        self._transfers = transfers
        self._tally = tally
        self._drive = drive
        self._jobs: dict[SimRequest, _Job] = {}

    def bring(self, member: Member, item: SimRequest) -> None:
        """Have a granted request's prompt computed, and its KV entries brought to a replica."""
        with_parts(member).bring(item, self._loop.now)
        at = min(self._pool, key=lambda each: each.tokens)
        request, prior = item.request, item.prior_tokens
        # What the client has already is computed again, with the prompt.
        asked = SimRequest(
            f"{item.request_id} {item.attempt}",
            replace(request, output_tokens=prior + 1),
            item.router,
            item.arrived_at,
            prior_tokens=prior,
            scheduled_at=item.scheduled_at,
        )
        job = self._jobs[asked] = _Job(member, item, item.attempt, asked, request.prompt_tokens + prior)
        at.tokens += job.tokens
        ready_at = at.replica.bring(asked, self._loop.now)
        if ready_at <= self._loop.now:
            self._join((at, asked))
        else:
            self._loop.at(ready_at, self._join, (at, asked))

    def _join(self, of: tuple[_Prefiller, SimRequest]) -> None:
        at, asked = of
        at.replica.join(asked, self._loop.now)
        self._go_on(at)

    def _go_on(self, at: _Prefiller) -> None:
        replica = at.replica
        replica.begin(self._loop.now)
        if replica.ends_at is not None and replica.ends_at != at.due_at:
            at.due_at = replica.ends_at
            self._loop.at(replica.ends_at, self._step_over, (at, replica.ends_at))

    def _step_over(self, due: tuple[_Prefiller, float]) -> None:
        at, ends_at = due
        if at.replica.ends_at != ends_at:
            return
        at.due_at = None
        for asked in at.replica.end().finished:
            self._send(at, self._jobs.pop(asked))
        seconds, _ = at.replica.log.drop(at.replica.needed_from)
        self._tally.busy_s += sum(seconds)
        self._go_on(at)

    def _send(self, at: _Prefiller, job: _Job) -> None:
        at.tokens -= job.tokens
        item = job.item
        if item.scheduled_at is None:
            item.scheduled_at, item.cached_tokens = job.asked.scheduled_at, job.asked.cached_tokens
        if self._waits(job):
            now = self._loop.now
            ready_at = self._transfers.send(at.place, job.member.name, job.tokens, now)
            self._tally.sent(ready_at - now)
            self._loop.at(ready_at, self._arrived, job)

    def _arrived(self, job: _Job) -> None:
        if self._waits(job):
            with_parts(job.member).receive(job.item, self._loop.now)
            self._drive(job.member)

    def _waits(self, job: _Job) -> bool:
        """Return whether the replica still waits for a prompt. It may have died, and the request be elsewhere."""
        item = job.item
        return item.attempt == job.attempt and job.member.replica.running.get(item.request_id) is item
