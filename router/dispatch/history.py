"""What a choice has produced: all that another replica needs to go on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.v1 import replica_pb2 as pb


class History:
    """Remembers output, 4 bytes per token and the text."""

    __slots__ = ("_ids", "_texts")

    def __init__(self) -> None:
        self._ids = array("I")
        self._texts: list[str] = []

    def add(self, token_ids: Sequence[int], text: str) -> None:
        """Append a delta."""
        self._ids.extend(token_ids)
        if text:
            self._texts.append(text)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens."""
        return self._ids

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self._texts)

    def record(self, model_digest: str) -> pb.ResumeRecord:
        """Say what has been delivered."""
        text = self.text
        return pb.ResumeRecord(
            prior_token_ids=self._ids, prior_text_length=len(text), prior_text=text, model_digest=model_digest
        )
