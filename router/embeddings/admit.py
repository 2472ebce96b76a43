"""Admission of requests for vectors, classes and scores: from a checked request to groups that wait or run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.errors import InvalidRequestError, NoReplicaError, PenstockError, UnavailableError
from cluster.models import NOTHING_TO_SAMPLE, ModelInfo, PoolingSpec
from cluster.trust.announcement import Announcement
from penstock.models import ModelTask, RequestClass
from router.affinity import CacheSalts, Trail
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.embeddings.groups import most_groups, plan
from router.embeddings.results import vectors_of
from router.generation.generation import Generation
from router.identity import Caller, TenantPolicies, require_class
from router.inference.admit import Admission
from router.inference.admitted import Admitted, InputGroup, check_ready
from router.inference.forward import Forwarding, adapter_of
from router.inference.shadows import SHADOW_WAIT_S
from router.records.genai import EMBEDDINGS
from router.records.refusal import Refused
from router.routing import DIRECT, Route, Way
from router.tokens.guess import likely_tokens
from router.tokens.inputs import EncodedInput
from router.validation import CheckedRequest, TextPrompt, TokenPrompt
from router.validation.pooling import (
    CheckedPooling,
    Cut,
    PooledInput,
    PoolingKind,
    check_lengths,
    check_task,
    check_token_ids,
)


@dataclass(frozen=True, slots=True)
class OpenPooling:
    """A request whose groups wait or run."""

    generation: Generation
    sizes: tuple[int, ...]
    """Number of inputs of each group."""

    def vectors(self) -> list[bytes]:
        """Return the vector of each input, once the request has ended well.

        Raises:
            GenerationFailedError: a replica has sent fewer vectors than it was asked for.
        """
        return vectors_of(self.generation, self.sizes)


class PoolingAdmission:
    """Admission of one router to its pools that embed or classify."""

    def __init__(
        self,
        catalog: Catalog,
        admission: Admission,
        policies: TenantPolicies,
        salts: CacheSalts,
        forwarding: Forwarding,
    ) -> None:
        self._forwarding = forwarding
        self._catalog = catalog
        self._admission = admission
        self._policies = policies
        self._salts = salts

    async def open(
        self, checked: CheckedPooling, *, caller: Caller, time_left_s: float | None, counted: bool = True
    ) -> OpenPooling:
        """Put a request's groups in line.

        Raises:
            PermissionDeniedError: the caller may not use this model or class.
            InvalidRequestError: the request can't be served as asked.
            ModelNotFoundError: the cluster does not serve the model.
            QueueFullError, QuotaExceededError, NotInTimeError, UnavailableError: it can't be served now.
        """
        alias = checked.model
        if not self._forwarding.is_alias(alias):
            return await self._admit(checked, caller, time_left_s, counted=counted, way=DIRECT)
        request_id = secrets.token_hex(12)

        async def attempt(route: Route, caller: Caller, way: Way) -> OpenPooling:
            return await self._admit(_in_pool(checked, route), caller, time_left_s, counted=counted, way=way)

        async def copy(route: Route, caller: Caller, way: Way) -> Generation:
            copied = replace(_in_pool(checked, route), request_class=RequestClass.BATCH, queue_timeout_s=SHADOW_WAIT_S)
            return (await self._admit(copied, caller, None, counted=True, way=way)).generation

        route = self._forwarding.aliases.target(alias, caller.tenant, "", request_id)
        found = await self._forwarding.forward(alias, route, caller, request_id, attempt)
        found.told(found.opened.generation)
        self._forwarding.served(alias, found.route)
        self._forwarding.copy(alias, request_id, copy)
        return found.opened

    async def _admit(
        self, checked: CheckedPooling, caller: Caller, time_left_s: float | None, *, counted: bool, way: Way
    ) -> OpenPooling:
        arrived_at = time.monotonic()
        try:
            return await self._open(checked, caller, time_left_s, counted=counted, way=way)
        except PenstockError as error:
            if not way.goes_on:
                self._admission.refused(Refused(checked.model, caller.tenant, arrived_at, error, EMBEDDINGS))
            raise

    async def _open(
        self, checked: CheckedPooling, caller: Caller, time_left_s: float | None, *, counted: bool, way: Way
    ) -> OpenPooling:
        arrived_at = time.monotonic()
        require_class(caller, checked.request_class)
        pool = self._catalog.pool(checked.model, caller)
        adapter = self._catalog.adapter(pool, checked.model, checked.lora_adapter)
        checked = replace(checked, model=pool.name, lora_adapter=adapter)
        try:
            check_ready(pool, way)
            self._catalog.check_open(pool, caller)
            model = self._catalog.require(pool)
            check_task(checked, model)
            encoded = await self._encode(checked, pool, model, caller.tenant, None)
            self._catalog.check_open(pool, caller)
        except NoReplicaError:
            if counted:
                # Otherwise a pool without replicas would never get one.
                tokens = sum(likely_tokens(each) for each in (*checked.inputs, *checked.queries))
                pool.admission.demand.arrived(checked.request_class, tokens, 0, 0, 1, tenant=caller.tenant)
            raise
        ranges = plan(
            [len(each.ids) for each in encoded], most_groups(self._policies.of(caller.tenant, pool.name).quota)
        )
        groups = _groups(checked, encoded, model, ranges)
        named = any(isinstance(each, TokenPrompt) for each in (*checked.inputs, *checked.queries))

        async def read_anew(of: Announcement) -> tuple[ModelInfo, tuple[InputGroup, ...]]:
            return await self._read_anew(checked, caller.tenant, pool, ranges, of, task=model.task)

        admitted = Admitted(
            _as_generation(checked, len(groups)),
            caller,
            pool,
            model,
            (),
            NOTHING_TO_SAMPLE,
            len(groups),
            self._salts.of(caller.tenant),
            Trail(),
            (),
            None if time_left_s is None else arrived_at + time_left_s,
            arrived_at,
            counted,
            groups,
            None if named else read_anew,
            way=way,
        )
        sizes = tuple(len(group.pooling.lengths) for group in groups)
        return OpenPooling(await self._admission.line_up(admitted), sizes)

    async def _read_anew(
        self,
        checked: CheckedPooling,
        tenant: str,
        pool: Pool,
        ranges: Sequence[tuple[int, int]],
        of: Announcement,
        *,
        task: ModelTask,
    ) -> tuple[ModelInfo, tuple[InputGroup, ...]]:
        model, _tokenizer = await self._catalog.model(pool, of)
        check_task(checked, model)
        if model.task is not task:
            raise UnavailableError(f"the task of {pool.name!r} changed while a request waited; send it again")
        return model, _groups(checked, await self._encode(checked, pool, model, tenant, of), model, ranges)

    async def _encode(
        self, checked: CheckedPooling, pool: Pool, model: ModelInfo, tenant: str, of: Announcement | None
    ) -> Sequence[EncodedInput]:
        async def encode_all(inputs: Sequence[PooledInput], field: str) -> list[EncodedInput]:
            return await self._encode_all(inputs, checked.cut, pool, model, tenant, field=field, of=of)

        if checked.kind is not PoolingKind.SCORE:
            return await encode_all(checked.inputs, "inputs")
        if model.task is ModelTask.EMBED:
            return (*await encode_all(checked.queries, "queries"), *await encode_all(checked.inputs, "documents"))
        pairs = _pairs(checked)
        most = _most(checked.cut, model)
        encoded = await self._catalog.encode_inputs(pool, pairs, most, tenant, keep_end=_keeps_end(checked.cut), of=of)
        lengths = [len(each.ids) for each in encoded]
        if max(lengths) > model.max_context_tokens:
            # A query that is too long by itself is what is wrong, and not the documents that it is read with.
            await self._encode_all(checked.queries, None, pool, model, tenant, field="queries", of=of)
        check_lengths(lengths, model, "documents")
        return encoded

    async def _encode_all(
        self,
        inputs: Sequence[PooledInput],
        cut: Cut | None,
        pool: Pool,
        model: ModelInfo,
        tenant: str,
        *,
        field: str,
        of: Announcement | None,
    ) -> list[EncodedInput]:
        check_token_ids(inputs, model, field)
        most, keep_end = _most(cut, model), _keeps_end(cut)
        texts = [each.text for each in inputs if isinstance(each, TextPrompt)]
        of_texts = iter(
            await self._catalog.encode_inputs(pool, texts, most, tenant, keep_end=keep_end, of=of) if texts else ()
        )
        encoded = [
            EncodedInput(_cut(each.ids, most, keep_end=keep_end)) if isinstance(each, TokenPrompt) else next(of_texts)
            for each in inputs
        ]
        check_lengths([len(each.ids) for each in encoded], model, field)
        return encoded


def _groups(
    checked: CheckedPooling, encoded: Sequence[EncodedInput], model: ModelInfo, ranges: Sequence[tuple[int, int]]
) -> tuple[InputGroup, ...]:
    """Return the groups of inputs that are in these ranges.

    Raises:
        InvalidRequestError: an input has none or more tokens than the model takes.
    """
    lengths = [len(each.ids) for each in encoded]
    check_lengths(lengths, model, "documents" if checked.kind is PoolingKind.SCORE else "inputs")
    # A model's own number of dimensions is no cut, and not every model could do one.
    dimensions = None if checked.dimensions == model.pooling.size else checked.dimensions
    found = []
    for first, end in ranges:
        part = encoded[first:end]
        second_at = tuple(len(each.ids) if each.second_at is None else each.second_at for each in part)
        pairs = any(each.second_at is not None for each in part)
        spec = PoolingSpec(
            model.task, tuple(lengths[first:end]), dimensions, checked.activation, second_at if pairs else ()
        )
        found.append(InputGroup([token for each in part for token in each.ids], spec))
    return tuple(found)


def _in_pool(checked: CheckedPooling, route: Route) -> CheckedPooling:
    adapter = adapter_of(checked.model, checked.lora_adapter, route, field="options.lora_adapter")
    return replace(checked, model=route.pool, lora_adapter=adapter)


def _pairs(checked: CheckedPooling) -> list[tuple[str, str]]:
    texts: dict[str, list[str]] = {}
    for field, inputs in (("queries", checked.queries), ("documents", checked.inputs)):
        texts[field] = []
        for index, each in enumerate(inputs):
            if not isinstance(each, TextPrompt):
                raise InvalidRequestError.of(
                    f"{field}[{index}]", "must be text, as this model reads query and document together"
                )
            texts[field].append(each.text)
    queries, documents = texts["queries"], texts["documents"]
    return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True))


def _most(cut: Cut | None, model: ModelInfo) -> int | None:
    if cut is None:
        return None
    return min(cut.max_tokens or model.max_context_tokens, model.max_context_tokens)


def _keeps_end(cut: Cut | None) -> bool:
    return cut is not None and cut.beginning


def _cut(ids: Sequence[int], most: int | None, *, keep_end: bool) -> Sequence[int]:
    if most is None or len(ids) <= most:
        return ids
    return ids[-most:] if keep_end else ids[:most]


def _as_generation(checked: CheckedPooling, groups: int) -> CheckedRequest:
    """Return what line and queue need of a request."""
    return CheckedRequest(
        model=checked.model,
        prompt=TokenPrompt(()),
        sampling=NOTHING_TO_SAMPLE,
        n=groups,
        request_class=checked.request_class,
        queue_timeout_s=checked.queue_timeout_s,
        idempotency_key="",
        lora_adapter=checked.lora_adapter,
        session_id="",
    )
