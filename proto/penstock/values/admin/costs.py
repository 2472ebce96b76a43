"""Costs of pools: what the replicas' accelerators did."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from penstock.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Accelerator time of one kind."""

    gpu_seconds: float
    cost: float
    """Price in the operator's currency."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.GpuTime) -> GpuTime:
        return cls(wire.gpu_seconds, wire.cost)


@dataclass(frozen=True, slots=True)
class CostLine:
    """What the accelerators of a pool did in one hour. The kinds add up to `total`."""

    hour: datetime.datetime
    """Begin of the hour in UTC."""
    pool: str
    total: GpuTime
    """Time of the replicas' processes."""
    requests: GpuTime
    """Time of requests, as receipts have it."""
    starting: GpuTime
    """Time before replicas took work."""
    idle: GpuTime
    """Time without an engine step."""
    draining: GpuTime
    """Time without an engine step of replicas that take no new work any more."""
    lost: GpuTime
    """Time of attempts whose end no router took, and of dead replicas until their lease ended."""
    running: GpuTime
    """Time of attempts that had not ended, less that of the hours before."""
    standby: GpuTime
    """Time without an engine step of replicas that stand by, and of their wake-up."""
    charged: float
    """Charges to tenants, by the pool's price table."""

    @property
    def parts(self) -> tuple[GpuTime, ...]:
        """Kinds that add up to `total`."""
        return (self.requests, self.running, self.idle, self.standby, self.starting, self.draining, self.lost)

    @property
    def difference(self) -> float:
        """Part of the total that the kinds do not explain; 0.01 is 1 %."""
        return difference_of(sum(part.gpu_seconds for part in self.parts), self.total.gpu_seconds)

    @classmethod
    def from_proto(cls, wire: admin_pb2.CostLine) -> CostLine:
        return cls(
            hour=datetime.datetime.fromisoformat(wire.hour.replace("Z", "+00:00")),
            pool=wire.pool,
            total=GpuTime.from_proto(wire.total),
            requests=GpuTime.from_proto(wire.requests),
            starting=GpuTime.from_proto(wire.starting),
            idle=GpuTime.from_proto(wire.idle),
            draining=GpuTime.from_proto(wire.draining),
            lost=GpuTime.from_proto(wire.lost),
            running=GpuTime.from_proto(wire.running),
            standby=GpuTime.from_proto(wire.standby),
            charged=wire.charged,
        )


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs by hour and pool."""

    lines: tuple[CostLine, ...]

    @classmethod
    def from_proto(cls, wire: admin_pb2.GetCostsResponse) -> CostReport:
        return cls(tuple(map(CostLine.from_proto, wire.lines)))


def difference_of(found: float, total: float) -> float:
    """Return the part of a total that is not found; 0 without a total."""
    return (found - total) / total if total else 0.0
