"""Uploads: items of a job, checked one by one and put together into blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from cluster.errors import InvalidRequestError
from cluster.settings import JobsSettings
from penstock.models import FieldViolation, ModelTask, RequestClass, StructuredOutput
from penstock.v1 import jobs_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_from_wire, request_class_from_wire
from router.call_origin import call_origin
from router.identity import Caller
from router.jobs.lines import request_of, task_problem
from router.validation import RequestLimits, check_request
from router.validation.fields import MAX_MODEL_BYTES
from router.validation.pooling import check_embed
from router.validation.validation import MAX_KEY_BYTES
from router.validation.violations import MAX_VIOLATIONS, Violations, shown

MAX_CUSTOM_ID_BYTES = 512
BLOCK_ITEMS = 32
BLOCK_BYTES = 256 << 10
"""A block ends at either bound. A single item may be larger."""
_LOOKED_AT = 256
"""Items that are checked after a wrong one. It takes some 10 ms, in which the caller's loop serves no other call."""
_OF_THE_JOB = ("request_class", "queue_timeout", "idempotency_key")
"""Fields of a generation that belong to its job."""


def stored_header(header: api.JobHeader, caller: Caller) -> bytes:
    """Return a header as it is stored, with the span and the key of the call that brings it."""
    stored, parent = api.JobHeader(), call_origin().parent
    stored.CopyFrom(header)
    stored.api_key = caller.api_key
    stored.trace_parent = "" if parent is None else parent.trace_parent
    return stored.SerializeToString()


def check_header(header: api.JobHeader, settings: JobsSettings) -> float:
    """Check a job's header. Return the seconds within which the job must end.

    Raises:
        InvalidRequestError: names every wrong field with its limit and the value sent.
    """
    found = Violations()
    found.size("header.model", header.model, 1, MAX_MODEL_BYTES)
    try:
        request_class_from_wire(header.request_class)
    except ValueError:
        found.add("header.request_class", f"must be a known class, got {header.request_class}")
    key = header.idempotency_key
    if (
        key
        and found.size("header.idempotency_key", key, 1, MAX_KEY_BYTES)
        and not (key.isascii() and key.isprintable())
    ):
        found.add("header.idempotency_key", "must be printable ASCII")
    run_within_s = settings.run_within_s
    if header.HasField("run_within"):
        run_within_s = duration_from_wire(header.run_within)
        found.number("header.run_within", run_within_s, 0, settings.run_within_s, above_low=True, unit="s")
    found.raise_any()
    return run_within_s


def class_of(header: api.JobHeader) -> RequestClass:
    """Return the class of a job's items; BATCH unless the header says otherwise."""
    if header.request_class == types.REQUEST_CLASS_UNSPECIFIED:
        return RequestClass.BATCH
    return request_class_from_wire(header.request_class)


