"""What a choice has produced: all that another replica needs to go on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.v1 import replica_pb2 as pb

_PIECES = 64
"""Texts that are joined at a time: a string of its own costs some 60 bytes more than its characters."""


class History:
    """Remembers output while its choice runs: 4 bytes per token, 8 per delta and one per character (two or four in text
    outside of Latin-1), about 18 bytes per token of English. Bounded by max_tokens.
    """

    __slots__ = ("_characters", "_ids", "_joined", "_pieces", "_tokens")

    def __init__(self) -> None:
        self._ids = array("I")
        # Of each delta: where a client may come back.
        self._tokens = array("I")
        self._characters = array("I")
        self._joined: list[str] = []
        self._pieces: list[str] = []

    def add(self, token_ids: Sequence[int], text: str) -> None:
        """Append a delta."""
        self._ids.extend(token_ids)
        self._tokens.append(len(token_ids))
        self._characters.append(len(text))
        self._keep(text)

    def add_all(self, history: pb.History) -> None:
        """Append all that another receiver had."""
        self._ids.extend(history.token_ids)
        # Not known from an older replica.
        self._tokens.extend(history.delta_tokens or (len(history.token_ids),))
        self._characters.extend(history.delta_characters or (len(history.text),))
        self._keep(history.text)

    def _keep(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            if len(self._pieces) == _PIECES:
                self._joined.append("".join(self._pieces))
                self._pieces.clear()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens."""
        return self._ids

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self._joined) + "".join(self._pieces)

    def characters_at(self, tokens: int) -> int | None:
        """Return how many characters came with so many tokens; None where that is not the end of a delta."""
        have = characters = 0
        for more_tokens, more_characters in zip(self._tokens, self._characters, strict=True):
            if have >= tokens:
                break
            have += more_tokens
            characters += more_characters
        return characters if have == tokens else None

    def record(self, model_digest: str) -> pb.ResumeRecord:
        """Say what has been delivered, and what weights it came from."""
        text = self.text
        return pb.ResumeRecord(
            prior_token_ids=self._ids,
            prior_text_length=len(text),
            prior_text=text,
            model_digest=model_digest,
            delta_tokens=self._tokens,
            delta_characters=self._characters,
        )
