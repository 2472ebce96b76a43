"""Clusters as a router would report them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.client import (
    ClassCounters,
    ClassSlo,
    ClusterStatus,
    Decision,
    LineEntry,
    OperatingPoint,
    PoolStatus,
    Relief,
    ReplicaState,
    ReplicaStatus,
    RequestClass,
    Step,
    TenantQuota,
)
from router.commands.top.looked import Looked
from router.commands.top.rates import Rates

POINT = OperatingPoint(interactive=ClassSlo(2.0, 0.05), price_per_gpu_hour=2.5)


def replica(name: str = "demo-r0", **fields: Any) -> ReplicaStatus:
    known = {
        "group_id": "g", "state": ReplicaState.READY, "address": "10.0.0.1:7001", "running": 12, "batch_limit": 64,
        "kv_usage": 0.5, "heartbeat_age": 0.4, "linked": True, "metrics_port": 9000, "output_tokens": 1000,
        "accepted_draft_tokens": 0, "kv_tokens": 200_000, "step_time": 0.0312, "itl_mean": 0.033, "itl_p95": 0.041,
        "up_time": 3_725.0, "start_time": 94.0, "model": "/models/llama-8b", "hardware": "nvidia-h100", "gpus": 2,
        "tensor_parallel_size": 2, "cost_per_hour": 5.0,
    }  # fmt: skip
    return ReplicaStatus(name, **{**known, **fields})


def pool(name: str = "demo", *replicas: ReplicaStatus, **fields: Any) -> PoolStatus:
    known: dict[str, Any] = {
        "waiting": 120, "running": 24, "router_ids": ("router-a",), "reachable": True, "operating_point": POINT,
        "classes": (ClassCounters(RequestClass.INTERACTIVE, 1_300, 1_200, 1_188),), "autoscaling": "active",
        "wanted_replicas": len(replicas), "cost_per_hour": 5.0 * len(replicas),
    }  # fmt: skip
    return PoolStatus(name, **{**known, "replicas": replicas, **fields})


def decision(number: int = 142, **fields: Any) -> Decision:
    known: dict[str, Any] = {
        "at_ms": 1_700_000_000_000, "mode": "active", "leader": "autoscaler-a", "fence": 1, "replicas_before": 3,
        "replicas": 4, "needed": 4, "relief": Relief.NONE, "reason": "enough for 2.13 of 8 slots",
        "steps": (Step("demand", 3.6, "12 requests a second"),), "counterfactuals": (), "alarms": (), "ready": 3,
        "starting": 1, "draining": 0, "running": 24.0, "waiting": 120.0, "kv_usage": 0.5, "age": 1.0,
        "cold_start": 94.0, "failed_starts": 0, "attainment": 0.97, "demands": (),
    }  # fmt: skip
    return Decision(number=number, **{**known, **fields})


def looked(*pools: PoolStatus, **fields: Any) -> Looked:
    """Return a look, and one 5 s before it when each replica had made 500 tokens less."""
    status = ClusterStatus(pools, "0.2.0", "router-a")
    earlier = ClusterStatus(
        tuple(
            replace(each, replicas=tuple(replace(one, output_tokens=one.output_tokens - 500) for one in each.replicas))
            for each in pools
        ),
        "0.2.0",
        "router-a",
    )
    rates = Rates().after(100.0, earlier).after(105.0, status)
    return Looked(status, "127.0.0.1:50051", **{"rates": rates, "clock_ms": 1_700_000_000_000, **fields})


def waits(tenant: str, request_class: RequestClass = RequestClass.INTERACTIVE, **fields: Any) -> LineEntry:
    known = {"waiting": 7, "oldest_wait": 3.2, "served_ahead": 1_200, "weight": 2.0, "running": 4}
    return LineEntry(request_class, tenant, **{**known, **fields})


def quota_of(tenant: str, **fields: Any) -> TenantQuota:
    known = {
        "tokens_per_minute": 60_000, "tokens_left": -20, "requests_per_minute": 0, "requests_left": 0, "concurrency": 8,
        "open": 5, "blocked_by": "tokens_per_minute", "blocked_for": 12.0, "refused": 0,
    }  # fmt: skip
    return TenantQuota(tenant, **{**known, **fields})
