"""The dashboard Autoscaler: first the replica policy (slow loop), then the batch policy (fast loop)."""

from __future__ import annotations

from k8s.render.panels import POOL, Panel, highest, per_hour, rate

AUTOSCALER = [
    Panel(
        "Replicas",
        {
            "{{pool}} decided": highest("penstock_autoscaler_replicas_decided"),
            "{{pool}} told to Ray Serve": highest("penstock_autoscaler_replicas_target"),
            "{{pool}} running": highest("penstock_autoscaler_replicas_running"),
            "{{pool}} take work": highest("penstock_replicas_ready"),
            "{{pool}} starting": highest("penstock_autoscaler_replicas_starting"),
        },
        text="Decided and told differ if the mode is advisory, or if Ray Serve does not answer.",
    ),
    Panel(
        "Replicas needed, and what asks for them",
        {
            "{{pool}} needed": highest("penstock_autoscaler_replicas_needed"),
            "{{pool}} decided": highest("penstock_autoscaler_replicas_decided"),
            "{{pool}} {{term}}": highest("penstock_autoscaler_term_replicas", "pool, term"),
        },
        text="Needed is before hysteresis and limits. If it stays above decided, the maximum or budget limits it.",
    ),
    Panel("Changes of the number", {"{{pool}} {{direction}}": per_hour("penstock_autoscaler_changes_total")}),
    Panel("Waiting requests", {"{{pool}}": f"sum by (pool) ({highest('penstock_queue_waiting', 'pool, class')})"}),
    Panel(
        "Arrivals by class",
        {"{{pool}} {{class}}": highest("penstock_autoscaler_arrival_rate", "pool, class")},
        "reqps",
        stack=True,
    ),
    Panel(
        "Longest wait by class",
        {"{{pool}} {{class}}": highest("penstock_autoscaler_oldest_wait_seconds", "pool, class")},
        "s",
    ),
    Panel(
        "Requests within their SLO",
        {"{{pool}}": highest("penstock_autoscaler_attainment")},
        "percentunit",
        "Of the last ten minutes.",
    ),
    Panel(
        "What the pool gives up",
        {"{{pool}} {{relief}}": highest("penstock_autoscaler_relief", "pool, relief")},
        text="While it can't get the replicas it needs: latency, then batch work, then requests.",
    ),
    Panel(
        "Cold start",
        {"{{pool}}": highest("penstock_autoscaler_cold_start_seconds")},
        "s",
        "From the order to the first token, 90th percentile of the last twenty.",
    ),
    Panel(
        "Failed starts and alarms",
        {
            "{{pool}} failed starts in a row": highest("penstock_autoscaler_failed_starts"),
            "{{pool}} alarms": highest("penstock_autoscaler_alarms"),
        },
        text="`penstock decisions` lists them.",
    ),
    Panel(
        "Age of what decisions rest on",
        {"{{pool}}": highest("penstock_autoscaler_values_age_seconds")},
        "s",
        "Above autoscale.stale_s (30 s) no replica is removed.",
    ),
    Panel(
        "Who leads",
        {"{{pool}} {{instance}}": highest("penstock_autoscaler_leading", "pool, instance")},
        text="One per pool. The fence grows with each change of the leader.",
        stack=True,
    ),
    Panel("Fence", {"{{pool}}": highest("penstock_autoscaler_fence")}),
    Panel("Mode", {"{{pool}} {{mode}}": highest("penstock_autoscaler_mode", "pool, mode")}),
    Panel(
        "What goes wrong, per hour",
        {
            "{{pool}} Ray Serve": per_hour("penstock_autoscaler_actuator_errors_total", "pool"),
            "{{pool}} ticks": per_hour("penstock_autoscaler_failures_total", "pool"),
            "{{pool}} deposed": per_hour("penstock_autoscaler_deposed_total", "pool"),
            "{{pool}} took over": per_hour("penstock_autoscaler_took_over_total", "pool"),
        },
    ),
    Panel(
        "Batch limit",
        {
            "{{replica}} in force": highest("penstock_replica_batch_limit", "replica"),
            "{{replica}} decided": highest("penstock_replica_control_limit", "replica"),
        },
        text="Decided and in force differ if control is advisory.",
    ),
    Panel(
        "Changes of the batch limit by cause",
        {"{{cause}}": rate("penstock_replica_control_changes_total", "cause")},
    ),
    Panel("Trim", {"{{replica}}": highest("penstock_replica_control_trim", "replica")}),
    Panel(
        "Time between tokens, against the promise",
        {
            "{{replica}} p95": highest("penstock_replica_itl_p95_seconds", "replica"),
            "{{pool}} promised": highest("penstock_replica_itl_slo_seconds"),
        },
        "s",
    ),
    Panel(
        "Overloaded replicas",
        {"{{pool}}": f"sum by (pool) (penstock_replica_control_overloaded{{{POOL}}})"},
        text="Even the smallest batch misses the SLO, so only more replicas help.",
    ),
    Panel(
        "Steps: measured and predicted",
        {
            "{{replica}} measured": highest("penstock_replica_step_measured_seconds", "replica"),
            "{{replica}} predicted": highest("penstock_replica_step_predicted_seconds", "replica"),
        },
        "s",
    ),
    Panel(
        "Step models that are relied on",
        {"{{pool}}": f"sum by (pool) (penstock_replica_step_model_healthy{{{POOL}}})"},
        text="For replicas without one, the limit follows measurements alone.",
    ),
    Panel(
        "Mode of the batch limit's control",
        {"{{mode}}": f"sum by (mode) (penstock_replica_control_mode{{{POOL}}})"},
    ),
]
