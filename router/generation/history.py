"""Output of a choice: all that another replica needs to go on."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from penstock.internal.v1 import replica_pb2 as pb
from router.generation.parsed import ParsedHistory, joined
from router.links.receiver import Parsed

_DELTAS = 16
"""Deltas that are packed together. One by one would cost more; until then a delta takes some 210 bytes."""


class History:
    """Output of a choice while it runs, bounded by max_tokens.

    It takes 4 bytes per token, 8 per delta and one per character (two or four in text outside of Latin-1), about 21
    bytes per token of English.
    """

    __slots__ = ("_characters", "_fresh", "_ids", "_parsed", "_texts", "_tokens")

    def __init__(self, *, parsed: bool = False) -> None:
        """`parsed`: the output is parsed, and what clients got of it is remembered too."""
        self._ids = array("I")
        # Of each delta: where a client may come back.
        self._tokens = array("I")
        self._characters = array("I")
        self._texts: list[str] = []
        self._fresh: list[tuple[Sequence[int], str]] = []
        """Deltas that are not in the above yet."""
        self._parsed = ParsedHistory() if parsed else None

    def add(self, token_ids: Sequence[int], text: str, parsed: Parsed = None) -> None:
        """Append a delta; its ids must not change any more."""
        if self._parsed is not None:
            self._parsed.add(parsed)
        fresh = self._fresh
        fresh.append((token_ids, text))
        if len(fresh) == _DELTAS:
            self._pack()

    def add_all(self, history: pb.History) -> None:
        """Append all that another receiver had."""
        self._pack()
        self._ids.extend(history.token_ids)
        # Not known from an older replica.
        self._tokens.extend(history.delta_tokens or (len(history.token_ids),))
        self._characters.extend(history.delta_characters or (len(history.text),))
        self._texts.append(history.text)
        if self._parsed is not None:
            pieces = {piece.delta: piece for piece in history.parsed}
            for index in range(len(history.delta_tokens) or 1):
                self._parsed.add(pieces.get(index))

    def _pack(self) -> None:
        fresh = self._fresh
        if not fresh:
            return
        self._ids.extend(chain.from_iterable([ids for ids, _ in fresh]))
        self._tokens.extend([len(ids) for ids, _ in fresh])
        self._characters.extend([len(text) for _, text in fresh])
        self._texts.append("".join([text for _, text in fresh]))
        fresh.clear()

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens."""
        self._pack()
        return self._ids

    @property
    def text(self) -> str:
        """All text."""
        self._pack()
        return "".join(self._texts)

    def characters_at(self, tokens: int) -> int | None:
        """Return how many characters the first `tokens` tokens have; None where they do not end with a delta."""
        self._pack()
        have = characters = 0
        for more_tokens, more_characters in zip(self._tokens, self._characters, strict=True):
            if have >= tokens:
                break
            have += more_tokens
            characters += more_characters
        return characters if have == tokens else None

    def parsed_at(self, tokens: int) -> tuple[pb.DeltaParsed, pb.DeltaParsed]:
        """Return the parsed output of the deltas that the first `tokens` tokens came in, and that of the others."""
        self._pack()
        before: list[pb.DeltaParsed | None] = []
        behind: list[pb.DeltaParsed | None] = []
        have = 0
        pieces = self._parsed.pieces(self._delta_texts()) if self._parsed is not None else ()
        for more_tokens, piece in zip(self._tokens, pieces, strict=False):
            (before if have < tokens else behind).append(piece)
            have += more_tokens
        return joined(before), joined(behind)

    def _delta_texts(self) -> Iterator[str]:
        text, at = self.text, 0
        for size in self._characters:
            yield text[at : at + size]
            at += size

    def record(self, model_digest: str, adapter_files: str = "") -> pb.ResumeRecord:
        """Describe what has been delivered, and which weights it came from."""
        text = self.text
        return pb.ResumeRecord(
            prior_token_ids=self.token_ids,
            prior_text_length=len(text),
            prior_text=text,
            model_digest=model_digest,
            delta_tokens=self._tokens,
            delta_characters=self._characters,
            adapter_files=adapter_files,
        )
