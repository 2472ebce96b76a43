"""Plain values of the API, shared by clients, routers and replicas: no I/O, no protobuf."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class RequestClass(enum.IntEnum):
    """Urgency of a request; smaller is more urgent. The numbers are stored in Redis."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class FinishReason(enum.StrEnum):
    """Reason why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    TOOL_CALLS = "tool_calls"


class ReplicaState(enum.StrEnum):
    """State of a replica, as the replica reports it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STANDBY = "standby"
    """Loaded, and without work: it takes some again within seconds when the autoscaler wakes it."""


class DrainReason(enum.StrEnum):
    """Reason why a replica finishes its work and takes no more."""

    STOPPED = "stopped"
    """Its host stops it: fewer replicas are wanted, an update replaces it, or the cluster stops."""
    ENGINE_LOST = "engine_lost"
    """Its engine is dead; the host replaces the replica."""
    SUPERSEDED = "superseded"
    """A newer Ray cluster has taken over, as an upgrade on Kubernetes makes one; this one will be deleted."""


class ConstraintKind(enum.StrEnum):
    """Way to constrain output."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class TaggedSchema:
    """Beginning and end of a part of the output, and the JSON Schema of what is between them, as text."""

    begin: str
    schema: str
    end: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """Free text with parts that follow a schema."""

    structures: tuple[TaggedSchema, ...]
    triggers: tuple[str, ...]
    """Texts after which the output must go on as one of the structures that begin with it."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Constraint of output to a language. CHOICE has `choices`, STRUCTURAL_TAG has `tag`, the others have `text`."""

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
    tag: StructuralTag | None = None
    best_effort: bool = False
    """Whether keywords of JSON Schemas that the engine's compiler can't enforce are left out, and named."""


@dataclass(frozen=True, slots=True)
class Unenforced:
    """Keyword of a JSON Schema that was asked for at best effort, and that the output need not follow."""

    place: str
    """JSON pointer to the keyword in the schema; of a structural tag, with the structure before it."""
    keyword: str
    reason: str
    """What the compiler says of it, and what is enforced in its place, if anything."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of how the tokens of one choice are drawn. Ranges are in types.proto; the router checks them."""

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
    """Number of alternatives per position; None asks for no log probabilities at all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    structured: StructuredOutput | None = None
    prompt_logprobs: int | None = None
    """Number of alternatives per prompt token; None asks for no log probabilities of the prompt."""

    @property
    def small(self) -> bool:
        """Whether the fields that can make parameters large are unset. Only small parameters are cached."""
        return not self.logit_bias and self.structured is None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with the natural logarithm of its probability."""

    token_id: int
    logprob: float
    token_bytes: bytes = b""
    """Text of the token in UTF-8, which may be a part of a character. Empty where it is not known."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token of one position of an output or a prompt, and the most likely tokens there, most likely first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
    rank: int = 0
    """Rank of the chosen token among all tokens, from 1; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of a pool's engines; validation refuses requests that ask for others."""

    logprobs: bool = True
    max_logprobs: int = 20
    structured_output: bool = True
    min_p: bool = True
    logit_bias: bool = True
    penalties: bool = True
    seed: bool = True
    tools: bool = False
    reasoning: bool = False
    prompt_logprobs: bool = False
    max_images: int = 0
    """Most images of a conversation."""


NOTHING_GENERATED = Capabilities(
    logprobs=False,
    max_logprobs=0,
    structured_output=False,
    min_p=False,
    logit_bias=False,
    penalties=False,
    seed=False,
)
"""Features of engines that generate nothing."""


class ModelTask(enum.StrEnum):
    """What a model makes of its input."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"


@dataclass(frozen=True, slots=True)
class PoolingFeatures:
    """Features of a model that embeds or classifies."""

    size: int = 0
    """Number of dimensions of a vector, or number of classes; 0 for a model that generates."""
    shorter_vectors: bool = False
    """Whether vectors with fewer dimensions can be asked for."""
    dimensions: tuple[int, ...] = ()
    """Numbers of dimensions that can be asked for; empty for any number up to `size`."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty where the model does not name them."""


NOT_POOLING = PoolingFeatures()


class ToolMode(enum.StrEnum):
    """How much a model is free to call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Choice of the tools in a prompt."""

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] = ()
    """Names of the tools that may be called; empty for all."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Function that a model may call. Its caller runs it."""

    name: str
    description: str = ""
    parameters: str = ""
    """JSON Schema of the arguments as text; empty where none are described."""
    strict: bool = False
    """Whether the engine follows the schema to the letter."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by a model."""

    id: str
    name: str
    arguments: str
    """Text of a JSON object. A model's own text may be invalid or cut."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """New output of a tool call. `id` and `name` are set in its first delta only."""

    index: int
    """Number of the call in its choice, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class OutputParsing:
    """Instructions for parsing output into text, reasoning and tool calls."""

    tools: tuple[Tool, ...] = ()
    """Tools that may be called."""
    mode: ToolMode = ToolMode.AUTO
    single_call: bool = False
    """Whether only the first call counts."""
    without_reasoning: bool = False
    """Whether the reasoning is left out of the output."""
    template_kwargs: str = ""
    """Variables that the chat template had, as the text of a JSON object; empty for none."""


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """What one delta adds to the parsed output."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field: its path in the request, and a sentence with the limit and the value."""

    field: str
    description: str
