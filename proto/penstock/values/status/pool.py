"""State of pools, and of the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from penstock.values.decisions import Decision, control_mode_from_wire, point_from_proto, relief_from_wire
from penstock.values.results import Budget
from penstock.values.slo import OperatingPoint
from penstock.values.status.line import LineEntry, TenantQuota
from penstock.values.status.replica import ReplicaStatus
from penstock.values.steps import Relief
from penstock.wire import request_class_from_wire


@dataclass(frozen=True, slots=True)
class ClassCounters:
    """Counters of the requests of one class, of all routers. They fall when a router leaves."""

    request_class: RequestClass
    requests: int
    """Requests that arrived, each choice counted."""
    judged: int
    """Requests with an SLO that ended, or were refused for lack of room."""
    met: int
    """Judged requests that were served within their SLO."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.ClassCounters) -> ClassCounters:
        return cls(request_class_from_wire(wire.request_class), wire.requests, wire.judged, wire.met)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """State of one model's queue and replicas."""

    name: str
    waiting: int
    running: int
    replicas: tuple[ReplicaStatus, ...]
    router_ids: tuple[str, ...]
    reachable: bool
    """Whether the state could be read; false while Redis does not answer, and the numbers then mean nothing."""
    operating_point: OperatingPoint = field(default_factory=OperatingPoint)
    """SLO of each class, price and budget in force. Empty from an older router, as are the next ones."""
    classes: tuple[ClassCounters, ...] = ()
    """Counters of each class's requests; empty while Redis does not answer."""
    autoscaling: str = "unknown"
    """"active" decisions are carried out, "advisory" ones are not, and "off" makes none."""
    wanted_replicas: int = 0
    """Number of replicas that the platform was last told to have."""
    starting: int = 0
    """Number of replicas that are wanted and take no work yet. They are not in `replicas`."""
    last_decision: Decision | None = None
    """Newest decision of the autoscaler; None where there is none."""
    relief: Relief = Relief.NONE
    """Measure in force because the pool lacks replicas."""
    cost_per_hour: float = 0.0
    """Price per hour of all `replicas`, in the operator's currency; 0 without a price."""
    start_failure: str = ""
    """Reason of the last replica that did not come up; empty where all starts of late succeeded."""
    line: tuple[LineEntry, ...] = ()
    """Requests that wait or hold a slot, by class and tenant: those that wait first, by whose turn it is."""
    quotas: tuple[TenantQuota, ...] = ()
    """Quotas of the tenants in line, and of those that used theirs last."""
    budgets: tuple[Budget, ...] = ()
    """Budgets of tenants, ordered by tenant; of 64 tenants at most, those that are warned first."""
    unreachable_reason: str = ""
    """Reason why the state could not be read; empty where it could, and from an older router."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.PoolStatus) -> PoolStatus:
        return cls(
            name=wire.name,
            waiting=wire.waiting,
            running=wire.running,
            replicas=tuple(map(ReplicaStatus.from_proto, wire.replicas)),
            router_ids=tuple(wire.router_ids),
            reachable=wire.reachable,
            operating_point=point_from_proto(wire.operating_point),
            classes=tuple(map(ClassCounters.from_proto, wire.classes)),
            autoscaling=control_mode_from_wire(wire.autoscaling),
            wanted_replicas=wire.wanted_replicas,
            starting=wire.starting,
            last_decision=Decision.from_proto(wire.last_decision) if wire.HasField("last_decision") else None,
            relief=relief_from_wire(wire.relief),
            cost_per_hour=wire.cost_per_hour,
            start_failure=wire.start_failure,
            line=tuple(map(LineEntry.from_proto, wire.line)),
            quotas=tuple(map(TenantQuota.from_proto, wire.quotas)),
            budgets=tuple(map(Budget.from_proto, wire.budgets)),
            unreachable_reason=wire.unreachable_reason,
        )


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as one router sees it."""

    pools: tuple[PoolStatus, ...]
    version: str
    router_id: str

    @classmethod
    def from_proto(cls, wire: admin_pb2.GetClusterStatusResponse) -> ClusterStatus:
        return cls(tuple(map(PoolStatus.from_proto, wire.pools)), wire.version, wire.router_id)
