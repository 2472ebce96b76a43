"""Single questions to a replica, each on a connection of its own, so that a long answer holds up no other output."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import LinkLostError
from cluster.lifecycle import timeout_awake
from cluster.models import Judgement
from cluster.wire.framing import OtherProtocolError
from cluster.wire.output_parsing import parsing_to_wire
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import OutputParsing, StructuredOutput
from penstock.wire import structured_from_wire, structured_to_wire, unenforced_from_wire
from router.links.ends import LinkEnds
from router.links.former import ask_former
from router.links.stream import open_stream


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
EXPAND_TIMEOUT_S = 30.0
"""Longest wait for an engine to say what images become: it may look at dozens of them."""


async def fetch_tokenizer(ends: LinkEnds, digest: str) -> Mapping[str, bytes]:
    """Return the replica's tokenizer files by name.

    Raises:
        LinkError: the replica is gone or has another tokenizer.
    """
    question = pb.LinkCommand(get_tokenizer=pb.GetTokenizerRequest(digest=digest))
    answer = await _ask(ends, "tokenizer", question, FETCH_TIMEOUT_S)
    return {file.name: file.content for file in answer.tokenizer.files}


async def judge(ends: LinkEnds, asked: Constrained) -> Judgement:
    """Return what the replica's compiler says of a constraint, or of demanded calls.

    Raises:
        LinkError: the replica is gone, took too long, or is too old to know the question.
    """
    structured, parsing = (asked, None) if isinstance(asked, StructuredOutput) else (asked.structured, asked.parsing)
    request = pb.CheckConstraintRequest(
        constraint=None if structured is None else structured_to_wire(structured),
        parsing=None if parsing is None else parsing_to_wire(parsing),
    )
    answer = await _ask(ends, "constraint", pb.LinkCommand(check_constraint=request), CHECK_TIMEOUT_S)
    found = answer.judgement
    return Judgement(
        found.problem,
        structured_from_wire(found.relaxed) if found.HasField("relaxed") else None,
        tuple(map(unenforced_from_wire, found.unenforced)),
        found.field,
    )


async def expand_images(ends: LinkEnds, sizes: Sequence[tuple[int, int]]) -> tuple[tuple[array[int], ...], str]:
    """Return the tokens of each image of a prompt by the images' widths and heights, and why the model can't take them;
    empty where it can.

    Raises:
        LinkError: the replica is gone, took too long, or is too old to know the question.
    """
    request = pb.ExpandImagesRequest(sizes=[pb.ImageSize(width=width, height=height) for width, height in sizes])
    answer = await _ask(ends, "images", pb.LinkCommand(expand_images=request), EXPAND_TIMEOUT_S)
    found = answer.expanded_images
    return tuple(array("I", each.token_ids) for each in found.images), found.problem


async def _ask(ends: LinkEnds, what: str, question: pb.LinkCommand, seconds: float) -> pb.LinkResponse:
    try:
        async with timeout_awake(seconds):
            try:
                stream = await open_stream(ends, seconds)
            except OtherProtocolError:
                return await ask_former(ends, question, seconds)
            try:
                answer = await stream.ask(pb.LinkRequest(commands=[question]))
            finally:
                stream.break_off()
    except TimeoutError:
        raise LinkLostError(f"{what} of {ends.replica_id}: no answer within {seconds:g} s") from None
    if answer.HasField("rejection"):
        raise LinkLostError(f"{what} of {ends.replica_id}: {answer.rejection.detail}")
    return answer
