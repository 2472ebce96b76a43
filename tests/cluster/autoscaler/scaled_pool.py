"""A pool on a clock that is moved by hand: its router, its replicas and its platform, for autoscalers to look after."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.announced.arrivals import TenantCounts
from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.cell_standbys import CellStandbys
from cluster.autoscaler.decision_record import DecisionRecord
from cluster.autoscaler.router_report import ClassCounts, empty_counts, pack_report
from cluster.autoscaler.scaler import PoolScaler
from cluster.errors import ActuatorError
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.rollout.book import RolloutBook
from cluster.settings import AutoscalerSettings, PoolSettings
from cluster.trust.secret import ClusterSecret
from penstock.models import ReplicaState, RequestClass
from tests.cluster.autoscaler.conftest import Backend

SECRET = ClusterSecret(b"0" * 32)
MODEL = {"step_a": 0.01, "step_b": 20e-6, "step_g": 0.02e-6, "step_error": 0.02}
PROMPT, OUTPUT = 500, 200
TICK_S = 15.0
BEAT_S = 1.5

both = pytest.mark.parametrize("backend", ["in-process", "redis-7.0"], indirect=True)
"""The store's own suite goes through all kinds."""


class FakePlatform:
    """Starts a replica `cold_s` after it was asked for, and removes one at once."""

    def __init__(self, replicas: int = 1) -> None:
        self.target = replicas
        self.told: list[int] = []
        self.down = False
        self.refuses = False
        """It says how things are, and takes nothing."""
        self.names: list[str] | None = None
        """What it says of its replicas."""
        self.trouble = ""

    async def look(self, pool: str) -> Actual:
        if self.down:
            raise ActuatorError(pool, "does not answer")
        return Actual(self.target, self.target, self.trouble, None if self.names is None else frozenset(self.names))

    async def scale(self, pool: str, replicas: int) -> None:
        if self.down or self.refuses:
            raise ActuatorError(pool, "does not answer")
        self.told.append(replicas)
        self.target = replicas


class Site:
    """Acts a pool's router and replicas, and runs autoscalers on it."""

    def __init__(self, backend: Backend, replicas: int = 1, **autoscale: Any) -> None:
        self.backend = backend
        self.platform = FakePlatform(replicas)
        self.settings = PoolSettings.model_validate(
            {
                "engine": "sim",
                "slo": {"interactive": {"ttft_p99_s": 2.0, "itl_p95_s": 0.03}},
                "price_per_gpu_hour": 1.0,
                "autoscale": {"mode": "active", "max_replicas": 20, **autoscale},
            }
        )
        self.queue = backend.queue()
        self.ready = [f"r{n}" for n in range(replicas)]
        self.counts = empty_counts()
        self.tenants: dict[str, TenantCounts] = {}
        """Counters of tenants who announced load; those of the whole pool do not follow from them."""
        self.born = dict.fromkeys(self.ready, -1000.0)
        self.stats: dict[str, float] = dict(MODEL)
        self.record = b""
        """What replicas announce."""
        self.cold_s = 20.0
        self.coming: list[float] = []
        self.broken = False
        """Nothing that starts ever comes up."""
        self.dead: set[str] = set()
        self.standing: set[str] = set()
        """Replicas that were told to stand by."""
        self.point: bytes | None = None
        self.relief = ""

    def scaler(self, name: str = "a", cells: CellStandbys | None = None) -> PoolScaler:
        host = AutoscalerSettings(tick_s=TICK_S, lease_s=40.0, decisions_kept=50)
        return PoolScaler(
            "demo",
            name,
            self.settings,
            host,
            queue=self.queue,
            store=self.backend.store(),
            actuator=self.platform,
            secret=SECRET,
            rollouts=RolloutBook("demo", self.backend.rollout()),
            cells=cells,
            announced=self.backend.announced(),
        )

    async def live(self, seconds: float, rate: float = 0.0) -> None:
        """Let time pass: requests come, replicas start and stop, everybody sends heartbeats."""
        for _ in range(round(seconds / BEAT_S)):
            self.backend.clock.advance(BEAT_S)
            now = self.backend.clock.monotonic()
            mine, came = self.counts[RequestClass.INTERACTIVE], rate * BEAT_S
            self.counts[RequestClass.INTERACTIVE] = ClassCounts(
                mine.requests + came, mine.prompt_tokens + came * PROMPT, 0.0, mine.output_tokens + came * OUTPUT
            )
            self._carry_out(now)
            for name in self.ready:
                if name in self.dead:
                    continue
                stats = {**self.stats, "up_s": now - self.born[name], "kv_usage": 0.3, "largest_batch": 64.0}
                state = ReplicaState.STANDBY if name in self.standing else ReplicaState.READY
                beat = ReplicaBeat(name, self.record, state, Windows(64, 10**6, 10**6), (), stats=stats)
                reply = await self.queue.heartbeat_replica(beat)
                (self.standing.add if reply.standby else self.standing.discard)(name)
                self.point, self.relief = reply.point, reply.relief
            await self.queue.heartbeat_router(
                RouterBeat("A", tuple(self.ready), report=pack_report(self.counts, (), self.tenants))
            )

    def _carry_out(self, now: float) -> None:
        wanted = self.platform.target
        while len(self.ready) > wanted:
            self.ready.pop()
        missing = wanted - len(self.ready)
        self.coming = [*self.coming[:missing], *(now + self.cold_s for _ in range(missing - len(self.coming)))]
        while self.coming and self.coming[0] <= now and not self.broken:
            self.coming.pop(0)
            name = f"r{now:.0f}-{len(self.coming)}"
            self.born[name] = now
            self.ready.append(name)

    async def run(self, scaler: PoolScaler, ticks: int, rate: float = 0.0) -> list[DecisionRecord]:
        made = []
        for _ in range(ticks):
            await self.live(TICK_S, rate)
            assert await scaler.lead()
            record = await scaler.tick()
            assert record is not None
            made.append(record)
        return made


def names(record: DecisionRecord) -> list[str]:
    return [step.name for step in record.steps]
