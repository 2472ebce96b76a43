"""Describes the Grafana dashboards; `tests.k8s.generate` writes their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

POOL = 'pool=~"$pool"'
WINDOW = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """Is a graph: what it shows, and PromQL by legend."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    text: str = ""
    """What to read from it."""
    stack: bool = field(default=False)


def _rate(metric: str, by: str = "pool") -> str:
    return f"sum by ({by}) (rate({metric}{{{POOL}}}{WINDOW}))"


def _quantile(metric: str, quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum by (le, pool) (rate({metric}_bucket{{{POOL}}}{WINDOW})))"


def _quantiles(metric: str) -> dict[str, str]:
    return {f"{{{{pool}}}} p{int(q * 100)}": _quantile(metric, q) for q in (0.5, 0.95, 0.99)}


def _per_hour(metric: str, by: str = "pool, direction") -> str:
    return f"3600 * {_rate(metric, by)}"


def _max(metric: str, by: str = "pool") -> str:
    return f"max by ({by}) ({metric}{{{POOL}}})"


BOARDS: dict[str, tuple[str, list[Panel]]] = {
    "golden-signals": (
        "Golden signals",
        [
            Panel(
                "Calls by status",
                {"{{method}} {{code}}": f"sum by (method, code) (rate(penstock_router_calls_total{WINDOW}))"},
                "reqps",
            ),
            Panel(
                "Failed calls by reason",
                {"{{reason}}": f"sum by (reason) (rate(penstock_router_errors_total{WINDOW}))"},
                "reqps",
                "QUOTA_EXCEEDED, QUEUE_FULL and NOT_IN_TIME are refusals; ENGINE, LINK and INTERNAL are faults.",
            ),
            Panel("Time to first token", _quantiles("penstock_router_ttft_seconds"), "s"),
            Panel("Time between tokens", _quantiles("penstock_router_inter_token_seconds"), "s"),
            Panel("Whole request", _quantiles("penstock_router_request_seconds"), "s"),
            Panel("Open generations", {"all routers": "sum(penstock_router_open_calls)"}),
            Panel("Tokens", {"{{pool}} {{kind}}": _rate("penstock_router_tokens_total", "pool, kind")}, "ops"),
            Panel("How choices end", {"{{pool}} {{reason}}": _rate("penstock_router_choices_total", "pool, reason")}),
            Panel(
                "Longest stand-still of an event loop",
                {"{{instance}}": "max by (instance) (penstock_router_loop_lag_seconds)"},
                "s",
                "Since the process started. Above a second: the router lacks CPU.",
            ),
        ],
    ),
    "queue": (
        "Queue",
        [
            Panel(
                "Waiting by class", {"{{pool}} {{class}}": _max("penstock_queue_waiting", "pool, class")}, stack=True
            ),
            Panel("Running", {"{{pool}}": _max("penstock_queue_running")}),
            Panel("Time in line", _quantiles("penstock_router_queue_seconds"), "s"),
            Panel(
                "Error of the first estimate",
                _quantiles("penstock_router_eta_error_seconds"),
                "s",
                "How wrong the wait was that clients were told first.",
            ),
            Panel(
                "Routers with a lease",
                {"{{pool}}": f"sum by (pool) (penstock_router_lease_held{{{POOL}}})"},
                text="Fewer than routers: Redis is away, or a router hangs.",
            ),
            Panel(
                "Results of jobs", {"{{pool}} {{outcome}}": _rate("penstock_router_job_items_total", "pool, outcome")}
            ),
        ],
    ),
    "fairness": (
        "Fairness",
        [
            Panel(
                "Tokens by tenant",
                {"{{pool}} {{tenant}}": _rate("penstock_router_tenant_tokens_total", "pool, tenant")},
                "ops",
                "The first hundred tenants that a router saw; `penstock usage` has them all.",
                stack=True,
            ),
            Panel(
                "Share of the largest tenant",
                {
                    "{{pool}}": (
                        f"max by (pool) ({_rate('penstock_router_tenant_tokens_total', 'pool, tenant')})"
                        f" / {_rate('penstock_router_tenant_tokens_total')}"
                    )
                },
                "percentunit",
            ),
            Panel(
                "Waiting by class", {"{{pool}} {{class}}": _max("penstock_queue_waiting", "pool, class")}, stack=True
            ),
            Panel(
                "Refusals",
                {
                    "{{reason}}": "sum by (reason) (rate(penstock_router_errors_total"
                    f'{{reason=~"QUOTA_EXCEEDED|QUEUE_FULL|NOT_IN_TIME|QUEUE_TIMEOUT"}}{WINDOW})) or vector(0)'
                },
                "reqps",
            ),
        ],
    ),
    "autoscaler": (
        "Autoscaler",
        [
            Panel(
                "Replicas",
                {
                    "{{pool}} decided": _max("penstock_autoscaler_replicas_decided"),
                    "{{pool}} told to Ray Serve": _max("penstock_autoscaler_replicas_target"),
                    "{{pool}} running": _max("penstock_autoscaler_replicas_running"),
                    "{{pool}} take work": _max("penstock_replicas_ready"),
                    "{{pool}} starting": _max("penstock_autoscaler_replicas_starting"),
                },
                text="Decided and told differ where the mode is advisory, or Ray Serve does not answer.",
            ),
            Panel(
                "Replicas needed, and what asks for them",
                {
                    "{{pool}} needed": _max("penstock_autoscaler_replicas_needed"),
                    "{{pool}} decided": _max("penstock_autoscaler_replicas_decided"),
                    "{{pool}} {{term}}": _max("penstock_autoscaler_term_replicas", "pool, term"),
                },
                text="Needed is before hysteresis and limits: above decided for long, the maximum or budget holds it.",
            ),
            Panel("Changes of the number", {"{{pool}} {{direction}}": _per_hour("penstock_autoscaler_changes_total")}),
            Panel("Waiting requests", {"{{pool}}": f"sum by (pool) ({_max('penstock_queue_waiting', 'pool, class')})"}),
            Panel(
                "Arrivals by class",
                {"{{pool}} {{class}}": _max("penstock_autoscaler_arrival_rate", "pool, class")},
                "reqps",
                stack=True,
            ),
            Panel(
                "Longest wait by class",
                {"{{pool}} {{class}}": _max("penstock_autoscaler_oldest_wait_seconds", "pool, class")},
                "s",
            ),
            Panel(
                "Requests within their SLO",
                {"{{pool}}": _max("penstock_autoscaler_attainment")},
                "percentunit",
                "Of the last ten minutes.",
            ),
            Panel(
                "What the pool gives up",
                {"{{pool}} {{relief}}": _max("penstock_autoscaler_relief", "pool, relief")},
                text="While it can't have the replicas it needs: latency, then batch work, then requests.",
            ),
            Panel(
                "Cold start",
                {"{{pool}}": _max("penstock_autoscaler_cold_start_seconds")},
                "s",
                "From the order to the first token, 90th percentile of the last twenty.",
            ),
            Panel(
                "Failed starts and alarms",
                {
                    "{{pool}} failed starts in a row": _max("penstock_autoscaler_failed_starts"),
                    "{{pool}} alarms": _max("penstock_autoscaler_alarms"),
                },
                text="`penstock decisions` says what they are.",
            ),
            Panel(
                "Age of what decisions rest on",
                {"{{pool}}": _max("penstock_autoscaler_values_age_seconds")},
                "s",
                "Above autoscale.stale_s (30 s) nothing is removed.",
            ),
            Panel(
                "Who leads",
                {"{{pool}} {{instance}}": _max("penstock_autoscaler_leading", "pool, instance")},
                text="One per pool. The fence grows with each change of hands.",
                stack=True,
            ),
            Panel("Fence", {"{{pool}}": _max("penstock_autoscaler_fence")}),
            Panel("Mode", {"{{pool}} {{mode}}": _max("penstock_autoscaler_mode", "pool, mode")}),
            Panel(
                "What goes wrong, per hour",
                {
                    "{{pool}} Ray Serve": _per_hour("penstock_autoscaler_actuator_errors_total", "pool"),
                    "{{pool}} ticks": _per_hour("penstock_autoscaler_failures_total", "pool"),
                    "{{pool}} deposed": _per_hour("penstock_autoscaler_deposed_total", "pool"),
                    "{{pool}} took over": _per_hour("penstock_autoscaler_took_over_total", "pool"),
                },
            ),
            Panel(
                "Batch limit",
                {
                    "{{replica}} in force": _max("penstock_replica_batch_limit", "replica"),
                    "{{replica}} decided": _max("penstock_replica_control_limit", "replica"),
                },
                text="Decided and in force differ where control is advisory.",
            ),
            Panel(
                "Changes of the batch limit by cause",
                {"{{cause}}": _rate("penstock_replica_control_changes_total", "cause")},
            ),
            Panel("Trim", {"{{replica}}": _max("penstock_replica_control_trim", "replica")}),
            Panel(
                "Time between tokens, against the promise",
                {
                    "{{replica}} p95": _max("penstock_replica_itl_p95_seconds", "replica"),
                    "{{pool}} promised": _max("penstock_replica_itl_slo_seconds"),
                },
                "s",
            ),
            Panel(
                "Overloaded replicas",
                {"{{pool}}": f"sum by (pool) (penstock_replica_control_overloaded{{{POOL}}})"},
                text="Even the smallest batch misses the promise: only more replicas help.",
            ),
            Panel(
                "Steps: measured and predicted",
                {
                    "{{replica}} measured": _max("penstock_replica_step_measured_seconds", "replica"),
                    "{{replica}} predicted": _max("penstock_replica_step_predicted_seconds", "replica"),
                },
                "s",
            ),
            Panel(
                "Step models that are relied on",
                {"{{pool}}": f"sum by (pool) (penstock_replica_step_model_healthy{{{POOL}}})"},
                text="Where fewer than replicas, the limit follows measurements alone.",
            ),
            Panel(
                "Mode of the batch limit's control",
                {"{{mode}}": f"sum by (mode) (penstock_replica_control_mode{{{POOL}}})"},
            ),
        ],
    ),
    "replicas": (
        "Replicas",
        [
            Panel("Sequences in the batch", {"{{replica}}": _max("penstock_replica_running", "replica")}),
            Panel(
                "Sequences waiting in the engine", {"{{replica}}": _max("penstock_replica_engine_waiting", "replica")}
            ),
            Panel("KV cache in use", {"{{replica}}": _max("penstock_replica_kv_usage", "replica")}, "percentunit"),
            Panel("Output tokens", {"{{replica}}": _rate("penstock_replica_output_tokens_total", "replica")}, "ops"),
            Panel(
                "Busy",
                {"{{replica}}": _rate("penstock_replica_busy_seconds_total", "replica")},
                "percentunit",
                "Part of the time in steps that held sequences.",
            ),
            Panel("Steps", {"{{replica}}": _rate("penstock_replica_steps_total", "replica")}, "ops"),
            Panel("Links", {"{{instance}} {{pool}}": _max("penstock_router_links_up", "instance, pool")}),
            Panel(
                "Lost attempts",
                {
                    "{{pool}} {{failure}}": _rate("penstock_router_lost_attempts_total", "pool, failure")
                    + " or vector(0)"
                },
                text="Each went on at another replica, unless it was the last of router.max_attempts.",
            ),
            Panel("Paused replicas", {"{{pool}}": _max("penstock_router_replicas_paused")}),
            Panel("Sequences by end", {"{{reason}}": _rate("penstock_replica_sequences_ended_total", "reason")}, "ops"),
            Panel("Preempted in the engine", {"{{replica}}": _rate("penstock_replica_preemptions_total", "replica")}),
        ],
    ),
    "cost": (
        "Cost",
        [
            Panel(
                "Accelerators in use",
                {"{{pool}}": _rate("penstock_replica_gpu_seconds_total")},
                text="Accelerator seconds per second, of sequences that ended.",
            ),
            Panel(
                "Output tokens per accelerator second",
                {
                    "{{pool}}": f"{_rate('penstock_replica_output_tokens_total')}"
                    f" / {_rate('penstock_replica_gpu_seconds_total')}"
                },
            ),
            Panel(
                "Prompt tokens from the prefix cache",
                {
                    "{{pool}}": f"{_rate('penstock_replica_cached_tokens_total')}"
                    f" / {_rate('penstock_replica_prompt_tokens_total')}"
                },
                "percentunit",
            ),
            Panel(
                "Grants on a preferred replica",
                {"{{pool}} {{outcome}}": _rate("penstock_router_affinity_grants_total", "pool, outcome")},
                "ops",
            ),
            Panel(
                "Accelerator time that nobody got", {"{{pool}}": _rate("penstock_replica_orphaned_gpu_seconds_total")}
            ),
            Panel(
                "Idle part of replicas",
                {
                    "{{pool}}": f"1 - {_rate('penstock_replica_busy_seconds_total')}"
                    f" / count by (pool) (penstock_replica_running{{{POOL}}})"
                },
                "percentunit",
            ),
        ],
    ),
}


def queries() -> list[tuple[str, str, str]]:
    """Return (board, panel, PromQL) of every query."""
    return [
        (name, panel.title, query)
        for name, (_, panels) in BOARDS.items()
        for panel in panels
        for query in panel.queries.values()
    ]


def dashboards() -> dict[str, dict[str, Any]]:
    """Return Grafana's JSON of every dashboard."""
    return {name: _board(name, title, panels) for name, (title, panels) in BOARDS.items()}


def _board(name: str, title: str, panels: list[Panel]) -> dict[str, Any]:
    return {
        "uid": f"penstock-{name}",
        "title": f"Penstock / {title}",
        "tags": ["penstock"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pool",
                    "label": "Pool",
                    "type": "query",
                    "datasource": _source(),
                    "query": {"query": "label_values(penstock_replicas_ready, pool)", "refId": "pool"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _source(),
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {
                    "lineWidth": 1,
                    "fillOpacity": 20 if panel.stack else 0,
                    "stacking": {"mode": "normal" if panel.stack else "none"},
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _source(), "expr": query, "legendFormat": legend}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}
