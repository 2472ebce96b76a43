"""Plain values of a request whose fields are well formed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from cluster.settings import LimitSettings
from penstock.models import RequestClass, SamplingParams, Tool, ToolCall, ToolChoice

NO_EFFORT = "none"
"""Effort with which a model does not reason."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits that operators may set."""

    max_prompt_bytes: int = 4 << 20
    """Longest prompt text in bytes of UTF-8; of a chat, the sum over all messages."""
    each: LimitSettings = field(default_factory=LimitSettings)
    """Limits of single fields, within those that the .proto files document."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Prompt of plain text."""

    text: str
    special: bool = True
    """Whether the tokenizer adds its own special tokens."""


@dataclass(frozen=True, slots=True, repr=False)
class Image:
    """Image in a message."""

    data: bytes
    """Content of the image file."""
    width: int
    height: int

    def __repr__(self) -> str:
        # Two calls are the same where their texts are, as `CallName` has it, and many images have the same size.
        digest = blake2b(self.data, digest_size=16).hexdigest()
        return f"Image({self.width} x {self.height}, {digest})"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str
    """Text; that of several parts is joined by line ends."""
    parts: tuple[str | Image, ...] = ()
    """Parts of the content, where there are several, or images."""
    name: str = ""
    """Name of the speaker; empty for none."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Id of the call whose result it is; empty for none."""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Conversation, rendered with the model's chat template."""

    messages: tuple[Message, ...]
    continue_final: bool = False
    """Whether the last message is continued instead of answered."""
    tools: tuple[Tool, ...] = ()
    """Tools that the model is shown."""
    documents: tuple[str, ...] = ()
    """Each the text of a JSON object."""
    template_kwargs: str = ""
    """Variables for the chat template, as the text of a JSON object; empty for none."""
    effort: str = ""
    """Amount of reasoning in the words of the chat template; empty for its own default."""
    special: bool = False
    """Whether the tokenizer adds its own special tokens to those of the template."""
    begins_answer: bool = True
    """Whether the template begins the answer, where the last message is not continued."""

    def variables(self) -> dict[str, Any]:
        """Return the variables for the chat template that the client gave.

        With an effort, `enable_thinking` and `thinking` say whether there is any, as vLLM's server has it. A template
        that knows neither ignores them.
        """
        given: dict[str, Any] = json.loads(self.template_kwargs) if self.template_kwargs else {}
        if not self.effort:
            return given
        thinks = self.effort != NO_EFFORT
        return {"enable_thinking": thinks, "thinking": thinks, **given, "reasoning_effort": self.effort}

    def images(self) -> Iterator[tuple[str, Image]]:
        """Yield its images, each behind its field below the conversation's."""
        for number, message in enumerate(self.messages):
            for place, part in enumerate(message.parts):
                if isinstance(part, Image):
                    yield f"messages[{number}].parts[{place}].image", part

    def texts(self) -> Iterator[str]:
        """Yield all its texts."""
        for message in self.messages:
            yield from (message.content, message.name, message.reasoning)
            yield from (text for call in message.tool_calls for text in (call.name, call.arguments))
        yield from (text for tool in self.tools for text in (tool.name, tool.description, tool.parameters))
        yield from self.documents
        yield self.template_kwargs


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Prompt that the client tokenized."""

    ids: tuple[int, ...]


_ANY_TOOL = ToolChoice()
Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """Generation whose fields are well formed. `resolve` checks whether its model can serve it."""

    model: str
    prompt: Prompt
    sampling: SamplingParams
    """Sampling parameters. max_tokens is 0 where the client gave none; `resolve` fills it in."""
    n: int
    request_class: RequestClass
    queue_timeout_s: float | None
    """Longest wait in line, seconds; None where only the call's own deadline counts."""
    idempotency_key: str
    """Idempotency key; empty for none."""
    lora_adapter: str
    """Name of the adapter; empty for the base model."""
    session_id: str
    """Session id; empty for none."""
    digest: str = ""
    """Digest of the request, with the meaning of `QueueEntry.digest`; empty without an idempotency key."""
    max_tokens_limit: int | None = None
    """Largest max_tokens that the operator allows; None: as many as the context has room for."""
    max_prompt_logprobs: int = LimitSettings().max_prompt_logprobs
    """Most log probabilities of the prompt."""
    tool_choice: ToolChoice = _ANY_TOOL
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    reasoning_effort: str = ""
    """Amount of reasoning in the words of the chat template; empty for its own default."""
    tool_names: tuple[str, ...] = ()
    """Names of all tools of the request, also of those that the model is not shown."""

    @property
    def names_ids(self) -> bool:
        """Whether it has token ids of the client, which mean something to one tokenizer only."""
        return isinstance(self.prompt, TokenPrompt) or bool(self.sampling.stop_token_ids or self.sampling.logit_bias)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Point from which a client wants to continue."""

    token: bytes
    """Resume token; empty where the idempotency key identifies the request."""
    received_tokens: tuple[int, ...]
    """Tokens that the client has, per choice; a missing entry counts as 0."""


@dataclass(frozen=True, slots=True)
class CheckedStream:
    """Streamed generation whose fields are well formed."""

    generate: CheckedRequest
    flush_interval_s: float | None
    """Time for which deltas are merged, seconds; None leaves it to the router."""
    resume: ResumePoint | None


@dataclass(frozen=True, slots=True)
class CheckedCount:
    """Request for a token count whose fields are well formed."""

    model: str
    prompt: Prompt
    names: bool = False
    """Whether the names of the tokens are asked for."""


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """Request to cancel; exactly one field is not empty."""

    request_id: str = ""
    idempotency_key: str = ""
