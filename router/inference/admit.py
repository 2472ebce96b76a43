"""Admission of requests: from a checked request to a generation that waits or runs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from cluster.errors import (
    GenerationFailedError,
    KeyReusedError,
    NoReplicaError,
    PenstockError,
    QuarantinedError,
    QueueFullError,
    QuotaExceededError,
)
from cluster.lifecycle import uninterrupted
from cluster.queue.entries import KnownRequest
from cluster.telemetry.tracing.context import TraceSampling
from cluster.trust.secret import ClusterSecret
from router.admission.refusals import COMES_BACK, CallName
from router.admission.shedding import SHED, TimeBounds, refusal
from router.affinity import CacheSalts
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.generation import Generation
from router.identity import Caller, TenantPolicies, require_class
from router.images.room import ImageRoom
from router.inference.admitted import Admitted, asks_logprobs, check_ready, prefer
from router.inference.build import Builder
from router.inference.constraints import ConstraintChecks
from router.inference.resume import Resume
from router.records.genai import CHAT, TEXT_COMPLETION
from router.records.refusal import Refused
from router.routing import DIRECT, Way
from router.tokens.guess import likely_tokens
from router.validation import ChatPrompt, CheckedRequest, ResumePoint, check_generates, check_received, resolve

JOIN_S = 5.0
"""Longest wait for the result of a request that has just ended."""
JOIN_POLL_S, JOIN_POLL_MOST_S = 0.05, 0.5
"""Shortest and longest pause between two looks at the key of a request that runs or has just ended."""
_NO_DEMAND = (QuotaExceededError, KeyReusedError, QuarantinedError)
"""Refusals that more replicas would not change."""


class Admission:
    """Admission of one router: it tokenizes requests, checks them against the model, and puts their choices in line."""

    def __init__(
        self,
        catalog: Catalog,
        secret: ClusterSecret,
        router_id: str,
        policies: TenantPolicies,
        expected_output_tokens: int,
        salts: CacheSalts,
        *,
        constraints: ConstraintChecks,
        room: ImageRoom,
        tracing: TraceSampling | None = None,
    ) -> None:
        """Without `tracing`, requests have no traces."""
        self.on_refused: list[Callable[[Refused], None]] = []
        """Functions that are told every request that is refused."""
        self._catalog, self._salts, self._constraints, self._room = catalog, salts, constraints, room
        self._expected_output_tokens = expected_output_tokens
        self._builder = Builder(
            secret, router_id, policies, expected_output_tokens, tracing, self._translated, room=room
        )
        self._resumed = Resume(self._builder, secret)

    def refused(self, refused: Refused) -> None:
        """Tell of a request that is refused."""
        for tell in self.on_refused:
            tell(refused)

    async def open(
        self,
        checked: CheckedRequest,
        *,
        caller: Caller,
        time_left_s: float | None,
        resume: ResumePoint | None = None,
        counted: bool = True,
        way: Way = DIRECT,
    ) -> Generation | bytes:
        """Start a generation, continue one, or return the stored result of its idempotency key.

        A request that starts, or is refused because there is no room, counts as demand. Items of jobs do not
        (`counted`). `way` is how it has come to its pool.

        Raises:
            PermissionDeniedError: the caller may not use this model or class.
            InvalidRequestError, KeyReusedError: the request can't be served as asked.
            ModelNotFoundError: the cluster does not serve the model.
            QueueFullError, QuotaExceededError, NotInTimeError, UnavailableError: it can't be served now.
        """
        arrived_at = time.monotonic()
        try:
            return await self._open(checked, caller, time_left_s, resume, counted=counted, way=way)
        except PenstockError as error:
            if not way.goes_on:
                operation = CHAT if isinstance(checked.prompt, ChatPrompt) else TEXT_COMPLETION
                self.refused(Refused(checked.model, caller.tenant, arrived_at, error, operation))
            raise

    async def _open(
        self,
        checked: CheckedRequest,
        caller: Caller,
        time_left_s: float | None,
        resume: ResumePoint | None,
        *,
        counted: bool,
        way: Way,
    ) -> Generation | bytes:
        require_class(caller, checked.request_class)
        pool = self._catalog.pool(checked.model, caller)
        adapter = self._catalog.adapter(pool, checked.model, checked.lora_adapter)
        checked = replace(checked, model=pool.name, lora_adapter=adapter)
        name = CallName(caller.tenant, checked)
        opening = self._admit(checked, caller, pool, time_left_s=time_left_s, resume=resume, counted=counted, way=way)
        return await _remembered(pool, name, opening, way, checked.n if counted else 0)

    async def _admit(
        self,
        checked: CheckedRequest,
        caller: Caller,
        pool: Pool,
        *,
        time_left_s: float | None,
        resume: ResumePoint | None,
        counted: bool,
        way: Way,
    ) -> Generation | bytes:
        arrived_at = time.monotonic()
        check_generates(self._catalog.known(pool))
        try:
            check_ready(pool, way)
            await self._check_open(checked, caller, pool, resume)
            reader = self._resumed.reader_of(pool, resume)
            if (ended := await self._resumed.ended(checked, caller.tenant, pool, reader)) is not None:
                return ended
            of = reader.replica
            with self._room.during(checked.prompt):
                info, encoded = await self._catalog.encode(pool, checked.prompt, caller.tenant, of)
            info = reader.label(checked, info)
            params, n = resolve(checked, info, len(encoded.ids))
            enforced = await self._constraints.enforced(pool, params.structured)
            parsing = await self._constraints.parsing(pool, checked, info, enforced.constraint)
            # Once more: a long text takes a while.
            await self._check_open(checked, caller, pool, resume)
        except NoReplicaError:
            if counted:
                self._count_unread(checked, caller, pool)
            raise
        if params.structured != enforced.constraint:
            params = replace(params, structured=enforced.constraint)
        names = await self._catalog.token_bytes(pool, of) if asks_logprobs(params) else None
        if resume is not None:
            check_received(resume, params.max_tokens)
        deadline = None if time_left_s is None else arrived_at + time_left_s
        salt = self._salts.of(caller.tenant)
        trail, preferred = prefer(pool, checked, info, encoded.names(), salt)
        admitted = Admitted(
            checked,
            caller,
            pool,
            info,
            encoded.ids,
            params,
            n,
            salt,
            trail,
            preferred,
            deadline,
            arrived_at,
            counted,
            images=encoded.images,
            token_bytes=names,
            unenforced=enforced.unenforced,
            parsing=parsing,
            way=way,
        )
        if resume is not None and resume.token:
            return await self._resume(admitted, resume)
        return await self._line_up(admitted, resume.received_tokens if resume is not None else ())

    def _count_unread(self, checked: CheckedRequest, caller: Caller, pool: Pool) -> None:
        """Count a request that nobody can tokenize. It is demand too: otherwise a pool without replicas would never get
        one, and with it the tokenizer.
        """
        most = checked.sampling.max_tokens or self._expected_output_tokens
        size = (likely_tokens(checked.prompt), most, self._expected_output_tokens, checked.n)
        pool.admission.demand.arrived(checked.request_class, *size, tenant=caller.tenant)

    async def _translated(self, admitted: Admitted, replica_id: str) -> Admitted:
        """Return a request as a replica with another tokenizer has to get it. What it was promised stays.

        Raises:
            InvalidRequestError: that replica's model can't serve it.
            NoReplicaError: the replica has gone.
            UnavailableError: that replica's model would answer with something else.
        """
        pool, checked = admitted.pool, admitted.checked
        of = pool.replicas.announcements.get(replica_id)
        if of is None:
            raise NoReplicaError(f"replica {replica_id!r} of {pool.name!r} has gone", 1.0)
        if admitted.read_anew is not None:
            model, groups = await admitted.read_anew(of)
            return replace(admitted, info=model, groups=groups)
        check_generates(of.model)
        info, encoded = await self._catalog.encode(pool, checked.prompt, admitted.caller.tenant, of)
        params, _n = resolve(checked, info, len(encoded.ids))
        most = min(params.max_tokens, admitted.params.max_tokens)
        params = replace(params, structured=admitted.params.structured, max_tokens=most)
        parsing = await self._constraints.parsing(pool, checked, info, params.structured)
        names = await self._catalog.token_bytes(pool, of) if asks_logprobs(params) else None
        read = replace(admitted, info=info, ids=encoded.ids, images=encoded.images)
        return replace(read, params=params, parsing=parsing, token_bytes=names)

    async def _check_open(
        self, checked: CheckedRequest, caller: Caller, pool: Pool, resume: ResumePoint | None
    ) -> None:
        """Check that a pool takes new requests, unless this one has begun.

        Raises:
            ModelNotFoundError: the pool is being removed.
            QueueUnavailableError: Redis does not answer.
        """
        if pool.closing and resume is None:
            key = checked.idempotency_key
            if not key or await pool.keys.find(caller.tenant, key, "", checked.digest) is None:
                self._catalog.check_open(pool, caller)

    async def _resume(self, admitted: Admitted, resume: ResumePoint) -> Generation | bytes:
        found = await self._resumed.resume(admitted, resume)
        if isinstance(found, Generation):
            return found
        # Without a result the key belongs to another request by now, which runs.
        if found.result is not None:
            return found.result
        # It was counted when it came for the first time.
        return await self._line_up(replace(admitted, counted=False), resume.received_tokens)

    async def line_up(self, admitted: Admitted) -> Generation:
        """Put the choices of a request without an idempotency key in line.

        Raises:
            PenstockError: as `open`.
        """
        name = CallName(admitted.caller.tenant, admitted.checked, admitted.groups)
        asked = admitted.n if admitted.counted else 0
        opened = await _remembered(admitted.pool, name, self._line_up(admitted, ()), admitted.way, asked)
        if isinstance(opened, bytes):
            raise TypeError("a request without a key has no stored result")
        return opened

    async def _line_up(self, admitted: Admitted, received: Sequence[int]) -> Generation | bytes:
        generation = self._builder.generation(admitted, admitted.way.request_id or secrets.token_hex(12))
        opened = None
        try:
            opened = await self._let_in(admitted, generation, received)
            return opened
        finally:
            if opened is not generation:
                # It was never in line, or has been closed.
                generation.on_close()

    async def _let_in(self, admitted: Admitted, generation: Generation, received: Sequence[int]) -> Generation | bytes:
        joined_at, pause_s = time.monotonic(), JOIN_POLL_S
        while True:
            late = admitted.too_late()
            if late is not None or any(received):
                # It must not begin now. A request that has begun or ended under its key is still good.
                known = await self._resumed.find_key(admitted, generation.request_id)
                if known is None:
                    # The output to go on with is gone, and from the beginning the client would get its tokens twice.
                    kept_s = admitted.pool.queue_settings.attach_grace_s
                    raise late or GenerationFailedError.gone(generation.request_id, sum(received), kept_s)
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
            # The key's request runs, or has just ended and its result is about to be stored.
            joined = await self._resumed.join(admitted, known.request_id, received)
            if joined is not None:
                return joined
            if known.live and admitted.n > 1:
                joined_at = time.monotonic()
                # Its client may be gone. Then its router lets it run for as long as this call waits.
                await admitted.pool.keys.wait(
                    admitted.caller.tenant, admitted.checked.idempotency_key, known.request_id
                )
            elif time.monotonic() - joined_at > JOIN_S:
                # Its router died after the end and before it stored the result.
                await admitted.pool.keys.finish(
                    admitted.caller.tenant, admitted.checked.idempotency_key, known.request_id, b""
                )
            await asyncio.sleep(pause_s)
            pause_s = min(JOIN_POLL_MOST_S, 1.5 * pause_s)

    def _count(self, admitted: Admitted) -> None:
        if admitted.counted:
            admitted.pool.admission.demand.arrived(
                admitted.checked.request_class,
                admitted.choice_tokens,
                admitted.params.max_tokens,
                self._expected_output_tokens,
                admitted.n,
                tenant=admitted.caller.tenant,
            )

    async def _submit(self, admitted: Admitted, generation: Generation) -> KnownRequest | None:
        """Put the choices in line. Return the request that has their key already; nothing is in line then."""
        pool, choices = admitted.pool, generation.choices
        first, rest = choices[0], choices[1:]
        keyed, opened = bool(first.entry.client_key), False
        try:
            # The first choice carries the key, and the quota of all choices.
            known = await pool.submit(first)
            if known is not None:
                return known
            opened = keyed
            await asyncio.gather(*(pool.submit(choice) for choice in rest))
            for choice in choices:
                self._check_in_time(admitted, choice)
        except BaseException as error:
            if isinstance(error, PenstockError):
                for choice in choices:
                    pool.take_back(choice)
            generation.close()
            if opened or (keyed and not isinstance(error, QueueFullError | QuotaExceededError | KeyReusedError)):
                # There will be no result to wait for, and the next request with the key must get through.
                key = admitted.checked.idempotency_key
                await uninterrupted(pool.keys.finish(admitted.caller.tenant, key, generation.request_id, b""))
            raise
        return None

    def _check_in_time(self, admitted: Admitted, choice: Choice) -> None:
        """Refuse a choice whose wait is predicted to be too long.

        Raises:
            NotInTimeError: it is.
        """
        if choice.wait.predicted_s is None or choice.state is not ChoiceState.WAITING:
            return
        request_class = admitted.checked.request_class
        bounds = TimeBounds(
            admitted.checked.queue_timeout_s,
            admitted.pool.admission.shed_after_s(request_class),
            admitted.pool.admission.estimate.first_token_s or 0.0,
            None if admitted.deadline is None else admitted.deadline - time.monotonic(),
            admitted.run_s() or 0.0,
        )
        error = refusal(choice.wait.predicted_s, bounds)
        if error is None:
            return
        if error.bound == SHED:
            admitted.pool.admission.demand.turned_away(request_class)
        raise error


async def _remembered(
    pool: Pool, name: CallName, opening: Awaitable[Generation | bytes], way: Way, asked: int
) -> Generation | bytes:
    """Open a call. Remember it where it is refused, and tell its generation what is remembered where it is let in.

    `asked` are the choices that it asks for; 0 for one that is no demand.
    """
    refusals = pool.admission.refusals
    try:
        opened = await opening
    except COMES_BACK as error:
        first = not way.goes_on and refusals.note(name, error)
        if first and asked and isinstance(error, QuotaExceededError):
            pool.admission.demand.over_quota(name.tenant, asked)
        raise
    if isinstance(opened, Generation):
        opened.refused = refusals.take(name)
    return opened
