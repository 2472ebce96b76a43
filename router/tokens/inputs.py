"""Texts and pairs of texts as the ids that a model that embeds or classifies reads. Blocks while it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from cluster.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """One input in tokens."""

    ids: Sequence[int]
    second_at: int | None = None
    """Position of the second text of a pair; None for a single text."""


Texts = Sequence[str] | Sequence[tuple[str, str]]


def encode_inputs(
    encoder: tokenizers.Tokenizer, texts: Texts, max_tokens: int | None, *, keep_end: bool
) -> list[EncodedInput]:
    """Encode texts, or pairs of texts, with the special tokens that the tokenizer's own post-processor adds.

    Args:
        encoder: the model's; it neither truncates nor pads.
        texts: texts or pairs.
        max_tokens: most tokens of an input, special ones included; the rest is cut off, and special tokens stay. None
            cuts nothing.
        keep_end: whether the end of a cut text stays, and not its beginning.

    Raises:
        InvalidRequestError: special tokens leave no room for text.
    """
    if max_tokens is None:
        return [_encoded(each, texts[index]) for index, each in enumerate(encoder.encode_batch_fast(list(texts)))]
    if texts and isinstance(texts[0], tuple):
        first, second = zip(*texts, strict=True)
        encoded = encoder.encode_batch_fast([*first, *second], add_special_tokens=False)
        room = _room(encoder, max_tokens, is_pair=True)
        return [
            _pair(encoder, one, other, room, keep_end=keep_end)
            for one, other in zip(encoded[: len(texts)], encoded[len(texts) :], strict=True)
        ]
    room = _room(encoder, max_tokens, is_pair=False)
    found = []
    for each in encoder.encode_batch_fast(list(texts), add_special_tokens=False):
        each.truncate(room, direction="left" if keep_end else "right")
        found.append(EncodedInput(encoder.post_process(each).ids))
    return found


def _room(encoder: tokenizers.Tokenizer, max_tokens: int, *, is_pair: bool) -> int:
    special = encoder.num_special_tokens_to_add(is_pair=is_pair)
    if max_tokens <= special:
        # All texts would have the same result, which looks like one.
        problem = f"must be at least {special + 1}, as {special} of an input's tokens are special, got {max_tokens}"
        raise InvalidRequestError.of("options.truncation.max_tokens", problem)
    return max_tokens - special


def _pair(
    encoder: tokenizers.Tokenizer, one: tokenizers.Encoding, other: tokenizers.Encoding, room: int, *, keep_end: bool
) -> EncodedInput:
    """Cut the longer text of a pair first, and both alike from there on."""
    first, second = len(one.ids), len(other.ids)
    half = room // 2
    if first + second > room:
        if first <= half:
            second = room - first
        elif second <= room - half:
            first = room - second
        else:
            first, second = half, room - half
    direction = "left" if keep_end else "right"
    one.truncate(first, direction=direction)
    other.truncate(second, direction=direction)
    return _encoded(encoder.post_process(one, other), ("", ""))


def _encoded(encoding: tokenizers.Encoding, text: str | tuple[str, str]) -> EncodedInput:
    if isinstance(text, str):
        return EncodedInput(encoding.ids)
    types = encoding.type_ids
    # A tokenizer without types of its own marks no second text.
    return EncodedInput(encoding.ids, types.index(1) if 1 in types else None)
