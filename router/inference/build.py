"""From an admitted request to choices that can stand in line."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from cluster.errors import ModelChangedError
from cluster.queue.entries import QueueEntry
from cluster.telemetry.tracing.context import RequestTrace, TraceSampling
from cluster.trust.resume_token import ResumeToken
from cluster.trust.secret import ClusterSecret
from cluster.wire.output_parsing import parsing_to_wire
from cluster.wire.pooling import pooling_to_start
from penstock.internal.v1 import replica_pb2 as pb
from penstock.wire import request_class_to_wire, sampling_to_wire
from router.affinity.blocks import Trail
from router.call_origin import call_origin
from router.generation.attempt import Images
from router.generation.choice import Choice
from router.generation.generation import Generation
from router.generation.metering import AttemptMetering, Prices
from router.generation.output import asks_logprobs
from router.identity import TenantPolicies
from router.images.room import ImageRoom
from router.inference.admitted import Admitted
from router.validation import ChatPrompt, choice_sampling

_NO_TRAIL = Trail()
Translate = Callable[[Admitted, str], Awaitable[Admitted]]
"""Function that admits a request anew for the replica of an id, which has another tokenizer."""


class Builder:
    """Builder of generations. It puts nothing in line."""

    def __init__(
        self,
        secret: ClusterSecret,
        router_id: str,
        policies: TenantPolicies,
        expected_output_tokens: int,
        tracing: TraceSampling | None,
        translate: Translate,
        *,
        room: ImageRoom,
    ) -> None:
        """`expected_output_tokens`: output that a request is expected to have, where it may have as much."""
        self._room = room
        self._translate = translate
        self._secret = secret
        self._router_id = router_id
        self._policies = policies
        self._tracing = tracing
        self._expected_output_tokens = expected_output_tokens

    def generation(self, admitted: Admitted, request_id: str, since_ms: int = 0) -> Generation:
        """Return a request's generation with its choices. `since_ms`: arrival of its first call, where this is a later
        one, milliseconds since the Unix epoch.

        Raises:
            UnavailableError: this router holds as many images as it may.
        """
        trace = self._tracing.begin(call_origin().parent) if self._tracing is not None else None
        choices = [self._choice(admitted, request_id, index, trace) for index in range(admitted.n)]
        arrived_ms = round(1000 * (time.time() - (time.monotonic() - admitted.arrived_at)))
        pool, tenant = admitted.pool.name, admitted.caller.tenant
        resume_token = ResumeToken(
            request_id,
            pool,
            tenant,
            admitted.prompt_tokens,
            (),
            since_ms or arrived_ms,
            admitted.info.tokenizer_digest,
        )
        images = _images(admitted)
        give_back = self._room.take(sum(len(content) for _field, content in images))
        generation = Generation(
            resume_token,
            choices,
            self._secret,
            self._router_id,
            admitted.pool.admission.wait_s,
            arrived_at=admitted.arrived_at,
            admitted_at=time.monotonic(),
            unenforced=admitted.unenforced,
            trace=trace,
        )
        generation.on_close = give_back
        generation.task, generation.since_ms = admitted.info.task, since_ms
        generation.labels = tuple(admitted.info.pooling.labels)
        generation.plain_prompt = not admitted.groups and not isinstance(admitted.checked.prompt, ChatPrompt)
        if trace is not None and self._tracing is not None and self._tracing.text_characters and not admitted.groups:
            generation.prompt = admitted.checked.prompt
        generation.alias, generation.adapter = admitted.way.alias, admitted.checked.lora_adapter
        if admitted.read_anew is not None if admitted.groups else not admitted.checked.names_ids:
            # The ids of the first tokenizer are of no use then, and would take 36 bytes of each for as long as it runs.
            kept = replace(admitted, ids=(), images=(), groups=(), trail=_NO_TRAIL)
            for choice in choices:
                choice.again = partial(self._again, kept, generation, choice)
        for choice in choices:
            choice.images = images
            if admitted.groups:
                choice.together = choices
        return generation

    async def _again(self, admitted: Admitted, generation: Generation, choice: Choice, replica_id: str) -> pb.Start:
        """Return the start of a choice with the ids of a replica's tokenizer."""
        found = await self._translate(admitted, replica_id)
        if found.groups:
            _read_all(generation, choice, found)
        start = _start(found, choice.index, choice.start.trace_parent)
        if choice.index == 0 or found.groups:
            digest = found.info.tokenizer_digest
            generation.ticket = replace(generation.ticket, prompt_tokens=found.prompt_tokens, tokenizer_digest=digest)
        if not choice.metering.attempts:
            choice.metering = _metering(found, choice.index, Prices.of(found.pool.settings))
        if not choice.tokens and asks_logprobs(start.sampling):
            choice.output.expect_logprobs(found.ids[0], found.token_bytes)
        return start

    def _choice(self, admitted: Admitted, request_id: str, index: int, trace: RequestTrace | None) -> Choice:
        checked, params, pool = admitted.checked, admitted.params, admitted.pool
        prompt_tokens = admitted.choice_tokens
        group = admitted.groups[index] if admitted.groups else None
        expected = min(params.max_tokens, max(self._expected_output_tokens, params.min_tokens))
        policy = self._policies.of(admitted.caller.tenant, pool.name)
        start_within_ms, run_s = admitted.start_within()
        entry = QueueEntry(
            request_id=request_id if admitted.n == 1 else f"{request_id}/{index}",
            attempt_base=secrets.token_hex(6),
            tenant=admitted.caller.tenant,
            request_class=checked.request_class,
            prompt_tokens=prompt_tokens,
            expected_tokens=expected,
            kv_tokens=prompt_tokens + expected,
            start_within_ms=start_within_ms,
            late_after_ms=pool.admission.late_after_ms(checked.request_class),
            client_key=checked.idempotency_key if index == 0 else "",
            weight=policy.weight,
            max_tokens=params.max_tokens,
            quota=policy.quota,
            # The first one takes the quota of all choices.
            choices=admitted.n if index == 0 else 0,
            digest=checked.digest,
            trace="" if trace is None else trace.own.name,
            preferred_replicas=admitted.preferred,
            tokenizer=admitted.info.tokenizer_digest if checked.names_ids and not admitted.groups else "",
        )
        start = _start(admitted, index, "" if trace is None else trace.own.trace_parent)
        prices = Prices.of(pool.settings)
        learn = partial(pool.affinity.granted, admitted.trail, admitted.preferred, kv_tokens=entry.kv_tokens)
        choice = Choice(
            index,
            entry,
            start,
            pool,
            prices,
            deadline=admitted.deadline,
            on_start=learn if group is None else None,
            arrived_at=admitted.arrived_at,
        )
        choice.wait.run_s = run_s
        choice.wait.known_tokens = pool.affinity.known_tokens(admitted.trail)
        if group is not None:
            choice.metering = _metering(admitted, index, prices)
        if asks_logprobs(start.sampling):
            choice.output.expect_logprobs(admitted.ids[0], admitted.token_bytes)
        return choice


