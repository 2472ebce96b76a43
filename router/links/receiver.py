"""The interface through which a link hands over an attempt's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.links.failure import Failure

Parsed = pb.DeltaParsed | None
"""Parsed output of a delta; None where the output is not parsed, or the delta adds nothing to it."""
AS_TEXT = pb.DeltaParsed()
"""Parsed output of a delta that gives its text as it is. It is this object itself, which nobody changes."""


class Receiver(Protocol):
    """Receiver of one attempt's output. The link calls it on the router's loop, so it never blocks."""

    def on_delta(
        self,
        offset: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Sequence[types.PositionLogprobs],
        parsed: Parsed = None,
    ) -> None:
        """Take new output; `logprobs` are empty when not asked for."""
        ...

    def on_history(self, history: pb.History) -> None:
        """Take the output before the offset to which this receiver attached; it comes before any delta."""
        ...

    def on_adapter(self, files: str) -> None:
        """Take the name that stands for the files of the attempt's adapter."""
        ...

    def on_prompt_logprobs(self, part: pb.PromptLogprobs) -> None:
        """Take log probabilities of the prompt, or a part of them; all parts come before any delta."""
        ...

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Take the attempt's end. No other call follows."""
        ...

    def on_refused(self, refusal: pb.Refusal) -> None:
        """Take the refusal of a start or attach."""
        ...

    def on_detached(self) -> None:
        """Note that another router took over."""
        ...

    def on_lost(self, failure: Failure) -> None:
        """Note that nothing more comes: the replica is out of reach for good, or produces nothing."""
        ...
