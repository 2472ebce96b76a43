"""Widely used autoscaling rules, to compare with."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.simulate.autoscalers.contract import PoolSnapshot, ReplicaSnapshot
from penstock.models import ReplicaState


class HpaMetric(StrEnum):
    """Metric that an HPA holds at its target."""

    QUEUE = "queue"
    """Waiting requests per replica."""
    SLOTS = "slots"
    """Used part of the batch limit."""
    KV = "kv"
    """Used part of the KV cache."""


@dataclass(slots=True)
class Hpa:
    """Scaling like Kubernetes' HorizontalPodAutoscaler with its default behavior.

    The count is in proportion to metric over target, with a tolerance of 10 %. It goes up at once by at most 4 or
    100 % per 15 s, and down to the highest wish of five minutes. A replica that starts counts as idle when scaling up.
    """

    metric: HpaMetric = HpaMetric.SLOTS
    target: float = 0.7
    tolerance: float = 0.1
    down_window_s: float = 300.0
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, snapshot: PoolSnapshot) -> int:
        now = snapshot.now_s
        # As in Kubernetes, so that a new autoscaler that has not seen any load yet removes nothing.
        if not self._wishes:
            self._wishes.append((now, snapshot.desired))
        self._wishes.append((now, self._wish(snapshot)))
        while self._wishes[0][0] < now - self.down_window_s:
            self._wishes.popleft()
        current, wish = snapshot.desired, self._wishes[-1][1]
        if wish > current:
            return min(wish, max(current + 4, 2 * current))
        return min(current, max(each for _, each in self._wishes))

    def _wish(self, snapshot: PoolSnapshot) -> int:
        ready = [each for each in snapshot.replicas if each.state is ReplicaState.READY]
        starting = snapshot.count(ReplicaState.STARTING)
        total = self._total(snapshot, ready)
        if not ready:
            return snapshot.desired
        ratio = total / (len(ready) * self.target)
        if ratio > 1 and starting:
            ratio = max(1.0, total / ((len(ready) + starting) * self.target))
        elif ratio < 1 and starting:
            return snapshot.desired
        if abs(ratio - 1) <= self.tolerance:
            return snapshot.desired
        return math.ceil(ratio * (len(ready) + (starting if ratio > 1 else 0)))

    def _total(self, snapshot: PoolSnapshot, ready: list[ReplicaSnapshot]) -> float:
        if self.metric is HpaMetric.QUEUE:
            return sum(snapshot.waiting.values())
        if self.metric is HpaMetric.KV:
            return sum(each.kv_usage for each in ready)
        return sum((each.running + each.waiting) / max(1, each.limit) for each in ready)


@dataclass(slots=True)
class RayServe:
    """Scaling like Ray Serve's default policy.

    It holds the ongoing requests per replica at a target, with waiting ones, averaged over a look-back. It acts after
    the wish has gone in one direction for a delay.
    """

    target: float = 2.0
    look_back_s: float = 30.0
    up_delay_s: float = 30.0
    down_delay_s: float = 600.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)
    _direction: int = 0
    _since: float = 0.0

    def decide(self, snapshot: PoolSnapshot) -> int:
        now = snapshot.now_s
        ongoing = sum(each.running + each.waiting for each in snapshot.replicas) + sum(snapshot.waiting.values())
        self._seen.append((now, float(ongoing)))
        while self._seen[0][0] < now - self.look_back_s:
            self._seen.popleft()
        average = sum(each for _, each in self._seen) / len(self._seen)
        wish = math.ceil(average / self.target)
        direction = (wish > snapshot.desired) - (wish < snapshot.desired)
        if direction != self._direction:
            self._direction, self._since = direction, now
        delay = self.up_delay_s if direction > 0 else self.down_delay_s
        if not direction or now - self._since < delay:
            return snapshot.desired
        self._direction = 0
        return wish