def _images(admitted: Admitted) -> Images:
    prompt = admitted.checked.prompt
    if admitted.groups or not isinstance(prompt, ChatPrompt):
        return ()
    return tuple((f"prompt.chat.{field}.data", image.data) for field, image in prompt.images())


def _read_all(generation: Generation, choice: Choice, found: Admitted) -> None:
    """Give all groups of a request to the model that one of them meets.

    Raises:
        ModelChangedError: another model has begun with some of them. Vectors of two models can't be compared.
    """
    ids, model = found.info.tokenizer_digest, found.info.digest
    begun = [each for each in generation.choices if not each.state.waits]
    if any(each.start.tokenizer_digest != ids or each.model_digest not in ("", model) for each in begun):
        raise ModelChangedError(choice.entry.of_request)
    generation.labels = tuple(found.info.pooling.labels)
    for each in generation.choices:
        if each is not choice and each.state.waits:
            each.start = _start(found, each.index, each.start.trace_parent)
            if not each.metering.attempts:
                each.metering = _metering(found, each.index, Prices.of(found.pool.settings))


def _metering(admitted: Admitted, index: int, prices: Prices) -> AttemptMetering:
    if not admitted.groups:
        return AttemptMetering(index, admitted.prompt_tokens, prices)
    # Each group has a prompt of its own.
    return AttemptMetering(index, len(admitted.groups[index].ids), prices, shares_prompt=False)


def _start(admitted: Admitted, index: int, trace_parent: str) -> pb.Start:
    """Return what a replica is told of a choice."""
    group = admitted.groups[index] if admitted.groups else None
    return pb.Start(
        prompt_token_ids=admitted.ids if group is None else group.ids,
        sampling=sampling_to_wire(choice_sampling(admitted.params, index)) if group is None else None,
        pooling=pooling_to_start(group.pooling) if group is not None else None,
        lora_adapter=admitted.checked.lora_adapter,
        cache_salt=admitted.salt,
        request_class=request_class_to_wire(admitted.checked.request_class),
        tokenizer_digest=admitted.info.tokenizer_digest,
        trace_parent=trace_parent,
        parsing=None if admitted.parsing is None else parsing_to_wire(admitted.parsing),
        images=[pb.PromptImage(offset=each.offset, length=each.length) for each in admitted.images],
    )
