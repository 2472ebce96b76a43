"""The Grafana dashboards as Python. `k8s.render.generated` writes their JSON."""

from __future__ import annotations

from typing import Any

from k8s.render.autoscaler_board import AUTOSCALER
from k8s.render.panels import NAMESPACE, POOL, WINDOW, Panel, burn_rate, by_class, highest, quantiles, rate

PROMISES = "penstock_router_slo_choices_total"
MET, MISSED = 'outcome="met"', 'outcome!="met"'
TOKENS, MODEL = "rate(gen_ai_client_token_usage", '{gen_ai_request_model=~"$pool"}'
NAMED = 'tenant!="(other)"'
"""Tenants with a name of their own. Those beyond a router's first hundred share one series."""

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
                "QUOTA_EXCEEDED, QUEUE_FULL, NOT_IN_TIME and QUEUE_TIMEOUT are refusals; "
                "GENERATION_FAILED, NO_REPLICA, QUEUE_UNAVAILABLE and INTERNAL are faults.",
            ),
            Panel("Time to first token", by_class("penstock_router_ttft_seconds"), "s"),
            Panel("Time between tokens", by_class("penstock_router_inter_token_seconds", 0.95), "s"),
            Panel(
                "Whole request",
                by_class("penstock_router_request_seconds"),
                "s",
                "Only of requests that ended well. The other times include requests whose client left.",
            ),
            Panel(
                "Promises kept",
                {
                    "{{pool}} {{class}}": f"{rate(PROMISES, 'pool, class', MET)} / {rate(PROMISES, 'pool, class')}",
                },
                "percentunit",
                "Of choices whose class has an SLO. In a gap, none ended.",
            ),
            Panel(
                "Promises missed",
                {"{{pool}} {{class}} {{outcome}}": rate(PROMISES, "pool, class, outcome", MISSED)},
                "reqps",
                "ttft: first token too late. itl: tokens too slow. not_served: refused for lack of room, or failed.",
            ),
            Panel(
                "Burn rate of the error budget",
                {f"{{{{pool}}}} {{{{class}}}} {window}": burn_rate(window) for window in ("1h", "6h", "3d")},
                text="At 1 the misses that the attainment allows last for 30 days. Alerts: 1h 14.4, 6h 6, 3d 1.",
            ),
            Panel(
                "Tokens per request",
                {
                    "{{gen_ai_request_model}} {{gen_ai_token_type}}": (
                        f"sum by (gen_ai_request_model, gen_ai_token_type) ({TOKENS}_sum{MODEL}{WINDOW}))"
                        f" / sum by (gen_ai_request_model, gen_ai_token_type) ({TOKENS}_count{MODEL}{WINDOW}))"
                    )
                },
                text="Mean of requests that are over. The metrics gen_ai_* are those of OpenTelemetry's conventions.",
            ),
            Panel("Open generations", {"all routers": "sum(penstock_router_open_calls)"}),
            Panel("Tokens", {"{{pool}} {{kind}}": rate("penstock_router_tokens_total", "pool, kind")}, "ops"),
            Panel("How choices end", {"{{pool}} {{reason}}": rate("penstock_router_choices_total", "pool, reason")}),
            Panel(
                "Event loops that stand still",
                {"{{instance}}": f"max by (instance) (rate(penstock_router_loop_stalled_seconds_total{WINDOW}))"},
                "percentunit",
                "Part of the time in stalls of more than a quarter of a second. Above 2 %, the router lacks CPU.",
            ),
        ],
    ),
    "queue": (
        "Queue",
        [
            Panel(
                "Waiting by class", {"{{pool}} {{class}}": highest("penstock_queue_waiting", "pool, class")}, stack=True
            ),
            Panel("Running", {"{{pool}}": highest("penstock_queue_running")}),
            Panel("Time in line", by_class("penstock_router_queue_seconds"), "s"),
            Panel(
                "Error of the first estimate",
                quantiles("penstock_router_eta_error_seconds"),
                "s",
                "Difference between the real wait and the first estimate that clients got.",
            ),
            Panel(
                "Routers with a lease",
                {"{{pool}}": f"sum by (pool) (penstock_router_lease_held{{{POOL}}})"},
                text="If fewer than the routers, Redis is away, or a router hangs.",
            ),
            Panel(
                "Results of jobs", {"{{pool}} {{outcome}}": rate("penstock_router_job_items_total", "pool, outcome")}
            ),
        ],
    ),
    "fairness": (
        "Fairness",
        [
            Panel(
                "Tokens by tenant",
                {"{{pool}} {{tenant}}": rate("penstock_router_tenant_tokens_total", "pool, tenant")},
                "ops",
                "The first hundred tenants that a router saw. `penstock usage` has all of them.",
                stack=True,
            ),
            Panel(
                "Share of the largest tenant",
                {
                    "{{pool}}": (
                        f"max by (pool) ({rate('penstock_router_tenant_tokens_total', 'pool, tenant', NAMED)})"
                        f" / {rate('penstock_router_tenant_tokens_total')}"
                    )
                },
                "percentunit",
                "Of the tenants with their own series.",
            ),
            Panel(
                "Waiting by class", {"{{pool}} {{class}}": highest("penstock_queue_waiting", "pool, class")}, stack=True
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
    "autoscaler": ("Autoscaler", AUTOSCALER),
    "replicas": (
        "Replicas",
        [
            Panel("Sequences in the batch", {"{{replica}}": highest("penstock_replica_running", "replica")}),
            Panel(
                "Sequences waiting in the engine",
                {"{{replica}}": highest("penstock_replica_engine_waiting", "replica")},
            ),
            Panel("KV cache in use", {"{{replica}}": highest("penstock_replica_kv_usage", "replica")}, "percentunit"),
            Panel("Output tokens", {"{{replica}}": rate("penstock_replica_output_tokens_total", "replica")}, "ops"),
            Panel(
                "Busy",
                {"{{replica}}": rate("penstock_replica_busy_seconds_total", "replica")},
                "percentunit",
                "Part of the time in steps that held sequences.",
            ),
            Panel("Steps", {"{{replica}}": rate("penstock_replica_steps_total", "replica")}, "ops"),
            Panel("Links", {"{{instance}} {{pool}}": highest("penstock_router_links_up", "instance, pool")}),
            Panel(
                "Lost attempts",
                {
                    "{{pool}} {{failure}}": rate("penstock_router_lost_attempts_total", "pool, failure")
                    + " or vector(0)"
                },
                text="Each continued on another replica, unless it was the last of router.max_attempts.",
            ),
            Panel(
                "Paused replicas",
                {"{{pool}}": f"max by (pool) (max_over_time(penstock_router_replicas_paused{{{POOL}}}{WINDOW}))"},
            ),
            Panel("Sequences by end", {"{{reason}}": rate("penstock_replica_sequences_ended_total", "reason")}, "ops"),
            Panel("Preempted in the engine", {"{{replica}}": rate("penstock_replica_preemptions_total", "replica")}),
        ],
    ),
    "cost": (
        "Cost",
        [
            Panel(
                "Accelerators in use",
                {"{{pool}}": rate("penstock_replica_gpu_seconds_total")},
                text="Accelerator seconds per second, of sequences that ended.",
            ),
            Panel(
                "Output tokens per accelerator second",
                {
                    "{{pool}}": f"{rate('penstock_replica_output_tokens_total')}"
                    f" / {rate('penstock_replica_gpu_seconds_total')}"
                },
            ),
            Panel(
                "Prompt tokens from the prefix cache",
                {
                    "{{pool}}": f"{rate('penstock_replica_cached_tokens_total')}"
                    f" / {rate('penstock_replica_prompt_tokens_total')}"
                },
                "percentunit",
            ),
            Panel(
                "Grants on a preferred replica",
                {"{{pool}} {{outcome}}": rate("penstock_router_affinity_grants_total", "pool, outcome")},
                "ops",
            ),
            Panel(
                "Accelerator time that nobody got", {"{{pool}}": rate("penstock_replica_orphaned_gpu_seconds_total")}
            ),
            Panel(
                "Idle part of replicas",
                {
                    "{{pool}}": f"1 - {rate('penstock_replica_busy_seconds_total')}"
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
        for query in panel.scoped.values()
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
                _variable("namespace", "label_values(penstock_replicas_ready, namespace)"),
                _variable("pool", f"label_values(penstock_replicas_ready{{{NAMESPACE}}}, pool)"),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _source(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
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
            for i, (legend, query) in enumerate(panel.scoped.items())
        ],
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}
