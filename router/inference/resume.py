"""Clients that come back: with a resume token, or with the idempotency key of a request that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    ModelChangedError,
    NoReplicaError,
    PenstockError,
    QueueUnavailableError,
    UnavailableError,
)
from cluster.lifecycle import uninterrupted
from cluster.models import ModelInfo
from cluster.queue.entries import Adopted, KnownRequest
from cluster.trust.announcement import Announcement
from cluster.trust.resume_token import ResumeToken, ResumeTokenChoice
from cluster.trust.secret import ClusterSecret
from router.dispatch.pool import Pool
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.generation import Generation
from router.inference.admitted import Admitted
from router.inference.build import Builder
from router.validation import CheckedRequest, ResumePoint, TokenPrompt

CONTINUING = 32
"""Requests that are continued at the same time. When a router dies, all its clients come at once. If all of them were
continued together, each would take as long as all of them, and none might reach its replica within the grace. In turn
the first ones are done early."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a request that is continued as it was read before."""

    tokenizer_digest: str = ""
    """Digest of the tokenizer that its prompt was encoded for; empty where that is not known, and for a new request."""
    replica: Announcement | None = None
    """A replica with this tokenizer, or one that has a part of the request; None where there is none."""
    request_id: str = ""
    runs: bool = False
    """Whether any of its choices ran when its client was told last."""

    def label(self, checked: CheckedRequest, info: ModelInfo) -> ModelInfo:
        """Return the model for which a request is encoded: the client's ids are not those of another tokenizer.

        Raises:
            NoReplicaError: it runs, and no replica with its tokenizer is known here.
            ModelChangedError: it waited, and no replica has its tokenizer any more.
        """
        if not checked.names_ids or self.tokenizer_digest in ("", info.tokenizer_digest):
            return info
        if isinstance(checked.prompt, TokenPrompt):
            return replace(info, tokenizer_digest=self.tokenizer_digest)
        if self.runs:
            raise NoReplicaError(f"no replica with the tokenizer of {self.request_id} is known here", 1.0)
        raise ModelChangedError(self.request_id)


NO_READER = Reader()


