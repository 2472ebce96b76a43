"""From a checked request to a running generation."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from penstock.v1 import replica_pb2 as pb

from cluster.errors import GenerationFailedError, InvalidRequestError
from cluster.models import ModelInfo, SamplingParams
from cluster.queue.base import QueueEntry
from cluster.secret import ClusterSecret
from cluster.ticket import ResumeTicket, TicketChoice
from cluster.wire import sampling_to_wire
from router.admission import CheckedRequest, ResumePoint, choice_sampling, resolve
from router.affinity import CacheSalts, Trail
from router.dispatch.choice import Choice
from router.dispatch.generation import Generation
from router.dispatch.pool import Pool
from router.identity import Caller
from router.service.catalog import Catalog


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Is a request that its model can serve."""

    checked: CheckedRequest
    caller: Caller
    ids: Sequence[int]
    params: SamplingParams
    n: int
    time_left_s: float | None
    """Until the call's deadline."""
    salt: str
    """The tenant's cache salt."""
    trail: Trail
    preferred: tuple[str, ...]


class Opening:
    """Admits requests: tokenizes, settles them against the model, and puts their choices in line."""

    def __init__(
        self,
        catalog: Catalog,
        secret: ClusterSecret,
        router_id: str,
        expected_output_tokens: int,
        salts: CacheSalts,
    ) -> None:
        self._catalog = catalog
        self._salts = salts
        self._secret = secret
        self._router_id = router_id
        self._expected_output_tokens = expected_output_tokens

    async def open(
        self, checked: CheckedRequest, *, caller: Caller, time_left_s: float | None, resume: ResumePoint | None = None
    ) -> Generation:
        """Start a generation, or continue one.

        Raises:
            InvalidRequestError: the request can't be served as asked.
            ModelNotFoundError: the cluster does not serve the model.
            QueueFullError, UnavailableError: not now.
        """
        arrived_at = time.monotonic()
        pool = self._catalog.pool(checked.model)
        info, tokenizer = await self._catalog.model(pool)
        ids = await tokenizer.encode_prompt(checked.prompt)
        params, n = resolve(checked, info, len(ids))
        salt = self._salts.of(caller.tenant)
        scope = f"{checked.lora_adapter}\0{salt}".encode()
        trail, preferred = pool.affinity.look(ids, scope, checked.session_id, pool.replicas.records)
        admitted = _Admitted(checked, caller, ids, params, n, time_left_s, salt, trail, preferred)
        old = self._ticket(resume, admitted, pool) if resume is not None else None
        request_id = old.request_id if old is not None else secrets.token_hex(12)
        choices = [self._choice(admitted, pool, info, request_id, index) for index in range(n)]
        ticket = ResumeTicket(request_id, pool.name, caller.tenant, len(ids), ())
        generation = Generation(
            ticket, choices, self._secret, self._router_id, arrived_at=arrived_at, admitted_at=time.monotonic()
        )
        try:
            if old is not None and resume is not None:
                await self._attach(pool, choices, old, resume)
            elif n == 1:
                await pool.submit(choices[0])
            else:
                await asyncio.gather(*(pool.submit(choice) for choice in choices))
        except BaseException:
            generation.close()
            raise
        return generation

    def _choice(self, admitted: _Admitted, pool: Pool, info: ModelInfo, request_id: str, index: int) -> Choice:
        checked, params = admitted.checked, admitted.params
        prompt_tokens = len(admitted.ids)
        expected = min(params.max_tokens, max(self._expected_output_tokens, params.min_tokens))
        entry = QueueEntry(
            request_id=request_id if admitted.n == 1 else f"{request_id}/{index}",
            attempt_base=secrets.token_hex(6),
            tenant=admitted.caller.tenant,
            request_class=checked.request_class,
            prompt_tokens=prompt_tokens,
            expected_tokens=expected,
            kv_tokens=prompt_tokens + expected,
            start_within_ms=start_within_ms(checked.queue_timeout_s, admitted.time_left_s),
            client_key=checked.idempotency_key if index == 0 else "",
            preferred_replicas=admitted.preferred,
        )
        start = pb.Start(
            prompt_token_ids=admitted.ids,
            sampling=sampling_to_wire(choice_sampling(params, index)),
            lora_adapter=checked.lora_adapter,
            time_left_ms=int(admitted.time_left_s * 1000) if admitted.time_left_s is not None else 0,
            cache_salt=admitted.salt,
        )
        learn = partial(pool.affinity.granted, admitted.trail, admitted.preferred, kv_tokens=entry.kv_tokens)
        return Choice(index, entry, start, pool, learn)

    # --- resume -------------------------------------------------------------------------------------------------------

    def _ticket(self, resume: ResumePoint, admitted: _Admitted, pool: Pool) -> ResumeTicket:
        ticket = ResumeTicket.open(resume.token, self._secret)
        expected = (pool.name, admitted.caller.tenant, len(admitted.ids), admitted.n)
        if (ticket.pool, ticket.tenant, ticket.prompt_tokens, len(ticket.choices)) != expected:
            raise InvalidRequestError.of("resume.resume_token", "belongs to another request")
        return ticket

    async def _attach(self, pool: Pool, choices: Sequence[Choice], ticket: ResumeTicket, resume: ResumePoint) -> None:
        received = (*resume.received_tokens, *(0 for _ in choices))
        await asyncio.gather(
            *(
                self._attach_one(pool, choice, where, received[choice.index])
                for choice, where in zip(choices, ticket.choices, strict=True)
            )
        )

    async def _attach_one(self, pool: Pool, choice: Choice, where: TicketChoice, received: int) -> None:
        if not where.attempt:
            # It still waited: its place went with its router, so it queues again.
            await pool.submit(choice)
            return
        link = await pool.replicas.reach(where.replica_id, where.address, pool.queue_settings.attach_grace_s)
        if link is None:
            if received == 0:
                await pool.submit(choice)
                return
            raise GenerationFailedError(choice.entry.request_id, received)
        announcement = pool.replicas.announcements.get(where.replica_id)
        price = announcement.price_per_gpu_hour / 3600 if announcement is not None else 0.0
        pool.adopt(choice)
        choice.attach_to(where.attempt, link, where.group_id, price, received)


def start_within_ms(queue_timeout_s: float | None, time_left_s: float | None) -> int:
    """Return how long the request may wait: the tighter of queue timeout and deadline; 0 is no bound."""
    bounds = [bound for bound in (queue_timeout_s, time_left_s) if bound is not None]
    return max(1, int(min(bounds) * 1000)) if bounds else 0
