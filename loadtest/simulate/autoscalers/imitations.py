"""Scaling rules of two LLM autoscalers, in the simplest form that has their signal, period and model.

They imitate rules, not products. Profiling, corrections, prefill pools and the like are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.control.step_model import Shape, StepModel
from loadtest.simulate.autoscalers.contract import PoolSnapshot
from penstock.models import ReplicaState


@dataclass(slots=True)
class Dynamo:
    """Sizing for the last interval's requests at the measured throughput of a replica, every 180 s. It is like the SLA
    planner of Dynamo with a constant forecast.
    """

    model: StepModel
    batch: float
    """Sequences of a replica at its profiled best."""
    target: float = 1.0
    """Part of a replica's throughput that is planned for."""
    step_tokens: int = 0
    """The most tokens that a step computes, which such a profile shows; 0 for no bound."""
    period_s: float = 180.0
    _since: float = 0.0
    _requests: int = 0
    _prompt_tokens: int = 0
    _output_tokens: float = 0.0
    _ended: int = 0

    def decide(self, snapshot: PoolSnapshot) -> int:
        self._requests += len(snapshot.arrived)
        self._prompt_tokens += sum(each.prompt_tokens for each in snapshot.arrived)
        self._output_tokens += sum(each.output_tokens for each in snapshot.ended)
        self._ended += len(snapshot.ended)
        passed = snapshot.now_s - self._since
        if passed < self.period_s - 1e-6:
            return snapshot.desired
        decided = snapshot.desired
        # For an interval without requests or ends the planner has no figures, and keeps the number.
        if self._requests and self._ended:
            shape = Shape(self._prompt_tokens / self._requests, self._output_tokens / self._ended)
            work = self._requests / passed * self.model.gpu_seconds(shape, self.batch, self.step_tokens)
            decided = max(1, math.ceil(work / self.target))
        self._since, self._requests, self._prompt_tokens = snapshot.now_s, 0, 0
        self._output_tokens, self._ended = 0.0, 0
        return decided


@dataclass(slots=True)
class Wva:
    """One replica more or less by spare KV cache and queue, every 60 s, and never while one starts. It is like the
    saturation rule of llm-d's Workload Variant Autoscaler, with its trial of a removal.
    """

    target: float = 0.8
    """KV usage from which a replica counts as saturated."""
    queue: float = 5.0
    """Waiting requests from which a replica counts as saturated."""
    spare_kv: float = 0.1
    spare_queue: float = 3.0
    period_s: float = 60.0
    down_window_s: float = 240.0
    _at: float = -math.inf
    _low_since: float | None = None

    def decide(self, snapshot: PoolSnapshot) -> int:
        now, have = snapshot.now_s, snapshot.desired
        if now - self._at < self.period_s - 1e-6:
            return have
        self._at = now
        ready = [each for each in snapshot.replicas if each.state is ReplicaState.READY]
        if not ready or snapshot.count(ReplicaState.STARTING):
            return have
        waiting = (sum(snapshot.waiting.values()) + sum(each.waiting for each in ready)) / len(ready)
        usage = sum(each.kv_usage for each in ready) / len(ready)
        if self.target - usage < self.spare_kv * self.target or self.queue - waiting < self.spare_queue:
            self._low_since = None
            return have + 1
        fewer = len(ready) - 1
        safe = fewer >= 1 and self.target - usage * len(ready) / fewer >= self.spare_kv * self.target and not waiting
        if not safe:
            self._low_since = None
            return have
        if self._low_since is None:
            self._low_since = now
        return have - 1 if now - self._low_since >= self.down_window_s else have
