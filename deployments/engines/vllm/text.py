"""The text of a sequence: from the bytes of its tokens where these are all of it, else by vLLM's detokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cluster.token_bytes import TokenBytes, unfinished

Decode = Callable[[int], str]
"""Decoder that returns the text which one more token releases."""


class Text(Protocol):
    """Text of one sequence, piece by piece."""

    match: str
    """Stop string that the tokens completed; "" until one did."""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        """Return the text that these tokens release. Remove tokens after a stop string from the list.

        Args:
            token_ids: the new tokens.
            stop_token: whether the last of them ended the sequence; it has no text.
            last: whether nothing follows, so that nothing is held back.
        """
        ...

    def rest(self) -> str:
        """Return the text that is held back. Nothing may follow. A part of a character gives no text."""
        ...


class PlainText:
    """Text of a sequence without stop strings. It does not keep earlier text."""

    __slots__ = ("_decode", "match")

    def __init__(self, decode: Decode) -> None:
        """`decode` returns the text that one more token releases: "" inside a character."""
        self._decode = decode
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        ids = token_ids[:-1] if stop_token else token_ids
        if len(ids) == 1:
            return self._decode(ids[0])
        return "".join(map(self._decode, ids))

    def rest(self) -> str:
        return ""


class ByteDecoder:
    """Decoder of a sequence's tokens by their bytes.

    The Rust library's stream, which vLLM's detokenizer uses, decodes the last tokens twice for each new one, and the
    whole prompt at the first. Both give the same text in the same pieces: nothing while it ends inside of a character.
    """

    __slots__ = ("_bytes", "_held")

    def __init__(self, token_bytes: Mapping[int, bytes], held: bytes = b"") -> None:
        """`held` is a part of a character that came before."""
        self._bytes = token_bytes
        self._held = held

    def decode(self, token_id: int) -> str:
        """Return the text that one more token releases: "" inside a character."""
        data = self._held + self._bytes[token_id]
        text = data.decode("utf-8", "replace")
        if text.endswith(_UNFINISHED):
            self._held = data
            return ""
        if self._held:
            self._held = b""
        return text


_UNFINISHED = "\ufffd"
"""What stands for bytes that are no character, or not yet."""
_CHARACTER_BYTES = 4
_BYTE_NAME = "<0x"
"""Beginning of the names of tokens that stand for one byte."""


class ByteTexts:
    """Maker of texts from the bytes of tokens, for one tokenizer."""

    def __init__(self, encoder: Any) -> None:
        """`encoder` is a `tokenizers.Tokenizer`."""
        self._shown, self._skipped = TokenBytes(encoder), TokenBytes(encoder, skip_special=True)
        self.exact = self._shown.exact
        """Whether texts of this tokenizer can be made so."""

    def after(self, prompt: Sequence[int], *, skip_special: bool) -> Decode:
        """Return the decoder of what follows a prompt, which may end inside of a character. `skip_special`: special
        tokens have no text.
        """
        token_bytes = self._skipped if skip_special else self._shown
        begun = unfinished(b"".join([token_bytes[each] for each in prompt[-_CHARACTER_BYTES:]]))
        return ByteDecoder(token_bytes, begun).decode


class WithoutPrompt:
    """Decoder of what follows a prompt whose text ends as if inside of a character.

    The Rust library's stream waits for the end of that character, and then gives the text of the whole prompt too.
    """

    __slots__ = ("_decode", "_prompt")

    def __init__(self, decode: Decode, prompt: str) -> None:
        """`prompt` is the text of the prompt alone."""
        self._decode = decode
        self._prompt = prompt

    def decode(self, token_id: int) -> str:
        """Return the text that one more token releases: "" inside a character."""
        text = self._decode(token_id)
        if text and self._prompt:
            same = zip(text, self._prompt, strict=False)
            text = text[next((at for at, (new, old) in enumerate(same) if new != old), len(self._prompt)) :]
            self._prompt = ""
        return text


def without_prompt(decode: Decode, encoder: Any, prompt: Sequence[int], *, skip_special: bool) -> Decode:
    """Return a decoder that gives nothing of the prompt's text, from that of a stream which begins with the prompt.

    Args:
        decode: the stream's own.
        encoder: a `tokenizers.Tokenizer`.
        prompt: token ids.
        skip_special: special tokens have no text.
    """
    for token in reversed(prompt):
        # The end alone says it for nearly every prompt. A byte counts with those before it.
        text = encoder.decode([token], skip_special_tokens=skip_special)
        if text.endswith(_UNFINISHED) or (encoder.id_to_token(token) or "").startswith(_BYTE_NAME):
            whole = encoder.decode([*prompt], skip_special_tokens=skip_special)
            return WithoutPrompt(decode, whole).decode if whole.endswith(_UNFINISHED) else decode
        if text:
            break
    return decode


def detokenizer_of(tokenizer: Any, request: Any, by_bytes: Decode | None = None) -> Any:
    """Build vLLM's detokenizer of a request, without the text of its prompt.

    Args:
        tokenizer: the model's.
        request: vLLM's EngineCoreRequest, or what has the same fields.
        by_bytes: decoder of what follows the prompt, in place of vLLM's.
    """
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer, IncrementalDetokenizer

    detokenizer: Any = IncrementalDetokenizer.from_new_request(tokenizer, request)
    if isinstance(detokenizer, FastIncrementalDetokenizer):
        detokenizer.decode_next = by_bytes or without_prompt(
            detokenizer.decode_next,
            detokenizer.tokenizer,
            request.prompt_token_ids,
            skip_special=request.sampling_params.skip_special_tokens,
        )
    return detokenizer


class StoppableText:
    """Text that holds back the possible beginning of a stop string."""

    __slots__ = ("_detokenizer", "match")

    def __init__(self, detokenizer: Any) -> None:
        """`detokenizer` is vLLM's IncrementalDetokenizer. It may have had tokens already."""
        self._detokenizer = detokenizer
        self.match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        detokenizer = self._detokenizer
        before = detokenizer.num_output_tokens()
        self.match = detokenizer.update(token_ids, stop_token) or ""
        if self.match:
            # One step may bring more tokens than the one that completes the stop string.
            del token_ids[detokenizer.num_output_tokens() - before :]
        return str(detokenizer.get_next_output_text(last or bool(self.match), True))

    def rest(self) -> str:
        return str(self._detokenizer.get_next_output_text(True, True))
