"""Output of a choice over all its attempts: what is known of it, and what its client has not taken yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Protocol

from cluster.errors import InvalidRequestError
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.history import History
from router.generation.logprobs import PromptLogprobs, add_texts
from router.generation.parsed import NOTHING, add_to, joined
from router.generation.unread import Dropped, TextDelta, Unread
from router.links.receiver import AS_TEXT, Parsed

NO_END = "must be the end of a delta, got {}"
"""Complaint about the offset of a client that resumes."""

WriteThrough = Callable[[int, Sequence[int], str, pb.DeltaParsed | None], bool]
"""Function that sends a delta at once (offset, token ids, text, parsed piece), or returns False."""


class DirectWriter(Protocol):
    """Way of output to the client that does not wake the reader."""

    @property
    def ready(self) -> Callable[[], bool]:
        """Function that says whether an event would leave now."""
        ...

    def write(self, event: api.StreamGenerateResponse, tokens: int) -> None:
        """Send a delta of this many tokens while `ready`, and say how the next ones collect; does not raise."""
        ...

    def write_text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> None:
        """Send a choice's delta that is only text, as `write` does."""
        ...


def asks_logprobs(sampling: types.SamplingParams) -> bool:
    """Return whether parameters ask for any log probabilities."""
    return sampling.HasField("logprobs") or sampling.HasField("prompt_logprobs")


class Output:
    """Output of one choice, in order. Offsets count output tokens from the choice's first one."""

    __slots__ = (
        "_index", "_parsed", "_remembers", "_token_bytes", "_unread", "enough", "history", "prefix", "prompt",
        "through", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, *, logprobs: bool, parsed: bool = False) -> None:
        """`logprobs`: any were asked for. They are not remembered, so no other call can have this output whole.
        `parsed`: replicas parse the output. The client gets the parsed pieces, and replicas the raw text.
        """
        self.tokens = 0
        """Handed on or pending."""
        self.history = History(parsed=parsed)
        """All output, where it is known."""
        self.prefix: api.Delta | None = None
        """What the client had before it came here."""
        self.through: WriteThrough | None = None
        """First chance at plain output that nothing is pending before."""
        self.enough = 0
        """Pending tokens of which the reader wants to hear, while output collects; 0 for any output."""
        self.prompt = PromptLogprobs(0, None)
        """Log probabilities of the prompt that the client has not got. They leave with the first output."""
        self._token_bytes: Mapping[int, bytes] | None = None
        self._index = index
        self._parsed = parsed
        self._remembers = not logprobs
        self._unread = Unread()

    @property
    def known(self) -> bool:
        """Whether all of it is known here; not so where another router had the first part and did not hand it on."""
        return self.tokens == len(self.history)

    # --- in -----------------------------------------------------------------------------------------------------------

    def expect_logprobs(self, first_token: int, token_bytes: Mapping[int, bytes] | None) -> None:
        """Prepare for log probabilities.

        Args:
            first_token: id of the prompt's first token.
            token_bytes: texts of tokens, by id; None where they are not known.
        """
        self.prompt, self._token_bytes = PromptLogprobs(first_token, token_bytes), token_bytes

    def add_prompt(self, part: pb.PromptLogprobs) -> None:
        """Take log probabilities of the prompt, or a part of them. They come before the first token."""
        if not self.tokens:
            self.prompt.add(part)

    def add(
        self,
        token_ids: Sequence[int],
        text: str,
        logprobs: Sequence[types.PositionLogprobs],
        parsed: Parsed = None,
        *,
        plain: bool,
    ) -> bool:
        """Append a delta; returns whether the reader should look. `plain`: nothing else has to leave before it."""
        offset = self.tokens
        self.history.add(token_ids, text, parsed)
        if self._parsed:
            parsed = NOTHING if parsed is None else None if parsed is AS_TEXT else parsed
        self.tokens = offset + len(token_ids)
        through = self.through
        alone = plain and not self.enough and not logprobs and not self._unread and not self.prompt
        if through is not None and alone and through(offset, token_ids, text, parsed):
            # Nearly every token.
            return False
        if logprobs and self._token_bytes is not None:
            add_texts(logprobs, self._token_bytes)
        return self._unread.add(token_ids, text, logprobs, parsed) >= self.enough

    def remember(self, history: pb.History) -> None:
        """Take what the client had before it came here."""
        self.history.add_all(history)
        if self._remembers:
            self.prefix = api.Delta(choice_index=self._index, token_ids=history.token_ids, text=history.text)
            if self._parsed:
                add_to(self.prefix, joined(history.parsed))

    def inherits(self, old: Output) -> bool:
        """Take over what another call had, to go on from there; False where that can't be."""
        if not old.tokens or not old.known or not self._remembers:
            return False
        self.history, self.tokens = old.history, old.tokens
        return True

    def skip(self, tokens: int) -> None:
        """Make pending what was inherited behind the first `tokens` tokens, which the client has.

        Raises:
            InvalidRequestError: that is not the end of a delta.
        """
        at = self.history.characters_at(tokens)
        if at is None:
            raise InvalidRequestError.of("resume.received_tokens", NO_END.format(tokens))
        ids, text = self.history.token_ids, self.history.text
        self.prefix = api.Delta(choice_index=self._index, token_ids=ids[:tokens], text=text[:at])
        rest = None
        if self._parsed:
            before, rest = self.history.parsed_at(tokens)
            add_to(self.prefix, before)
        if tokens < self.tokens:
            self._unread.add(ids[tokens:], text[at:], (), rest)

    # --- out ----------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is something for the client."""
        return bool(self._unread)

    @property
    def pending_tokens(self) -> int:
        """How many tokens are pending."""
        return self._unread.tokens

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes in memory of what is pending."""
        return self._unread.size + self.prompt.size

    def take(self) -> api.StreamGenerateResponse:
        """Return all that is pending as one event."""
        event = self._unread.take(self._index, self.tokens)
        return self.prompt.take(event) if self.prompt else event

    def look(self) -> api.StreamGenerateResponse:
        """Return what `take` would, and leave it pending."""
        # Taking empties no list, and leaves the copy with others.
        event = copy(self._unread).take(self._index, self.tokens)
        return self.prompt.look(event) if self.prompt else event

    def take_text(self) -> TextDelta | None:
        """Return all that is pending where it is only text; otherwise return None and change nothing."""
        return None if self.prompt else self._unread.take_text(self.tokens)

    def drop(self) -> None:
        """Drop what is pending, and whatever comes: the client does not read it."""
        self._unread, self.through, self.prompt = Dropped(), None, PromptLogprobs(0, None)
