"""Alerts about the number of replicas."""

from __future__ import annotations

from cluster.alerts.alert import Alert, Severity, Step

_LOGS = "penstock logs autoscaler --level warning --since 1h"

ALERTS = (
    Alert(
        name="PenstockAutoscalerNoLeader",
        severity=Severity.CRITICAL,
        summary="No autoscaler leads pool {{ $labels.pool }}, so its number of replicas stays as it is.",
        expr="""
            max by (pool) (penstock_autoscaler_leading) == 0
            or (
              max by (pool) (last_over_time(penstock_autoscaler_leading[1h]))
              unless max by (pool) (penstock_autoscaler_leading)
              unless on () penstock_autoscaler_pools
            )
        """,
        pending_minutes=2,
        meaning="Requests are still served. Where no autoscaler is there at all, only pools that had one within the "
        "hour raise this alert. A pool that was removed, or whose mode is off now, raises none while an autoscaler "
        "runs.",
        steps=(
            Step(
                _LOGS,
                (
                    ("autoscaler.store_away", "Redis is away, or a network policy blocks it"),
                    ("a wrong setting", "correct it; `penstock config check` finds all of them"),
                    (
                        "nothing",
                        "no autoscaler runs: start one (`penstock autoscaler`); on Kubernetes look at its pods. Until "
                        "then set `replicas` of the pool by hand",
                    ),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockAutoscalerFailedStarts",
        severity=Severity.WARNING,
        summary="{{ $value }} starts of replicas of pool {{ $labels.pool }} failed in a row.",
        expr="max by (pool) (penstock_autoscaler_failed_starts) >= 2",
        meaning="No more replicas start before the end of a pause, which doubles with each failure.",
        steps=(
            Step(
                "penstock decisions --pool {{ $labels.pool }}",
                (
                    ("a reason that a replica gave", "correct it: memory, the model, a driver"),
                    ("no reason", "the replica never got a machine: go on with the logs"),
                ),
            ),
            Step(
                "penstock logs ray --level warning --since 1h",
                (
                    (
                        "no resources",
                        "no GPU is free; on Kubernetes look for Pending worker pods, and at workers.max",
                    ),
                    ("the engine's last words", "correct what they name"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockAutoscalerStale",
        severity=Severity.WARNING,
        summary=(
            "Measurements of pool {{ $labels.pool }} are {{ $value | humanizeDuration }} old, so no replica is removed."
        ),
        expr="max by (pool) (penstock_autoscaler_values_age_seconds) > 30",
        pending_minutes=5,
        meaning=(
            "Routers or replicas send no heartbeats: they are gone, hang, or don't reach Redis. The rule's 30 s are "
            "the default of autoscale.stale_s."
        ),
        steps=(
            Step(
                "penstock status",
                (
                    ("queue not reachable", "Redis is away, or a network policy blocks it"),
                    ("an old heartbeat of a replica", "it hangs or lacks CPU: look at its node, or end it"),
                    ("fewer routers than you run", "look at the missing router's logs"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockAutoscalerCapped",
        severity=Severity.WARNING,
        summary="Pool {{ $labels.pool }} needs {{ $value }} replicas and can't get them.",
        expr="""
            max by (pool) (penstock_autoscaler_replicas_needed) > max by (pool) (penstock_autoscaler_replicas_decided)
        """,
        pending_minutes=15,
        meaning=("Meanwhile the pool gives up latency, then batch work, then requests (dashboard 'Autoscaler')."),
        steps=(
            Step(
                "penstock decisions --pool {{ $labels.pool }}",
                (
                    ("max_replicas limits it", "raise autoscale.max_replicas, on Kubernetes with workers.max"),
                    ("budget limits it", "raise the budget with `penstock operating-point`"),
                    ("a pause limits it", "follow the runbook of PenstockAutoscalerFailedStarts"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockAutoscalerNotCarriedOut",
        severity=Severity.WARNING,
        summary="Ray Serve does not take the number of replicas of pool {{ $labels.pool }}.",
        expr="""
            max by (pool) (penstock_autoscaler_replicas_decided != penstock_autoscaler_replicas_target)
            and max by (pool) (penstock_autoscaler_mode{mode="active"}) == 1
            or max by (pool) (increase(penstock_autoscaler_actuator_errors_total[5m])) > 3
        """,
        pending_minutes=5,
        meaning="The autoscaler tries again at every tick. Running replicas are not affected.",
        steps=(
            Step(
                _LOGS,
                (
                    ("autoscaler.not_taken with 401", "the token is not Ray's: give it the right one"),
                    ("autoscaler.not_taken with 412", "the application lacks external_scaler_enabled"),
                    ("autoscaler.not_taken without an answer", "Ray's head is away, or a network policy blocks it"),
                ),
            ),
        ),
    ),
)