class Upload:
    """Upload of one job: items go in, in order, and blocks of their bodies come out."""

    def __init__(
        self, header: api.JobHeader, settings: JobsSettings, limits: RequestLimits, task: ModelTask | None = None
    ) -> None:
        """`task`: that of the job's model, where it is known."""
        self._model = header.model
        self._task = task
        self._settings = settings
        self._limits = limits
        self._names: set[str] = set()
        self._judged: set[StructuredOutput] = set()
        self._block: list[bytes] = []
        self._block_bytes = 0
        self.items = 0
        """Number of items so far."""
        self.constraints: dict[StructuredOutput, tuple[int, str]] = {}
        """Constraints that no compiler has judged yet, with position and custom_id of the first item that has them."""
        content = api.JobHeader()
        content.CopyFrom(header)
        content.ClearField("idempotency_key")
        self._digest = hashlib.sha256(content.SerializeToString(deterministic=True))

    @property
    def digest(self) -> str:
        """Digest of the content so far."""
        return self._digest.hexdigest()

    def add(self, chunk: api.JobItems) -> Iterator[list[bytes]]:
        """Add a chunk. Yield the blocks that it filled.

        Raises:
            InvalidRequestError: names the first wrong items of the chunk and their fields.
        """
        violations: list[FieldViolation] = []
        left = _LOOKED_AT
        for item in chunk.items:
            violations.extend(self._check(item))
            if not violations:
                yield from self._put(item)
            elif len(violations) >= MAX_VIOLATIONS or (left := left - 1) == 0:
                break
            self.items += 1
        if violations:
            raise InvalidRequestError(violations[:MAX_VIOLATIONS])

    def rest(self) -> list[bytes]:
        """Return the last block, which may be empty.

        Raises:
            InvalidRequestError: there was no item at all.
        """
        if self.items == 0:
            raise InvalidRequestError.of("items", "must have at least 1 entry, got 0")
        return self._block

    def _check(self, item: api.JobItem) -> list[FieldViolation]:
        where = f"items[{self.items}]"
        found = Violations()
        if self.items >= self._settings.max_job_items:
            found.add("items", f"must have at most {self._settings.max_job_items} entries (jobs.max_job_items)")
            found.raise_any()
        if found.size(f"{where}.custom_id", item.custom_id, 1, MAX_CUSTOM_ID_BYTES) and item.custom_id in self._names:
            found.add(f"{where}.custom_id", f"must be unique in the job, got {shown(item.custom_id)} again")
        self._names.add(item.custom_id)
        found.count(f"{where}", item.ByteSize(), 0, self._settings.max_item_bytes, "bytes")
        if problem := task_problem(item, self._model, self._task):
            found.add(f"{where}.{'embed' if item.HasField('embed') else 'request'}", problem)
        if item.request.model not in ("", self._model):
            found.add(
                f"{where}.request.model", f"must be empty or {shown(self._model)}, got {shown(item.request.model)}"
            )
        if item.HasField("embed"):
            return self._named(item, _violations(found) + self._check_embed(item, where))
        for field, _value in item.request.ListFields():
            if field.name in _OF_THE_JOB:
                found.add(f"{where}.request.{field.name}", "belongs to the job and must be unset")
        item.request.model = self._model
        violations = _violations(found)
        try:
            constraint = check_request(item.request, self._limits).sampling.structured
            if constraint is not None and constraint not in self._judged:
                self._judged.add(constraint)
                self.constraints[constraint] = self.items, item.custom_id
        except InvalidRequestError as error:
            violations += [FieldViolation(f"{where}.request.{v.field}", v.description) for v in error.violations]
        return self._named(item, violations)

    def _check_embed(self, item: api.JobItem, where: str) -> list[FieldViolation]:
        found, embed = Violations(), item.embed
        if item.HasField("request"):
            found.add(where, "must have one of request and embed, not both")
        if embed.model not in ("", self._model):
            found.add(f"{where}.embed.model", f"must be empty or {shown(self._model)}, got {shown(embed.model)}")
        for field, _value in embed.options.ListFields():
            if field.name in _OF_THE_JOB:
                found.add(f"{where}.embed.options.{field.name}", "belongs to the job and must be unset")
        embed.model = self._model
        violations = _violations(found)
        try:
            check_embed(embed, self._limits)
        except InvalidRequestError as error:
            violations += [FieldViolation(f"{where}.embed.{v.field}", v.description) for v in error.violations]
        return violations

    def _named(self, item: api.JobItem, violations: list[FieldViolation]) -> list[FieldViolation]:
        name = shown(item.custom_id)
        return [FieldViolation(v.field, f"{v.description} (custom_id {name})") for v in violations]

    def _put(self, item: api.JobItem) -> Iterator[list[bytes]]:
        # It is the same in every item, so it is not stored.
        request_of(item).ClearField("model")
        body = item.SerializeToString(deterministic=True)
        self._digest.update(b"%d:%b" % (len(body), body))
        if self._block and self._block_bytes + len(body) > BLOCK_BYTES:
            yield self._take()
        self._block.append(body)
        self._block_bytes += len(body)
        if len(self._block) == BLOCK_ITEMS:
            yield self._take()

    def _take(self) -> list[bytes]:
        block, self._block, self._block_bytes = self._block, [], 0
        return block


def _violations(found: Violations) -> list[FieldViolation]:
    try:
        found.raise_any()
    except InvalidRequestError as error:
        return list(error.violations)
    return []
