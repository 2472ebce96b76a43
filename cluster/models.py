"""Plain values that routers, replicas and engines exchange: no I/O, no protobuf, no vLLM."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.models import (
    NOT_POOLING,
    Capabilities,
    FinishReason,
    ModelTask,
    OutputParsing,
    PoolingFeatures,
    SamplingParams,
    StructuredOutput,
    Unenforced,
)


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """State that a choice needs, beside its prompt, to continue after `prior_token_ids`."""

    prior_token_ids: tuple[int, ...]
    prior_text_length: int
    """Number of characters of text that the client already has."""
    model_digest: str
    prior_text: str = ""
    """That text. Engines do not need it; a router that attaches later does."""
    prior_deltas: tuple[tuple[int, int], ...] = ()
    """Tokens and characters of each delta that the client got; empty where they are not known."""
    adapter_files: str = ""
    """Files of the adapter that made the tokens, by their name in engines; empty where there are none, or not known."""


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """Inputs whose vectors are asked for. An engine gets one at a time, an attempt has a group of them."""

    task: ModelTask
    lengths: tuple[int, ...]
    """Number of tokens of each input. The prompt has them one after another."""
    dimensions: int | None = None
    """Number of dimensions of each vector; None for all."""
    activation: bool | None = None
    """Whether vectors have length 1, or classes get probabilities; None leaves it to the model's files."""
    second_at: tuple[int, ...] = ()
    """Position of the second text of each pair, in the input's tokens; empty where the inputs are no pairs."""


NOTHING_TO_SAMPLE = SamplingParams(max_tokens=0)
"""Sampling parameters of work without output tokens."""


@dataclass(frozen=True, slots=True)
class PromptImage:
    """Image in a prompt."""

    data: bytes = field(repr=False)
    """Content of the image file."""
    offset: int
    """Position of its first token in the prompt."""
    length: int
    """Number of its tokens."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """One sequence for an engine. With `pooling` a vector is asked for, and nothing is generated."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    lora_adapter: str = ""
    cache_salt: str = ""
    """Salt that isolates the prefix cache between tenants; empty shares the cache."""
    resume: ResumeRecord | None = None
    parsing: OutputParsing | None = None
    """How the output is parsed; None for output that is only text."""
    pooling: PoolingSpec | None = None
    trace_parent: str = ""
    """Header `traceparent` of the attempt's span; empty without traces."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt, in its order."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of a prompt, one row per token. The first token has none, and no row.

    They are columns, because a prompt may have a hundred thousand tokens.
    """

    width: int
    """Tokens of a row: the prompt's own token, then the most likely ones in order."""
    token_ids: array[int]
    """Unsigned integers: the rows one after another."""
    logprobs: array[float]
    """Natural logarithms of single precision, like `token_ids`. They are not below -9999."""
    ranks: array[int]
    """Unsigned integers: for each row the rank of the prompt's own token among all tokens, from 1."""

    @property
    def rows(self) -> int:
        """Number of tokens with a log probability."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """End of a sequence inside an engine, and what it used. Times are seconds."""

    reason: FinishReason
    stop_match: str = ""
    """Stop string, or stop token id in decimal, that ended the sequence."""
    output_tokens: int = 0
    cached_tokens: int = 0
    engine_wait_s: float = 0.0
    """Time from arrival at the engine to its first step."""
    prefill_s: float = 0.0
    """Time from arrival at the engine to the first token; includes engine_wait_s. 0 when no token came."""
    decode_s: float = 0.0
    """Time from the first to the last token."""
    gpu_seconds: float = 0.0
    """Share of the accelerators: each step's duration over the sequences in it, times the tensor parallel size."""
    error: str = ""
    invalid_request: bool = False
    engine_died: bool = False
    """Whether the whole engine failed, and not this sequence alone."""
    reasoning_tokens: int = 0
    """Number of output tokens that are reasoning, those before a resume included."""
    vectors: tuple[bytes, ...] = ()
    """Vector of each input of a `PoolingSpec`: float32 numbers, the lowest byte first."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Bounds of what a replica may hold at once. The replica publishes and enforces them; the queue honours them."""

    sequences: int
    """Live batch limit, in sequences."""
    kv_tokens: int
    """KV cache capacity, in tokens."""
    prefill_tokens: int
    """Most prompt tokens of sequences whose first output token is still to come."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Everything that a router must know of a model to admit requests for it."""

    digest: str
    """SHA-256 over the weights' identity, configuration, tokenizer and chat template, in hex."""
    tokenizer_digest: str
    """SHA-256 over the tokenizer and chat template files, in hex; the key in GetTokenizer and in routers' caches."""
    max_context_tokens: int
    vocabulary_size: int
    capabilities: Capabilities
    lora_adapters: tuple[str, ...] = ()
    task: ModelTask = ModelTask.GENERATE
    pooling: PoolingFeatures = NOT_POOLING
    image_text: str = ""
    """Text that stands for an image in a prompt; empty where the model takes none."""
    image_ids: tuple[int, ...] = ()
    """Token ids in that text that the engine replaces by those of the image."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Current state of an engine. Counters count since start; all are zero when it never stepped."""

    running: int = 0
    """Number of sequences in the batch."""
    waiting: int = 0
    """Number of sequences inside the engine that have no place in the batch yet."""
    kv_usage: float = 0.0
    """Used part of the KV cache, 0 to 1."""
    prefill_tokens: int = 0
    """Number of prompt tokens of sequences whose first token is still to come."""
    batch_limit: int = 0
    token_budget: int = 0
    """Most tokens that one step may process."""
    steps: int = 0
    busy_s: float = 0.0
    """Time in seconds of steps with sequences. The sequences' shares of the engine add up to it."""
    open_s: float = 0.0
    """Time in seconds since the last step ended, while there is work: the step that runs now. Not in `busy_s` yet."""
    ended_gpu_s: float = 0.0
    """GPU-seconds of all sequences that left the engine, for any reason."""
    live_gpu_s: float = 0.0
    """GPU-seconds so far of the sequences inside the engine."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """Word of an engine's compiler on a constraint."""

    problem: str = ""
    """Reason why the compiler refuses the constraint, in its own words; empty where it follows it, or `relaxed`."""
    relaxed: StructuredOutput | None = None
    """What is left of a constraint at best effort; None where nothing has to be left out."""
    unenforced: tuple[Unenforced, ...] = ()
    """Keywords that were left out."""
    field: str = ""
    """Field inside the constraint that has the problem, such as structures[1].json_schema; empty for all of it."""
