"""Plain values of the API, shared by clients, routers and replicas: no I/O, no protobuf."""

from __future__ import annotations

import enum
from collections.abc import Mapping
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
class FieldViolation:
    """Is one wrong field: its path in the request, and a sentence with the limit and the value."""

    field: str
    description: str
