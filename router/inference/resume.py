"""Clients that come back: with a resume token, or with the idempotency key of a request that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    PenstockError,
    QueueUnavailableError,
    UnavailableError,
)
from cluster.lifecycle import uninterrupted
from cluster.queue.entries import Adopted, KnownRequest
from cluster.trust.resume_token import ResumeToken, ResumeTokenChoice
from cluster.trust.secret import ClusterSecret
from router.dispatch.pool import Pool
from router.generation.choice import Choice, ChoiceState
from router.generation.generation import Generation
from router.inference.admitted import Admitted
from router.inference.build import Builder
from router.validation import ResumePoint

CONTINUING = 32
"""Requests that are continued at the same time. When a router dies all its clients come at once; taken all together
each would take as long as all of them, and the replicas, which wait for the others while some come, would see nobody
come within the grace."""


class Resume:
    """Gives a call the output of what an earlier call has begun, here or at another router."""

    def __init__(self, builder: Builder, secret: ClusterSecret) -> None:
        self._builder = builder
        self._secret = secret
        self._continuing = asyncio.Semaphore(CONTINUING)

    async def resume(self, admitted: Admitted, resume: ResumePoint) -> Generation | KnownRequest:
        """Continue what a resume token names, or tell whose its key is where that is over and the client may have it.

        Raises:
            InvalidRequestError: the token is not one, or another request's, or the client can't have so many tokens.
            GenerationFailedError: nobody can go on from there.
            NotInTimeError: nothing of it is left, and it could not end in time if it started now.
        """
        ticket = ResumeToken.open(resume.token, self._secret)
        expected = (admitted.pool.name, admitted.caller.tenant, len(admitted.ids), admitted.n)
        if (ticket.pool, ticket.tenant, ticket.prompt_tokens, len(ticket.choices)) != expected:
            raise InvalidRequestError.of("resume.resume_token", "belongs to another request")
        generation = self._builder.generation(admitted, ticket.request_id)
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
        return known

    async def _attach(
        self, admitted: Admitted, choice: Choice, where: ResumeTokenChoice, received: int
    ) -> KnownRequest | None:
        """Continue one choice; returns whose its key is when its request is over, and the client may have that."""
        pool = admitted.pool
        try:
            async with self._continuing:
                adopted = await self._find(admitted, choice)
        except QueueUnavailableError as error:
            if not where.attempt:
                # Its place in line is kept: it may come back for it.
                choice.leave(error)
                raise
            # A running attempt is found without the queue.
            adopted = None
        if isinstance(adopted, KnownRequest):
            return adopted
        if adopted is not None and (
            choice.inherited or adopted.grant is None or adopted.grant.attempt != where.attempt
        ):
            # It still waits, or has got a slot since the token was made.
            await self._follow(pool, choice, adopted, received)
            return None
        if where.attempt and await self._take_up(pool, choice, adopted, where, received):
            return None
        if received:
            # From the beginning its client would get its tokens twice.
            raise GenerationFailedError(choice.entry.request_id, received)
        if (late := admitted.too_late()) is not None:
            raise late
        # Its place went with its router, and nothing was delivered: it queues again.
        async with self._continuing:
            return await pool.submit(choice)

    async def _take_up(
        self, pool: Pool, choice: Choice, adopted: Adopted | None, where: ResumeTokenChoice, received: int
    ) -> bool:
        """Have a choice deliver what its token's attempt does; False where nothing of it is left."""
        # Not in turn: one that names a replica that is gone waits for all of the grace.
        if adopted is not None and adopted.grant is not None:
            place = await pool.reach(choice, adopted.grant, where.address)
        else:
            place = await pool.find_place(choice, where.replica_id, where.address)
        if choice.state is not ChoiceState.WAITING:
            # It was stopped meanwhile, or another call has it.
            return True
        if place is not None:
            pool.take(choice)
            choice.attach_to(where.attempt, place, received)
            return True
        if adopted is None:
            return False
        if received:
            pool.release(choice)
            return False
        pool.refuse(choice)
        return True

    async def _find(self, admitted: Admitted, choice: Choice) -> Adopted | KnownRequest | None:
        """Adopt a choice, or tell whose its key is where nothing of it waits or runs."""
        adopted = await admitted.pool.adopt(choice)
        return adopted or await self.find_key(admitted, choice.entry.request_id)

    async def find_key(self, admitted: Admitted, request_id: str) -> KnownRequest | None:
        """Tell whose the request's key is; None also where it has none."""
        key = admitted.checked.idempotency_key
        if not key:
            return None
        return await admitted.pool.find_key(admitted.caller.tenant, key, request_id, admitted.checked.digest)

    async def join(self, admitted: Admitted, request_id: str, received: Sequence[int]) -> Generation | None:
        """Take over the running request of the same key; None when it can't be: it has just ended."""
        if admitted.n > 1:
            # Its choices may have ended one by one, so there is only its result to wait for.
            return None
        generation = self._builder.generation(admitted, request_id)
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


def raised(outcome: KnownRequest | BaseException | None) -> KnownRequest | None:
    """Return what a gathered task returned, or raise what it raised."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
