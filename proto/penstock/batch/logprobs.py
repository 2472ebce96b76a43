"""Log probabilities as OpenAI's and vLLM's servers write them. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.models import PositionLogprobs, TokenLogprob


def chat_logprobs(positions: Sequence[PositionLogprobs], *, as_ids: bool = False) -> dict[str, Any] | None:
    """Return log probabilities in the form of a chat; None where there are none.

    Args:
        positions: one per token.
        as_ids: whether tokens are named by their ids.
    """
    if not positions:
        return None

    def shown(token: TokenLogprob) -> dict[str, Any]:
        name = _id(token) if as_ids else _text(token) or _escaped(token)
        return {"token": name, "logprob": token.logprob, "bytes": list(token.token_bytes) or None}

    content = [{**shown(position.chosen), "top_logprobs": [*map(shown, position.top)]} for position in positions]
    return {"content": content, "refusal": None}


class TextLogprobs:
    """Log probabilities of one text in the form of a completion: lists, also piece by piece."""

    def __init__(self, *, as_ids: bool = False, leading: int = 0) -> None:
        """Begin.

        Args:
            as_ids: whether tokens are named by their ids.
            leading: number of characters of the first tokens that the text leaves out, such as those of a special
                token.
        """
        self._as_ids = as_ids
        self._leading = leading
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lists(self, positions: Iterable[PositionLogprobs], *, prompt: bool = False) -> dict[str, Any]:
        """Return the lists of the next positions. The first token of a `prompt` has no log probability.

        A token's `text_offset` is the number of the text's characters that are complete before it.
        """
        tokens: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for position in positions:
            chosen = position.chosen
            unknown = prompt and not tokens
            tokens.append(self._name(chosen))
            logprobs.append(None if unknown else chosen.logprob)
            tops.append(None if unknown else self._tops(position))
            offsets.append(max(0, self._characters - self._leading))
            self._characters += len(self._decoder.decode(chosen.token_bytes))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _tops(self, position: PositionLogprobs) -> dict[str, float]:
        found: dict[str, float] = {}
        # The chosen token is always there. Of tokens with one name the most likely one counts.
        for token in (*position.top, position.chosen):
            found.setdefault(self._name(token), token.logprob)
        return found

    def _name(self, token: TokenLogprob) -> str:
        if self._as_ids:
            return _id(token)
        return _text(token) or (f"bytes:{_escaped(token)}" if token.token_bytes else _id(token))


def prompt_logprobs(positions: Sequence[PositionLogprobs]) -> list[dict[str, Any] | None]:
    """Return log probabilities of a prompt as vLLM's server does: for each token an object by ids, the token's own id
    first; None for the first token.
    """
    return [None, *map(_of_prompt, positions[1:])]


def _of_prompt(position: PositionLogprobs) -> dict[str, Any]:
    ranked = [(position.chosen, position.rank), *((token, rank) for rank, token in enumerate(position.top, 1))]
    found: dict[str, Any] = {}
    for token, rank in ranked:
        shown = {"logprob": token.logprob, "rank": rank, "decoded_token": token.token_bytes.decode(errors="replace")}
        found.setdefault(str(token.token_id), shown)
    return found


def _text(token: TokenLogprob) -> str:
    """Return a token's text; empty where it has none, or only a part of a character."""
    try:
        return token.token_bytes.decode()
    except UnicodeDecodeError:
        return ""


def _escaped(token: TokenLogprob) -> str:
    """Return a token's bytes as OpenAI's server names parts of characters. A token without bytes has its id."""
    return "".join(f"\\x{byte:02x}" for byte in token.token_bytes) or _id(token)


def _id(token: TokenLogprob) -> str:
    return f"token_id:{token.token_id}"
