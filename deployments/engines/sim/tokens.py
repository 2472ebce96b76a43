"""Tokens without a model. They depend only on prompt, seed and position."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate

from cluster.models import PromptLogprobs
from penstock.models import PositionLogprobs, TokenLogprob

_MASK = (1 << 64) - 1
_END_ODDS = 512
"""One token in this many ends the output."""


class TokenSource:
    """Source of one sequence's tokens.

    Args:
        prompt: token ids.
        seed: distinguishes choices for the same prompt.
        natural_ids: the ids to draw from, at least one.
        end_id: the id that ends the output; None when the vocabulary has none.
        answer: the output, in place of tokens that are drawn; empty to draw them.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        seed: int | None,
        natural_ids: Sequence[int],
        end_id: int | None,
        answer: Sequence[int] = (),
    ) -> None:
        self._answer = answer
        digest = hashlib.blake2b(struct.pack(f"<{len(prompt)}q", *prompt), digest_size=8).digest()
        self._base = _mix(int.from_bytes(digest, "little") ^ _mix((seed or 0) & _MASK))
        self._natural = natural_ids
        self._end_id = end_id

    def token(self, index: int, *, may_end: bool) -> int:
        """Return the token at a position of the output, from 0."""
        if self._answer:
            if index < len(self._answer):
                return self._answer[index]
            return self._answer[index % len(self._answer)] if self._end_id is None else self._end_id
        draw = _mix(self._base + index)
        if may_end and self._end_id is not None and draw % _END_ODDS == 0:
            return self._end_id
        return self._natural[(draw >> 16) % len(self._natural)]

    def logprobs(self, index: int, token: int, alternatives: int) -> PositionLogprobs:
        """Make up log probabilities for a position. The drawn token has the largest one."""
        draw = _mix(self._base ^ _mix(index + 1))
        chosen = TokenLogprob(token, -1e-3 * (1 + draw % 700))
        others = (self._natural[(draw + step) % len(self._natural)] for step in range(alternatives + 1))
        distinct = [each for each in others if each != token][: max(0, alternatives - 1)]
        top = [chosen, *(TokenLogprob(each, chosen.logprob - rank) for rank, each in enumerate(distinct, start=1))]
        return PositionLogprobs(chosen, tuple(top[:alternatives]), rank=1)

    def prompt_logprobs(self, prompt: Sequence[int], alternatives: int) -> PromptLogprobs:
        """Make up log probabilities for a prompt: each token but the first is the most likely one at its place."""
        ids, values, natural = array("I"), array("f"), self._natural
        for place, token in enumerate(prompt[1:], start=1):
            draw = _mix(self._base + (place << 32))
            own = -1e-3 * (1 + draw % 700)
            ids.append(token)
            values.append(own)
            if alternatives:
                others = (natural[(draw + step) % len(natural)] for step in range(alternatives + 1))
                top = [token, *(each for each in others if each != token)][:alternatives]
                ids.extend(top)
                values.extend([own - rank for rank in range(len(top))])
        rows = len(prompt) - 1
        return PromptLogprobs(len(ids) // rows if rows else 1, ids, values, array("I", [1] * rows))


def block_hashes(tokens: Sequence[int], block_size: int, salt: str) -> list[int]:
    """Return one hash per full block. Each covers the salt and all tokens up to the block's end."""
    full = len(tokens) // block_size
    blocks = (hash(tuple(tokens[i * block_size : (i + 1) * block_size])) for i in range(full))
    return list(accumulate(blocks, lambda before, block: hash((before, block)), initial=hash(salt)))[1:]


def _mix(value: int) -> int:
    """Scatter 64 bits (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
