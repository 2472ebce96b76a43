"""From a checked request to a running generation."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock.v1 import replica_pb2 as pb

from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    KeyReusedError,
    NoReplicaError,
    NotInTimeError,
    PenstockError,
    QuarantinedError,
    QueueFullError,
    QueueUnavailableError,
    QuotaExceededError,
    UnavailableError,
)
from cluster.lifecycle import uninterrupted
from cluster.models import ModelInfo, SamplingParams
from cluster.queue.entries import Adopted, KnownRequest, QueueEntry
from cluster.secret import ClusterSecret
from cluster.ticket import ResumeTicket, TicketChoice
from cluster.wire import request_class_to_wire, sampling_to_wire
from router.admission import CheckedRequest, ResumePoint, choice_sampling, resolve
from router.affinity import CacheSalts, Trail
from router.dispatch.choice import Choice, ChoiceState
from router.dispatch.generation import Generation
from router.dispatch.in_time import SHED, TimeBounds, refusal
from router.dispatch.pool import Pool
from router.identity import Caller, TenantPolicies, require_class
from router.service.catalog import Catalog
from router.tokens.guess import likely_tokens

JOIN_S = 5.0
"""How long the result of a request that has just ended is waited for."""
JOIN_POLL_S, JOIN_POLL_MOST_S = 0.05, 0.5
"""Between two looks at the key of a request that runs or has just ended, at first and at last."""
_NO_DEMAND = (QuotaExceededError, KeyReusedError, QuarantinedError)
"""More replicas would not serve who is refused like this."""
CONTINUING = 32
"""Requests that are continued at the same time. When a router dies all its clients come at once; taken all together
each would take as long as all of them, and the replicas, which wait for the others while some come, would see nobody
come within the grace."""


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Is a request that its model can serve."""

    checked: CheckedRequest
    caller: Caller
    pool: Pool
    info: ModelInfo
    ids: Sequence[int]
    params: SamplingParams
    n: int
    salt: str
    """The tenant's cache salt."""
    trail: Trail
    preferred: tuple[str, ...]
    deadline: float | None
    """When the call must have ended; monotonic seconds, as `arrived_at`."""
    arrived_at: float
    counted: bool
    """Whether it is counted as demand."""

    def run_s(self) -> float | None:
        """Estimate how long it runs."""
        return self.pool.estimate.run_s(len(self.ids), self.params.max_tokens)

    def start_within_ms(self) -> int:
        """Return how long it may wait: until its queue timeout, or until it could not end in time; 0 is no bound.

        Raises:
            NotInTimeError: it could not end in time if it started now.
        """
        bounds = []
        if self.checked.queue_timeout_s is not None:
            bounds.append(self.checked.queue_timeout_s)
        if self.deadline is not None:
            left_s, run_s = self.deadline - time.monotonic(), self.run_s() or 0.0
            if run_s > left_s:
                raise NotInTimeError("deadline", run_s, left_s, None)
            bounds.append(left_s - run_s)
        return max(1, int(min(bounds) * 1000)) if bounds else 0


