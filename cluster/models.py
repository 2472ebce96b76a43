"""Plain values that routers, replicas and engines exchange: no I/O, no protobuf, no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models import Capabilities, FinishReason, SamplingParams


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
