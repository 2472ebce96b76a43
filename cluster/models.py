"""Plain values that travel between the parts: no I/O, no protobuf, no vLLM."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class RequestClass(enum.IntEnum):
    """Is a request's urgency; smaller is more urgent. The numbers are stored in Redis."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class FinishReason(enum.StrEnum):
    """Says why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class ReplicaState(enum.StrEnum):
    """Is the life of a replica as it reports it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class ConstraintKind(enum.StrEnum):
    """Names a way to constrain output."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Constrains output to a language. `text` is empty for CHOICE, `choices` is empty otherwise."""

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Says how the tokens of one choice are drawn. Ranges are in types.proto; the router checks them."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives per position; None asks for no log probabilities at all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    structured: StructuredOutput | None = None

    @property
    def small(self) -> bool:
        """Whether it may be remembered: what makes parameters large is left out."""
        return not self.logit_bias and self.structured is None


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """Is what a choice needs beside its prompt to go on after `prior_token_ids`."""

    prior_token_ids: tuple[int, ...]
    prior_text_length: int
    """Characters of text that the client already has."""
    model_digest: str
    prior_text: str = ""
    """That text; engines do not need it, who attaches later does."""
    prior_deltas: tuple[tuple[int, int], ...] = ()
    """Tokens and characters of each delta that the client got; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Is one sequence for an engine."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    lora_adapter: str = ""
    cache_salt: str = ""
    """Isolates the prefix cache between tenants; empty shares it."""
    resume: ResumeRecord | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Is one token with the natural logarithm of its probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Is the drawn token of one position, and the most likely ones there, most likely first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """Says how a sequence ended inside an engine and what it used. Times are seconds."""

    reason: FinishReason
    stop_match: str = ""
    """The stop string, or the stop token's id in decimal, that ended it."""
    output_tokens: int = 0
    cached_tokens: int = 0
    engine_wait_s: float = 0.0
    """From arrival at the engine to its first step."""
    prefill_s: float = 0.0
    """From arrival at the engine to the first token; includes engine_wait_s. 0 when no token came."""
    decode_s: float = 0.0
    """From the first to the last token."""
    gpu_seconds: float = 0.0
    """Share of the accelerators: each step's duration over the sequences in it, times the tensor parallel size."""
    error: str = ""
    invalid_request: bool = False
    engine_died: bool = False
    """Whether the whole engine failed under it."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Bounds what a replica may hold at once. The replica publishes and enforces them; the queue honours them."""

    sequences: int
    """The live batch limit."""
    kv_tokens: int
    """KV cache capacity in tokens."""
    prefill_tokens: int
    """Prompt tokens whose first output token is still to come."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Says what the engines of a pool can do; validation refuses the rest."""

    logprobs: bool = True
    max_logprobs: int = 20
    structured_output: bool = True
    min_p: bool = True
    logit_bias: bool = True
    penalties: bool = True
    seed: bool = True


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Is what a router must know of a model to admit requests for it."""

    digest: str
    """SHA-256 over weights' identity, configuration, tokenizer and chat template, hex."""
    tokenizer_digest: str
    """SHA-256 over the tokenizer and chat template files, hex; names them in GetTokenizer and in the routers' cache."""
    max_context_tokens: int
    vocabulary_size: int
    capabilities: Capabilities
    lora_adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Is an engine's state now. Counters count since start; all zero when it never stepped."""

    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences inside the engine that have no place in the batch yet."""
    kv_usage: float = 0.0
    """Used part of the KV cache, 0 to 1."""
    prefill_tokens: int = 0
    """Prompt tokens of sequences whose first token is still to come."""
    batch_limit: int = 0
    token_budget: int = 0
    """Tokens one step may process."""
    steps: int = 0
    busy_s: float = 0.0
    """Time in steps that held sequences. What sequences used of the engine adds up to it."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