class Opening:
    """Admits requests: tokenizes, settles them against the model, and puts their choices in line."""

    def __init__(
        self,
        catalog: Catalog,
        secret: ClusterSecret,
        router_id: str,
        policies: TenantPolicies,
        expected_output_tokens: int,
        salts: CacheSalts,
    ) -> None:
        self._catalog = catalog
        self._policies = policies
        self._salts = salts
        self._secret = secret
        self._router_id = router_id
        self._expected_output_tokens = expected_output_tokens
        self._continuing = asyncio.Semaphore(CONTINUING)

    async def open(
        self,
        checked: CheckedRequest,
        *,
        caller: Caller,
        time_left_s: float | None,
        resume: ResumePoint | None = None,
        counted: bool = True,
    ) -> Generation | bytes:
        """Start a generation, continue one, or return the kept result of its idempotency key (see `kept`). What is
        started or refused for want of room counts as demand, unless it is an item of a job.

        Raises:
            PermissionDeniedError: the caller may not use this model or class.
            InvalidRequestError, KeyReusedError: the request can't be served as asked.
            ModelNotFoundError: the cluster does not serve the model.
            QueueFullError, QuotaExceededError, NotInTimeError, UnavailableError: not now.
        """
        arrived_at = time.monotonic()
        require_class(caller, checked.request_class)
        pool = self._catalog.pool(checked.model, caller)
        try:
            info, tokenizer = await self._catalog.model(pool)
        except NoReplicaError:
            if counted:
                # Who is turned away is demand too: a pool of none would never have a replica that brings a tokenizer.
                most = checked.sampling.max_tokens or self._expected_output_tokens
                size = (likely_tokens(checked.prompt), most, self._expected_output_tokens, checked.n)
                pool.arrivals.arrived(checked.request_class, *size)
            raise
        ids = await tokenizer.encode_prompt(checked.prompt)
        params, n = resolve(checked, info, len(ids))
        deadline = None if time_left_s is None else arrived_at + time_left_s
        salt = self._salts.of(caller.tenant)
        scope = f"{checked.lora_adapter}\0{salt}".encode()
        trail, preferred = pool.affinity.look(ids, scope, checked.session_id, pool.replicas.records)
        admitted = _Admitted(
            checked, caller, pool, info, ids, params, n, salt, trail, preferred, deadline, arrived_at, counted
        )
        if resume is not None and resume.token:
            return await self._continue(admitted, resume)
        return await self._line_up(admitted, resume.received_tokens if resume is not None else ())

    async def _line_up(self, admitted: _Admitted, received: Sequence[int]) -> Generation | bytes:
        joined_at, pause_s = time.monotonic(), JOIN_POLL_S
        generation = self._generation(admitted, secrets.token_hex(12))
        while True:
            if any(received):
                known = await self._find_key(admitted, generation.request_id)
                if known is None:
                    # Nobody has what it would go on with, and from the beginning it would get its tokens twice.
                    raise GenerationFailedError(generation.request_id, sum(received))
            else:
                try:
                    known = await self._submit(admitted, generation)
                except BaseException as error:
                    if not isinstance(error, _NO_DEMAND):
                        self._count(admitted)
                    raise
                if known is None:
                    self._count(admitted)
                    return generation
            if known.result is not None:
                return known.result
            # The key's request runs, or has ended a moment ago and its result is on the way.
            joined = await self._join(admitted, known.request_id, received)
            if joined is not None:
                return joined
            if known.live and admitted.n > 1:
                joined_at = time.monotonic()
            elif time.monotonic() - joined_at > JOIN_S:
                # Its router died between end and result.
                await admitted.pool.finish_key(
                    admitted.caller.tenant, admitted.checked.idempotency_key, known.request_id, b""
                )
            await asyncio.sleep(pause_s)
            pause_s = min(JOIN_POLL_MOST_S, 1.5 * pause_s)

    def _count(self, admitted: _Admitted) -> None:
        if admitted.counted:
            admitted.pool.arrivals.arrived(
                admitted.checked.request_class,
                len(admitted.ids),
                admitted.params.max_tokens,
                self._expected_output_tokens,
                admitted.n,
            )

    async def _submit(self, admitted: _Admitted, generation: Generation) -> KnownRequest | None:
        """Put the choices in line, or tell whose their client key is."""
        pool, choices = admitted.pool, generation.choices
        first, rest = choices[0], choices[1:]
        keyed, opened = bool(first.entry.client_key), False
        try:
            # The first one carries the key.
            known = await pool.submit(first) if not rest or keyed else None
            if known is not None:
                return known
            opened = keyed
            if rest:
                left = rest if keyed else choices
                await asyncio.gather(*(pool.submit(choice) for choice in left))
            for choice in choices:
                self._check_in_time(admitted, choice)
        except BaseException as error:
            if isinstance(error, PenstockError):
                for choice in choices:
                    pool.take_back(choice)
            generation.close()
            if opened or (keyed and not isinstance(error, QueueFullError | QuotaExceededError | KeyReusedError)):
                # There will be no result to wait for, and whoever tries again has to get through.
                key = admitted.checked.idempotency_key
                await uninterrupted(pool.finish_key(admitted.caller.tenant, key, generation.request_id, b""))
            raise
        return None

    def _check_in_time(self, admitted: _Admitted, choice: Choice) -> None:
        """Raise NotInTimeError for a choice that waits and, as it looks, will do so for too long."""
        if choice.predicted_wait_s is None or choice.state is not ChoiceState.WAITING:
            return
        request_class = admitted.checked.request_class
        bounds = TimeBounds(
            admitted.checked.queue_timeout_s,
            admitted.pool.shed_after_s(request_class),
            admitted.pool.estimate.first_token_s or 0.0,
            None if admitted.deadline is None else admitted.deadline - time.monotonic(),
            admitted.run_s() or 0.0,
        )
        error = refusal(choice.predicted_wait_s, bounds)
        if error is None:
            return
        if error.bound == SHED:
            admitted.pool.arrivals.turned_away(request_class)
        raise error

    async def _join(self, admitted: _Admitted, request_id: str, received: Sequence[int]) -> Generation | None:
        """Take over the running request of the same key; None when it can't be: it has just ended."""
        if admitted.n > 1:
            # Its choices may have ended one by one, so there is only its result to wait for.
            return None
        generation = self._generation(admitted, request_id)
        choice = generation.choices[0]

        async def take_over() -> bool:
            adopted = await admitted.pool.adopt(choice)
            if adopted is not None:
                have = received[0] if received else 0
                await self._follow(admitted.pool, choice, adopted, have)
            return adopted is not None

        try:
            # Whoever adopts a slot must follow it, or nobody would ever give it back.
            return generation if await uninterrupted(take_over()) else None
        except BaseException:
            generation.close()
            raise

    async def _follow(self, pool: Pool, choice: Choice, adopted: Adopted, received: int) -> None:
        """Have an adopted choice deliver.

        Raises:
            GenerationFailedError: its client has output, and nobody can go on from there.
            UnavailableError: its client has output, and its replica is not reached from here.
        """
        if choice.inherited:
            # It gave way, or lost its replica, and waits. A grant that it has got by now comes with the mail.
            choice.go_on_from(received)
            return
        grant = adopted.grant
        if grant is None:
            if received:
                # It waits, and its output went with the router that had it.
                raise GenerationFailedError(choice.entry.request_id, received)
            return
        place = await pool.reach(choice, grant)
        if choice.state is not ChoiceState.WAITING:
            # It was stopped meanwhile, or another call has it.
            return
        if place is None and received:
            # From the beginning its client would get its tokens twice.
            error = UnavailableError(f"the replica of {choice.entry.request_id} is not reached from this router")
            choice.leave(error)
            raise error
        if place is None:
            pool.refuse(choice)
        elif adopted.started or received:
            # Whose client has output has started, also where the queue has not heard of it yet.
            choice.attach_to(grant.attempt, place, received)
        else:
            # Its router may have sent the start already; the replica takes the same start twice as an attach.
            choice.run_on(grant, place)

    def _generation(self, admitted: _Admitted, request_id: str) -> Generation:
        choices = [self._choice(admitted, request_id, index) for index in range(admitted.n)]
        ticket = ResumeTicket(request_id, admitted.pool.name, admitted.caller.tenant, len(admitted.ids), ())
        return Generation(
            ticket,
            choices,
            self._secret,
            self._router_id,
            admitted.pool.wait_s,
            arrived_at=admitted.arrived_at,
            admitted_at=time.monotonic(),
        )

    def _choice(self, admitted: _Admitted, request_id: str, index: int) -> Choice:
        checked, params, pool = admitted.checked, admitted.params, admitted.pool
        prompt_tokens = len(admitted.ids)
        expected = min(params.max_tokens, max(self._expected_output_tokens, params.min_tokens))
        policy = self._policies.of(admitted.caller.tenant, pool.name)
        entry = QueueEntry(
            request_id=request_id if admitted.n == 1 else f"{request_id}/{index}",
            attempt_base=secrets.token_hex(6),
            tenant=admitted.caller.tenant,
            request_class=checked.request_class,
            prompt_tokens=prompt_tokens,
            expected_tokens=expected,
            kv_tokens=prompt_tokens + expected,
            start_within_ms=admitted.start_within_ms(),
            late_after_ms=pool.late_after_ms(checked.request_class),
            client_key=checked.idempotency_key if index == 0 else "",
            weight=policy.weight,
            max_tokens=params.max_tokens,
            quota=policy.quota,
            digest=checked.digest,
            preferred_replicas=admitted.preferred,
        )
        start = pb.Start(
            prompt_token_ids=admitted.ids,
            sampling=sampling_to_wire(choice_sampling(params, index)),
            lora_adapter=checked.lora_adapter,
            cache_salt=admitted.salt,
            request_class=request_class_to_wire(checked.request_class),
            tokenizer_digest=admitted.info.tokenizer_digest,
        )
        learn = partial(pool.affinity.granted, admitted.trail, admitted.preferred, kv_tokens=entry.kv_tokens)
        return Choice(index, entry, start, pool, pool.prices, admitted.deadline, learn, admitted.arrived_at)

    # --- resume -------------------------------------------------------------------------------------------------------

    async def _continue(self, admitted: _Admitted, resume: ResumePoint) -> Generation | bytes:
        ticket = ResumeTicket.open(resume.token, self._secret)
        expected = (admitted.pool.name, admitted.caller.tenant, len(admitted.ids), admitted.n)
        if (ticket.pool, ticket.tenant, ticket.prompt_tokens, len(ticket.choices)) != expected:
            raise InvalidRequestError.of("resume.resume_token", "belongs to another request")
        generation = self._generation(admitted, ticket.request_id)
        received = (*resume.received_tokens, *(0 for _ in generation.choices))
        try:
            # To the end, and all of them: an adopted slot that nobody follows would never be given back.
            outcomes = await uninterrupted(
                asyncio.gather(
                    *(
                        self._attach(admitted, choice, where, received[choice.index])
                        for choice, where in zip(generation.choices, ticket.choices, strict=True)
                    ),
                    return_exceptions=True,
                )
            )
            known = next((found for outcome in outcomes if (found := raised(outcome)) is not None), None)
        except BaseException as error:
            if isinstance(error, PenstockError):
                generation.stop(error)
            generation.close()
            raise
        if known is None:
            return generation
        generation.close()
        if known.request_id != ticket.request_id and any(received):
            # Another execution may have other tokens.
            raise GenerationFailedError(ticket.request_id, sum(received))
        # Without a result its key is that of another request by now, which runs.
        if known.result is not None:
            return known.result
        # It was counted when it came first.
        return await self._line_up(replace(admitted, counted=False), resume.received_tokens)

    async def _attach(
        self, admitted: _Admitted, choice: Choice, where: TicketChoice, received: int
    ) -> KnownRequest | None:
        """Continue one choice; returns whose its key is when its request is over, and the client may have that."""
        pool = admitted.pool
        async with self._continuing:
            adopted = await self._find(admitted, choice)
        if isinstance(adopted, KnownRequest):
            return adopted
        if adopted is not None and (
            choice.inherited or adopted.grant is None or adopted.grant.attempt != where.attempt
        ):
            # It still waits, or has got a slot since the token was made.
            await self._follow(pool, choice, adopted, received)
            return None
        if where.attempt:
            # Not in turn: one that names a replica that is gone waits for all of the grace.
            link = await pool.replicas.reach(where.replica_id, where.address, pool.queue_settings.attach_grace_s)
            if link is not None:
                pool.take(choice)
                choice.attach_to(where.attempt, pool.replicas.placement(link), received)
                return None
            if received:
                if adopted is not None and adopted.grant is not None:
                    choice.attempt = adopted.grant.attempt
                    pool.release(choice)
                raise GenerationFailedError(choice.entry.request_id, received)
        # Its place went with its router, and nothing was delivered: it queues again.
        async with self._continuing:
            return await pool.submit(choice)

    async def _find(self, admitted: _Admitted, choice: Choice) -> Adopted | KnownRequest | None:
        """Adopt a choice, or tell whose its key is where nothing of it waits or runs."""
        try:
            adopted = await admitted.pool.adopt(choice)
            return adopted or await self._find_key(admitted, choice.entry.request_id)
        except QueueUnavailableError:
            # A running attempt is found without the queue.
            return None

    async def _find_key(self, admitted: _Admitted, request_id: str) -> KnownRequest | None:
        key = admitted.checked.idempotency_key
        if not key:
            return None
        return await admitted.pool.find_key(admitted.caller.tenant, key, request_id, admitted.checked.digest)


def raised(outcome: KnownRequest | BaseException | None) -> KnownRequest | None:
    """Return what a gathered task returned, or raise what it raised."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