class Resume:
    """Continuation of requests that an earlier call has begun, at this router or another one."""

    def __init__(self, builder: Builder, secret: ClusterSecret) -> None:
        self._builder = builder
        self._secret = secret
        self._continuing = asyncio.Semaphore(CONTINUING)

    def reader_of(self, pool: Pool, resume: ResumePoint | None) -> Reader:
        """Return who reads a request to be continued as it was read before.

        Raises:
            InvalidRequestError: the token is not one.
        """
        if resume is None or not resume.token:
            return NO_READER
        token = ResumeToken.open(resume.token, self._secret)
        groups = [found for each in token.choices if (found := pool.replicas.alike(each.group_id)) is not None]
        digest = token.tokenizer_digest
        same = next((found for found in groups if found.model.tokenizer_digest == digest), None)
        # What waits has no group, and its choices may run on replicas with several tokenizers.
        found = same or pool.replicas.with_tokenizer(digest) or next(iter(groups), None)
        return Reader(digest, found, token.request_id, any(each.attempt for each in token.choices))

    async def ended(self, checked: CheckedRequest, tenant: str, pool: Pool, reader: Reader) -> bytes | None:
        """Return the stored result of a request that was read by a tokenizer which nobody has any more. None without a
        key, and where it has not ended.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        key = checked.idempotency_key
        if not key or not reader.tokenizer_digest or reader.replica is not None:
            return None
        found = await pool.keys.find(tenant, key, reader.request_id, checked.digest)
        return found.result if found is not None and found.request_id == reader.request_id else None

    async def resume(self, admitted: Admitted, resume: ResumePoint) -> Generation | KnownRequest:
        """Continue the request of a resume token. If it is over, return the request that has its key.

        Raises:
            InvalidRequestError: the token is not one, or another request's, or the client can't have so many tokens.
            GenerationFailedError: the output to go on with is gone.
            NotInTimeError: nothing of it is left, and it could not end in time if it started now.
        """
        token = ResumeToken.open(resume.token, self._secret)
        expected = (admitted.pool.name, admitted.caller.tenant, admitted.n)
        # Another tokenizer, where the old one has gone, makes other numbers of tokens of the same text.
        same = token.tokenizer_digest in ("", admitted.info.tokenizer_digest)
        other = same and token.prompt_tokens != len(admitted.ids)
        if (token.pool, token.tenant, len(token.choices)) != expected or other:
            raise InvalidRequestError.of("resume.resume_token", "belongs to another request")
        generation = self._builder.generation(admitted, token.request_id, token.began_ms)
        received = (*resume.received_tokens, *(0 for _ in generation.choices))
        try:
            # Finish all of them even if the call is cancelled: an adopted slot without a choice is never given back.
            outcomes = await uninterrupted(
                asyncio.gather(
                    *(
                        self._attach(admitted, choice, where, received[choice.index])
                        for choice, where in zip(generation.choices, token.choices, strict=True)
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
        if known.request_id != token.request_id and any(received):
            # Another execution may have other tokens.
            raise _gone(admitted.pool, token.request_id, sum(received))
        return known

    async def _attach(
        self, admitted: Admitted, choice: Choice, where: ResumeTokenChoice, received: int
    ) -> KnownRequest | None:
        """Continue one choice. If its request is over, return the request that has its key."""
        pool = admitted.pool
        try:
            async with self._continuing:
                adopted = await self._find(admitted, choice)
        except QueueUnavailableError as error:
            if not where.attempt:
                # Its place in line stays: the client may come back for it.
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
            raise _gone(pool, choice.entry.of_request, received)
        if (late := admitted.too_late()) is not None:
            raise late
        if pool.closing:
            raise NoReplicaError.removed(pool.name)
        # Its place in line was lost with its router, and nothing was delivered: put it in line again.
        async with self._continuing:
            return await pool.submit(choice)

    async def _take_up(
        self, pool: Pool, choice: Choice, adopted: Adopted | None, where: ResumeTokenChoice, received: int
    ) -> bool:
        """Connect a choice to the attempt of its token. Return False where nothing of the attempt is left."""
        # Without the semaphore: a choice whose replica is gone waits for the whole grace.
        if adopted is not None and adopted.grant is not None:
            place = await pool.adoption.reach(choice, adopted.grant, where.address)
        else:
            place = await pool.adoption.find_place(choice, where.replica_id, where.address)
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
        """Adopt a choice. Where nothing of it waits or runs, return the request that has its key."""
        adopted = await admitted.pool.adoption.adopt(choice)
        return adopted or await self.find_key(admitted, choice.entry.request_id)

    async def find_key(self, admitted: Admitted, request_id: str) -> KnownRequest | None:
        """Return the request that has this request's key; None if there is none, and for a request without a key."""
        key = admitted.checked.idempotency_key
        if not key:
            return None
        return await admitted.pool.keys.find(admitted.caller.tenant, key, request_id, admitted.checked.digest)

    async def join(self, admitted: Admitted, request_id: str, received: Sequence[int]) -> Generation | None:
        """Take over the running request of the same key. Return None if it has just ended, or has several choices."""
        if admitted.n > 1:
            # Some choices may have ended already, so the call can only wait for the result.
            return None
        generation = self._builder.generation(admitted, request_id)
        choice = generation.choices[0]

        async def take_over() -> bool:
            adopted = await admitted.pool.adoption.adopt(choice)
            if adopted is not None:
                same = _read_as_before(admitted, generation, adopted)
                have = received[0] if received else 0
                await self._follow(admitted.pool, choice, adopted, have)
                if not same and choice.state.waits:
                    choice.give_up(ModelChangedError(request_id))
            return adopted is not None

        try:
            # An adopted slot must get its choice, or it is never given back.
            if await uninterrupted(take_over()):
                return generation
        except BaseException:
            generation.close()
            raise
        generation.on_close()
        return None

    async def _follow(self, pool: Pool, choice: Choice, adopted: Adopted, received: int) -> None:
        """Have an adopted choice deliver.

        Raises:
            GenerationFailedError: its client has output, and the rest of it is gone.
            UnavailableError: its client has output, and this router does not reach its replica.
        """
        if choice.inherited:
            # It was preempted, or lost its replica, and waits. If it has a grant by now, that comes with the mail.
            choice.go_on_from(received)
            return
        grant = adopted.grant
        if grant is None:
            if received:
                # It waits, and its output was lost with the router that had it.
                raise _gone(pool, choice.entry.of_request, received)
            return
        place = await pool.adoption.reach(choice, grant)
        if choice.state is not ChoiceState.WAITING:
            # It was stopped meanwhile, or another call has it.
            return
        if place is None and received:
            # From the beginning its client would get its tokens twice.
            error = UnavailableError(f"the replica of {choice.entry.of_request} is not reached from this router")
            choice.leave(error)
            raise error
        if place is None or "" != adopted.tokenizer != place.tokenizer_digest != "":
            # Nothing can run on a replica that would read its ids as another text.
            pool.refuse(choice)
        elif adopted.started or received:
            # A choice with output has started, even if the queue has not heard of it yet.
            choice.attach_to(grant.attempt, place, received)
        else:
            # Its router may have sent the start already. The replica takes a second one as an attach.
            choice.run_on(grant, place)


def _read_as_before(admitted: Admitted, generation: Generation, adopted: Adopted) -> bool:
    """Have an adopted choice read as its first call was: the client's ids are not those of another tokenizer, though
    most replicas have that by now. Return False where its text was encoded for that one.
    """
    choice, digest = generation.choices[0], adopted.tokenizer
    if digest in ("", choice.start.tokenizer_digest):
        return True
    if not isinstance(admitted.checked.prompt, TokenPrompt):
        return False
    choice.start.tokenizer_digest = digest
    generation.ticket = replace(generation.ticket, tokenizer_digest=digest)
    return True


def _gone(pool: Pool, request_id: str, received: int) -> GenerationFailedError:
    return GenerationFailedError.gone(request_id, received, pool.queue_settings.attach_grace_s)


def raised(outcome: KnownRequest | BaseException | None) -> KnownRequest | None:
    """Return the result of a gathered task, or raise its error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
