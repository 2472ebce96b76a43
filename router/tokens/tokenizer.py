"""One model's tokenizer, safe to use from an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

import jinja2
import tokenizers

from cluster.digests import TOKENIZER_FILE
from cluster.errors import InvalidRequestError
from cluster.settings import LimitSettings
from cluster.token_bytes import TokenBytes
from router.tokens.bounds import EncodingBounds
from router.tokens.chat import ChatTemplate, splits_special_tokens
from router.tokens.config import config_text
from router.tokens.inputs import EncodedInput, Texts, encode_inputs
from router.tokens.roles import ImageMark, ImagePlace
from router.tokens.template import FIELD
from router.validation import ChatPrompt, Prompt, TextPrompt
from router.validation.lengths import prompt_too_long

INLINE_CHARACTERS = 2_048
"""Longest text that is encoded without a thread: the hop to a thread would cost more than the encoding."""
INLINE_MESSAGES = 16
"""Most messages of a chat that is encoded without a thread."""
_FAR = 16
"""Characters per token of the context from which a text is probably too long."""
_HEAD = 8
"""Characters per token of the context that are encoded of such a text to find out."""

_log = logging.getLogger(__name__)


class Tokenizer:
    """Tokenizer of one model. Encodes long texts in a thread, where the encoder releases the interpreter lock."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        executor: Executor,
        max_rendered_characters: int = LimitSettings().max_rendered_characters,
        bounds: EncodingBounds | None = None,
    ) -> None:
        """Load a tokenizer, which takes up to a second for a large vocabulary.

        Args:
            files: tokenizer.json, and tokenizer_config.json and chat_template.jinja where the model has them.
            executor: encodes long texts; the caller closes it.
            max_rendered_characters: longest text that the chat template may make.
            bounds: those of all tokenizers of the process; None makes bounds for this one alone.

        Raises:
            ValueError: tokenizer.json is missing or broken. If another file is broken, only chat does not work.
        """
        if TOKENIZER_FILE not in files:
            raise ValueError(f"{TOKENIZER_FILE} is missing")
        try:
            self._encoder = tokenizers.Tokenizer.from_buffer(files[TOKENIZER_FILE])
        except Exception as error:
            raise ValueError(f"{TOKENIZER_FILE} cannot be loaded: {error}") from error
        # The router checks lengths itself. A file that truncates would cut prompts without an error.
        self._encoder.no_truncation()
        self._encoder.no_padding()
        self.token_bytes = TokenBytes(self._encoder)
        """Text of each token in UTF-8, by id."""
        self.config = config_text(files)
        """Configuration with the chat template, as the text of a JSON object."""
        self._executor = executor
        self._bounds = bounds or EncodingBounds()
        self._no_chat = "this model has no chat template; send text or token ids"
        try:
            self._encoder.encode_special_tokens = splits_special_tokens(files)
            self._chat = ChatTemplate.from_files(files, max_characters=max_rendered_characters)
        # RecursionError comes from deep nesting.
        except (jinja2.TemplateError, ValueError, TypeError, RecursionError) as error:
            _log.warning("tokens.chat_template_broken", extra={"error": str(error)})
            self._no_chat = f"this model's chat template is broken ({str(error)[:200]}); send text or token ids"
            self._chat = None

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._chat is not None

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._encoder.get_vocab_size(with_added_tokens=True))

    async def encode(self, text: str, *, special: bool = True, context: int | None = None) -> list[int]:
        """Encode plain text. `special`: with the special tokens that the tokenizer's own post-processor adds.

        Raises:
            InvalidRequestError: the text is far too long for a context of so many tokens.
        """
        if len(text) <= INLINE_CHARACTERS:
            return self._encode(text, special, context, None)
        return await self._in_thread(partial(self._encode, text, special, context, self._bounds))

    async def encode_chat(
        self, prompt: ChatPrompt, context: int | None = None, image: ImageMark | None = None
    ) -> list[int]:
        """Render a conversation and encode it. The template alone adds special tokens, unless the prompt asks for more.
        `image` stands for each of its images.

        Raises:
            InvalidRequestError: the model has no chat template, its template refuses the conversation, or that is far
                too long for a context of so many tokens.
        """
        if self._chat is None:
            raise InvalidRequestError.of(FIELD, self._no_chat)
        if _is_short(prompt):
            return self._encode_chat(self._chat, prompt, context, image, None)
        return await self._in_thread(partial(self._encode_chat, self._chat, prompt, context, image, self._bounds))

    async def encode_inputs(self, texts: Texts, max_tokens: int | None, *, keep_end: bool) -> list[EncodedInput]:
        """Encode many texts, or pairs of texts, as `encode_inputs` says."""
        call = partial(encode_inputs, self._encoder, texts, max_tokens, keep_end=keep_end)
        characters = sum(map(_characters, texts))
        if characters <= INLINE_CHARACTERS and all(isinstance(each, str) for each in texts):
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._bounds.run, call, characters)

    def is_quick(self, prompt: Prompt) -> bool:
        """Return whether a prompt is encoded without a thread."""
        match prompt:
            case TextPrompt(text):
                return len(text) <= INLINE_CHARACTERS
            case ChatPrompt():
                return _is_short(prompt)
            case _:
                return True

    async def encode_prompt(
        self, prompt: Prompt, context: int | None = None, image: ImageMark | None = None
    ) -> Sequence[int]:
        """Encode a prompt of any form. Token ids pass unchanged. `image` stands for each image of a conversation.

        Raises:
            InvalidRequestError: for the reasons of `encode_chat`.
        """
        match prompt:
            case TextPrompt(text, special):
                return await self.encode(text, special=special, context=context)
            case ChatPrompt():
                return await self.encode_chat(prompt, context, image)
            case _:
                return prompt.ids

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included. Incomplete characters become U+FFFD.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        size = self.vocabulary_size
        # A million ids hold the event loop for half a second where each is looked at in Python.
        if token_ids and max(token_ids) >= size:
            index, wrong = next((index, each) for index, each in enumerate(token_ids) if each >= size)
            raise InvalidRequestError.of(
                f"token_ids[{index}]", f"must be below the vocabulary size {size}, got {wrong}"
            )
        decode = partial(self._encoder.decode, list(token_ids), skip_special_tokens=False)
        if len(token_ids) <= INLINE_CHARACTERS:
            return decode()
        return await asyncio.get_running_loop().run_in_executor(self._executor, decode)

    async def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return the names of tokens in the vocabulary; an empty one for an id without a token."""
        if len(token_ids) <= INLINE_CHARACTERS:
            return self._names(token_ids)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._names, token_ids)

    def _names(self, token_ids: Sequence[int]) -> list[str]:
        return [self._encoder.id_to_token(token_id) or "" for token_id in token_ids]

    def _encode(self, text: str, special: bool, context: int | None, bounds: EncodingBounds | None) -> list[int]:
        """Encode a text, in a thread within bounds, or on the event loop without any."""
        if context is not None and len(text) > _FAR * context:
            self._check_head(text, context, bounds)
        return self._ids(text, special, bounds)

    def _check_head(self, text: str, context: int, bounds: EncodingBounds | None) -> None:
        """Refuse a text whose beginning alone is too long. All of it would take seconds, and memory of hundreds of
        megabytes.
        """
        head = text[: _HEAD * context]
        tokens = len(self._ids(head, False, bounds))
        # Where the text is cut, and where a tokenizer looks at more of it, some tokens may differ.
        if tokens > context + context // 8 + 128:
            about = tokens * len(text) // len(head)
            raise InvalidRequestError.of("prompt", prompt_too_long(about, context - 1, context, about=True))

    def _ids(self, text: str, special: bool, bounds: EncodingBounds | None) -> list[int]:
        if bounds is None:
            return self._ids_now(text, special)
        return bounds.run(partial(self._ids_now, text, special), len(text))

    def _ids_now(self, text: str, special: bool) -> list[int]:
        # The call for batches releases the interpreter lock and skips offsets; the one for single texts blocks all
        # threads.
        [encoding] = self._encoder.encode_batch_fast([text], add_special_tokens=special)
        return list(encoding.ids)

    def _encode_chat(
        self,
        chat: ChatTemplate,
        prompt: ChatPrompt,
        context: int | None,
        image: ImageMark | None,
        bounds: EncodingBounds | None,
    ) -> list[int]:
        place = None
        if image is not None and any(prompt.images()):
            core = self._encoder.decode(list(image.ids), skip_special_tokens=False)
            place = ImagePlace(image.text, core)
        return self._encode(chat.render(prompt, place), prompt.special, context, bounds)

    async def _in_thread(self, call: Callable[[], list[int]]) -> list[int]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _characters(text: str | tuple[str, str]) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _is_short(prompt: ChatPrompt) -> bool:
    return len(prompt.messages) <= INLINE_MESSAGES and sum(map(len, prompt.texts())) <= INLINE_CHARACTERS
