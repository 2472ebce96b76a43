"""Alerts about replicas and their engines."""

from __future__ import annotations

from cluster.alerts.alert import Alert, Severity, Step

_LOGS = "penstock logs ray --level warning --since 1h"
_TOP = "penstock top --once --pool {{ $labels.pool }}"

ALERTS = (
    Alert(
        name="PenstockLostAttempts",
        severity=Severity.WARNING,
        summary="Pool {{ $labels.pool }} lost {{ $value | humanize }} attempts in ten minutes.",
        expr="sum by (pool) (increase(penstock_router_lost_attempts_total[10m])) > 20",
        meaning=(
            "They continued on other replicas, which costs time and GPU. A prompt that ends engines is quarantined by "
            "itself, and its calls end with QUARANTINED. A request that is lost too often ends with GENERATION_FAILED."
        ),
        steps=(
            Step(
                "penstock status",
                (
                    ("a replica that is new", "its predecessor died: go on with the logs"),
                    ("a link that is down", "look at the network and the node of that replica"),
                    ("a heartbeat that is old", "the replica hangs or lacks CPU: look at its node"),
                ),
            ),
            Step(
                _LOGS,
                (
                    ("out of memory", "lower gpu_memory_utilization or max_num_seqs, or raise the pod's memory"),
                    ("another reason why an engine ended", "correct it; the record before the end has it"),
                ),
            ),
            Step(
                "penstock explain --missed --all-tenants --pool {{ $labels.pool }}",
                (
                    ("one tenant's requests end with QUARANTINED", "ask that tenant what its prompts have in common"),
                    ("requests of all tenants", "the replica is at fault, not its requests"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockReplicaPaused",
        severity=Severity.WARNING,
        summary="A replica of pool {{ $labels.pool }} fails so often that it gets no work.",
        # Between two pauses the replica is tried again.
        expr="max by (pool) (max_over_time(penstock_router_replicas_paused[5m])) > 0",
        pending_minutes=10,
        meaning="The pool works with fewer replicas. The paused one is tried again after each pause.",
        steps=(
            Step(
                "penstock status",
                (
                    ("a replica without running sequences while others are busy", "it is the paused one"),
                    ("every replica runs sequences", "the pause is over; look at the logs for the reason"),
                ),
            ),
            Step(
                _LOGS,
                (
                    ("why its engine fails", "correct it"),
                    ("no reason", "end the replica's process, or delete its pod: Ray Serve starts another"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockKvCacheFull",
        severity=Severity.WARNING,
        summary="The KV caches of pool {{ $labels.pool }} are full.",
        expr="avg by (pool) (penstock_replica_kv_usage) > 0.95",
        pending_minutes=15,
        meaning="Contexts are longer than planned, so fewer sequences run at once than could.",
        steps=(
            Step(
                _TOP,
                (
                    (
                        "the KV cache is full on all replicas",
                        "add replicas, raise gpu_memory_utilization, or use kv_cache_dtype",
                    ),
                    ("few sequences run", "single contexts are very long: lower max_model_len"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockOverloaded",
        severity=Severity.WARNING,
        summary="Every replica of pool {{ $labels.pool }} misses its latency target with the smallest batch.",
        expr="min by (pool) (penstock_replica_control_overloaded) == 1",
        pending_minutes=10,
        meaning="Smaller batches don't help any more.",
        steps=(
            Step(
                "penstock operating-point --pool {{ $labels.pool }}",
                (
                    (
                        "a time that one sequence alone would miss",
                        "promise more time, or use other GPUs",
                    ),
                    ("a time that was kept before", "prompts make up the load: add replicas"),
                ),
            ),
            Step(
                "penstock decisions --pool {{ $labels.pool }}",
                (("max_replicas or budget limits the number", "raise autoscale.max_replicas, or the budget"),),
            ),
        ),
    ),
    Alert(
        name="PenstockStepModelBad",
        severity=Severity.INFO,
        summary="The step model of replica {{ $labels.replica }} does not predict its step times.",
        # A replica that has hardly worked has no steps to learn from.
        expr="penstock_replica_step_model_healthy == 0 and increase(penstock_replica_steps_total[30m]) > 500",
        pending_minutes=30,
        meaning="Until it does, the batch limit follows measurements alone.",
        steps=(
            Step(
                _TOP,
                (
                    ("this replica alone is slow", "another process uses its GPU or CPU cores: look at its node"),
                    ("all replicas are alike", "the engine was updated, or the hardware changed: nothing to do"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockOrphans",
        severity=Severity.INFO,
        summary="Pool {{ $labels.pool }} generates for clients that never come back.",
        expr="sum by (pool) (rate(penstock_replica_orphaned_gpu_seconds_total[30m])) > 0.1",
        pending_minutes=30,
        meaning="Clients die in the middle of streams, or routers are killed. queue.attach_grace_s bounds the waste.",
        steps=(
            Step(
                "penstock status",
                (
                    ("fewer routers than you run", "routers are killed: look for too little memory or CPU"),
                    ("all routers", "clients die: lower queue.attach_grace_s, or correct the clients"),
                ),
            ),
        ),
    ),
)
