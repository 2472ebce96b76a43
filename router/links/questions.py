"""Single questions to a replica, outside of the stream that carries its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from cluster.errors import LinkLostError
from cluster.models import Judgement
from cluster.trust.link_proof import Metadata
from cluster.wire.output_parsing import parsing_to_wire
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import OutputParsing, StructuredOutput
from penstock.wire import structured_from_wire, structured_to_wire, unenforced_from_wire


@dataclass(frozen=True, slots=True)
class DemandedCalls:
    """Calls of tools that a sequence demands, and the constraint beside them."""

    parsing: OutputParsing
    structured: StructuredOutput | None


Constrained = StructuredOutput | DemandedCalls
"""What a compiler can be asked about."""
FETCH_TIMEOUT_S = 60.0
"""Timeout for a tokenizer; a router that opens thousands of streams at the same time may be slow to read it."""
CHECK_TIMEOUT_S = 10.0
"""Longest wait for an engine's compiler to judge a constraint."""


async def fetch_tokenizer(stub: Any, replica_id: str, metadata: Metadata, digest: str) -> Mapping[str, bytes]:
    """Return the replica's tokenizer files by name.

    Raises:
        LinkLostError: the replica is gone or has another tokenizer.
    """
    try:
        reply = await stub.GetTokenizer(
            pb.GetTokenizerRequest(digest=digest), metadata=metadata, timeout=FETCH_TIMEOUT_S, wait_for_ready=True
        )
    except grpc.aio.AioRpcError as error:
        raise _lost("tokenizer", replica_id, error) from error
    return {file.name: file.content for file in reply.files}


async def judge(stub: Any, replica_id: str, metadata: Metadata, asked: Constrained) -> Judgement:
    """Return what the replica's compiler says of a constraint, or of demanded calls.

    Raises:
        LinkLostError: the replica is gone, took too long, or is too old to know the question.
    """
    structured, parsing = (asked, None) if isinstance(asked, StructuredOutput) else (asked.structured, asked.parsing)
    request = pb.CheckConstraintRequest(
        constraint=None if structured is None else structured_to_wire(structured),
        parsing=None if parsing is None else parsing_to_wire(parsing),
    )
    try:
        reply = await stub.CheckConstraint(request, metadata=metadata, timeout=CHECK_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise _lost("constraint", replica_id, error) from error
    return Judgement(
        reply.problem,
        structured_from_wire(reply.relaxed) if reply.HasField("relaxed") else None,
        tuple(map(unenforced_from_wire, reply.unenforced)),
        reply.field,
    )


def _lost(what: str, replica_id: str, error: grpc.aio.AioRpcError) -> LinkLostError:
    return LinkLostError(f"{what} of {replica_id}: {error.code().name}: {error.details()}")
