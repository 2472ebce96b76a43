"""A request that has passed its checks, with what its model and its tenant add to it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import NoReplicaError, NotInTimeError
from cluster.models import ModelInfo, PoolingSpec, PromptImage
from cluster.trust.announcement import Announcement
from penstock.models import OutputParsing, SamplingParams, Unenforced
from router.affinity import Trail
from router.dispatch.pool import Pool
from router.identity import Caller
from router.routing import DIRECT, Way
from router.validation import CheckedRequest


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Inputs that a model embeds or classifies in one attempt: a choice of their request."""

    ids: Sequence[int]
    """Token ids of all inputs, one after another."""
    pooling: PoolingSpec


ReadAnew = Callable[[Announcement], Awaitable[tuple[ModelInfo, tuple[InputGroup, ...]]]]
"""Function that reads the inputs of a request anew for a replica with another tokenizer, in as many groups."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that its model can serve."""

    checked: CheckedRequest
    caller: Caller
    pool: Pool
    info: ModelInfo
    ids: Sequence[int]
    params: SamplingParams
    n: int
    salt: str
    """The tenant's cache salt."""
    trail: Trail
    preferred: tuple[str, ...]
    deadline: float | None
    """Moment at which the call must have ended. Monotonic seconds, as `arrived_at`."""
    arrived_at: float
    counted: bool
    """Whether it counts as demand."""
    groups: tuple[InputGroup, ...] = ()
    """Groups of inputs, one for each choice; empty for a generation, where all choices have the same prompt."""
    read_anew: ReadAnew | None = None
    """None for a generation, and for inputs that nobody can read anew, because they name token ids."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt."""
    token_bytes: Mapping[int, bytes] | None = None
    """Texts of the model's tokens, by id, for log probabilities; None without these, and where they are not known."""
    unenforced: tuple[Unenforced, ...] = ()
    """Keywords of the client's schema that the engines can't enforce, and that it asked for at best effort."""
    parsing: OutputParsing | None = None
    """How its output is parsed; None for output that is only text."""
    way: Way = DIRECT
    """How it has come to its pool."""

    @property
    def choice_tokens(self) -> int:
        """Number of prompt tokens of a choice. Groups have nearly as many each, and count as if they had as many."""
        return -(-self.prompt_tokens // self.n) if self.groups else self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens of the request."""
        return sum(len(group.ids) for group in self.groups) if self.groups else len(self.ids)

    def run_s(self) -> float | None:
        """Return an estimate of its running time in seconds; None while there is none."""
        return self.pool.admission.estimate.run_s(self.choice_tokens, self.params.max_tokens)

    def start_within(self) -> tuple[int, float | None]:
        """Return its longest wait in milliseconds: until its queue timeout, or until it could not end in time; 0 is no
        bound. And in the second case its estimated running time in seconds.
        """
        timeout_s = self.checked.queue_timeout_s
        run_s = self.run_s() or 0.0
        in_time_s = None if self.deadline is None else self.deadline - time.monotonic() - run_s
        if in_time_s is not None and (timeout_s is None or in_time_s < timeout_s):
            return max(1, int(in_time_s * 1000)), run_s
        return 0 if timeout_s is None else max(1, int(timeout_s * 1000)), None

    def too_late(self) -> NotInTimeError | None:
        """Return the error of a request that could not end in time if it started now; None if it could.

        A request that has begun earlier may still end in time.
        """
        if self.deadline is None:
            return None
        left_s, run_s = self.deadline - time.monotonic(), self.run_s() or 0.0
        return NotInTimeError("deadline", run_s, left_s, None) if run_s > left_s else None


def prefer(
    pool: Pool, checked: CheckedRequest, info: ModelInfo, names: Sequence[int], salt: str
) -> tuple[Trail, tuple[str, ...]]:
    """Return the trail of a request, and the replicas that it prefers. `names` are those of the prompt's tokens."""
    scope = f"{checked.lora_adapter}\0{salt}".encode()
    # With fewer, each replica holds them all.
    crowded = 0 < pool.settings.vllm.adapter_slots < len(info.lora_adapters)
    adapter = checked.lora_adapter if crowded else ""
    return pool.affinity.look(names, scope, checked.session_id, pool.replicas.records, adapter)


def asks_logprobs(params: SamplingParams) -> bool:
    return params.logprobs is not None or params.prompt_logprobs is not None


def check_ready(pool: Pool, way: Way) -> None:
    """Check that a pool has a replica that takes work, for a request that another pool would serve at once.

    Raises:
        NoReplicaError: it has none.
    """
    if way.ready_only and not pool.replicas.ready():
        raise NoReplicaError(f"no replica of {pool.name!r} takes work", 2.0)
