"""What a request asks for, once its fields are known to be well formed."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.settings import LimitSettings
from penstock.models import RequestClass, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds that operators may set."""

    max_prompt_bytes: int = 4 << 20
    """Longest prompt text in bytes of UTF-8; over all messages of a chat."""
    each: LimitSettings = field(default_factory=LimitSettings)
    """Bounds of single fields, within what the .proto files document."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Is plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """Is one chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Is a conversation to be rendered with the model's chat template."""

    messages: tuple[Message, ...]
    continue_final: bool = False
    """The last message is continued instead of answered."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Is a prompt that the client tokenized."""

    ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """Is a generation whose fields are well formed; whether its model can serve it is for `resolve` to say."""

    model: str
    prompt: Prompt
    sampling: SamplingParams
    """Its max_tokens is 0 where the client gave none; `resolve` fills it in."""
    n: int
    request_class: RequestClass
    queue_timeout_s: float | None
    """None: only the call's own deadline counts."""
    idempotency_key: str
    """Empty for none."""
    lora_adapter: str
    """Empty for the base model."""
    session_id: str
    """Empty for none."""
    digest: str = ""
    """Identifies what is asked for, as `QueueEntry.digest` says; empty without an idempotency key."""
    max_tokens_limit: int | None = None
    """What the operator allows as max_tokens; None: whatever the context has room for."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Says where a client wants to go on."""

    token: bytes
    """Empty: the idempotency key says which request."""
    received_tokens: tuple[int, ...]
    """Per choice; a missing entry counts as 0."""


@dataclass(frozen=True, slots=True)
class CheckedStream:
    """Is a streamed generation whose fields are well formed."""

    generate: CheckedRequest
    flush_interval_s: float | None
    """None leaves it to the router."""
    resume: ResumePoint | None


@dataclass(frozen=True, slots=True)
class CheckedCount:
    """Is a token count whose fields are well formed."""

    model: str
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """Names a request to cancel; exactly one field is not empty."""

    request_id: str = ""
    idempotency_key: str = ""
