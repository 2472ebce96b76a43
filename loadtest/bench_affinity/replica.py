"""A simulated replica on a virtual clock: the simulated engine's own scheduler and KV cache, without text."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.models import ReplicaState, Windows
from cluster.queue.base import ReplicaBeat
from cluster.settings import SimSettings
from deployments.engines.sim import BatchCore, CoreLimits
from deployments.engines.sim.engine import sim_windows, step_seconds
from deployments.replica.attempts import REPORT_PREFILLED
from loadtest.bench_affinity.trace import BLOCK_TOKENS, TraceRequest


@dataclass(slots=True)
class Running:
    """Is a request on its replica."""

    request: TraceRequest
    attempt: str
    router: str
    arrived_at: float
    """When the client sent it."""
    started_at: float
    produced: int = 0
    cached_tokens: int = 0
    scheduled_at: float | None = None
    first_token_at: float = 0.0


@dataclass(slots=True)
class StepEnd:
    """Is what a step brought."""

    finished: list[Running] = field(default_factory=list)
    report: bool = False
    """Whether the replica tells the queue at once what left its prefill window."""


class SimReplica:
    """Holds one engine's batch."""

    def __init__(self, name: str, settings: SimSettings) -> None:
        self.name = name
        self._settings = settings
        self._core = BatchCore(
            CoreLimits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_tokens, BLOCK_TOKENS)
        )
        self.windows: Windows = sim_windows(settings)
        self.running: dict[str, Running] = {}
        self._prefilled: list[str] = []
        self._unreported = 0
        self._produced: tuple[str, ...] = ()
        self.stepping = False

    def start(self, request_id: str, item: Running) -> None:
        """Take a granted request."""
        self.running[request_id] = item
        full = item.request.block_ids[: item.request.prompt_tokens // BLOCK_TOKENS]
        self._core.add(request_id, item.request.prompt_tokens, full)

    def begin_step(self, now: float) -> float | None:
        """Begin a step; returns when it ends, None when there is nothing to do."""
        if self.stepping or not (self._core.running or self._core.waiting):
            return None
        result = self._core.step()
        for request_id in result.admitted:
            item = self.running[request_id]
            if item.scheduled_at is None:
                item.scheduled_at = now
                item.cached_tokens = self._core.cached_tokens(request_id)
        self._produced = result.produced
        self.stepping = True
        return now + step_seconds(self._settings, result.tokens, result.kv_tokens)

    def end_step(self, now: float) -> StepEnd:
        """Finish the step."""
        self.stepping = False
        end = StepEnd()
        for request_id in self._produced:
            item = self.running[request_id]
            if not item.produced:
                item.first_token_at = now
                self._prefilled.append(request_id)
                self._unreported += item.request.prompt_tokens
            item.produced += 1
            if item.produced >= item.request.output_tokens:
                self._core.remove(request_id)
                del self.running[request_id]
                end.finished.append(item)
        end.report = self._unreported >= REPORT_PREFILLED * self.windows.prefill_tokens
        return end

    def beat(self) -> ReplicaBeat:
        """Report as a replica does."""
        prefilled, self._prefilled, self._unreported = tuple(self._prefilled), [], 0
        return ReplicaBeat(
            self.name,
            b"",
            ReplicaState.READY,
            self.windows,
            tuple((request_id, item.attempt) for request_id, item in self.running.items()),
            prefilled,
            int(self._core.kv_usage * self.windows.kv_tokens),
        )
