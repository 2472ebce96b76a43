"""Answers to the questions of routers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cluster.digests import TOKENIZER_FILE
from cluster.errors import EngineRequestError, EngineStartError
from cluster.wire.framing import MAX_FRAME
from cluster.wire.output_parsing import parsing_from_wire
from deployments.engines.base import Engine, EngineIdentity
from penstock.internal.v1 import replica_pb2 as pb
from penstock.wire import structured_from_wire, structured_to_wire, unenforced_to_wire

MAX_TOKENIZER = MAX_FRAME - (64 << 10)
"""Most bytes of tokenizer files. Routers get them in one message."""


def require_tokenizer(identity: EngineIdentity, where: str) -> None:
    """Check that routers can get the tokenizer. Otherwise every request would fail.

    Raises:
        EngineStartError: it is missing or too large. `where` begins the error.
    """
    if TOKENIZER_FILE not in identity.tokenizer_files:
        raise EngineStartError(f"{where}: there is no tokenizer")
    size = sum(map(len, identity.tokenizer_files.values()))
    if size > MAX_TOKENIZER:
        raise EngineStartError(f"{where}: the tokenizer's files have {size} bytes, and at most {MAX_TOKENIZER} fit")


class QuestionRejected(Exception):  # noqa: N818 - an answer
    """Question that has no answer."""

    def __init__(self, reason: pb.RejectionReason.ValueType, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Questions:
    """Questions that a replica answers."""

    def __init__(self, engine: Engine, tokenizer_digest: str, tokenizer_files: Mapping[str, bytes]) -> None:
        """`tokenizer_files`: the content of each file by its name."""
        self._engine = engine
        self.tokenizer_digest = tokenizer_digest
        self._files = tokenizer_files
        # Compiling takes a core, which the engine's own process may need.
        self._compiling = asyncio.Semaphore(1)

    def tokenizer(self, request: pb.GetTokenizerRequest) -> pb.GetTokenizerResponse:
        """Return the tokenizer.

        Raises:
            QuestionRejected: the replica has another one.
        """
        if request.digest != self.tokenizer_digest:
            raise QuestionRejected(
                pb.REJECTION_REASON_NOT_FOUND,
                f"digest {request.digest!r}; this replica has {self.tokenizer_digest!r}",
            )
        files = [pb.TokenizerFile(name=name, content=content) for name, content in self._files.items()]
        return pb.GetTokenizerResponse(files=files)

    async def judge(self, request: pb.CheckConstraintRequest) -> pb.CheckConstraintResponse:
        """Return whether the engine's compiler follows a constraint.

        Raises:
            QuestionRejected: the request names none.
        """
        constraint = structured_from_wire(request.constraint)
        async with self._compiling:
            if request.HasField("parsing"):
                found = await self._engine.judge_calls(parsing_from_wire(request.parsing), constraint)
            elif constraint is not None:
                found = await self._engine.judge(constraint)
            else:
                raise QuestionRejected(pb.REJECTION_REASON_INVALID, "constraint: is required without parsing")
        return pb.CheckConstraintResponse(
            problem=found.problem,
            relaxed=None if found.relaxed is None else structured_to_wire(found.relaxed),
            unenforced=map(unenforced_to_wire, found.unenforced),
            field=found.field,
        )

    async def expand_images(self, request: pb.ExpandImagesRequest) -> pb.ExpandImagesResponse:
        """Return the tokens that images become.

        Raises:
            QuestionRejected: the request names none.
        """
        sizes = [(each.width, each.height) for each in request.sizes]
        if not sizes or not all(map(all, sizes)):
            raise QuestionRejected(
                pb.REJECTION_REASON_INVALID, f"sizes: at least one is required, of at least 1 x 1 pixels, got {sizes}"
            )
        try:
            found = await self._engine.expand_images(sizes)
        except EngineRequestError as error:
            return pb.ExpandImagesResponse(problem=str(error))
        return pb.ExpandImagesResponse(images=[pb.ImageTokens(token_ids=ids) for ids in found])
