"""Alerts about routers and about what callers get."""

from __future__ import annotations

from cluster.alerts.alert import Alert, Severity, Step

REQUESTS = (
    "InferenceService/(Stream)?Generate|EmbeddingService/.+|"
    "http (/v[12])?/(chat/completions|completions|messages|responses|embeddings|score|rerank|classify)"
)
"""Pattern of the methods whose calls wait in line, over gRPC and HTTP."""
_LOGS_OF_ROUTERS = "penstock logs router-0 --level warning --since 1h"

ALERTS = (
    Alert(
        name="PenstockNoRouter",
        severity=Severity.CRITICAL,
        summary="No router answers Prometheus.",
        expr="absent(penstock_router_open_calls)",
        pending_minutes=2,
        meaning="Either no router runs, or Prometheus does not reach one.",
        steps=(
            Step(
                "penstock status",
                (
                    ("pools and routers", "routers work: look at Prometheus' targets (labels, ports, network policy)"),
                    ("no answer", "no router runs: go on with the logs"),
                ),
            ),
            Step(
                _LOGS_OF_ROUTERS,
                (
                    ("a wrong setting or a missing secret", "correct it; `penstock config check` finds all of them"),
                    ("nothing", "nobody started it: `penstock up`; on Kubernetes look for Pending pods"),
                ),
            ),
            Step(
                "penstock doctor",
                (
                    ("something bad", "correct what it names: ports, Redis, files, limits"),
                    ("all is good", "start it: `penstock up`"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockNoReplica",
        severity=Severity.CRITICAL,
        summary="Pool {{ $labels.pool }} has no replica that takes work.",
        expr="""
            max by (pool) (penstock_replicas_ready) == 0
            unless on (pool) (
              max by (pool) (penstock_autoscaler_replicas_decided) == 0
              and on (pool) max by (pool) (penstock_autoscaler_mode{mode="active"}) == 1
              unless on (pool) max by (pool) (penstock_queue_waiting) > 0
            )
        """,
        pending_minutes=5,
        meaning=(
            "Requests wait until their limit and then fail. A pool that its autoscaler has put to sleep raises no "
            "alert, unless requests wait for it."
        ),
        steps=(
            Step(
                "penstock status",
                (
                    ("no replica", "none has started: go on with the logs"),
                    ("a replica whose link is down", "routers don't reach its port: look at network and certificates"),
                    ("a replica that is draining", "its successor has not started: go on with the logs"),
                ),
            ),
            Step(
                "penstock logs ray --level warning --since 1h",
                (
                    ("the engine loads its weights", "wait; this takes minutes"),
                    ("the engine's start fails", "the last lines have the reason: memory, the model, a driver"),
                    (
                        "nothing about a replica",
                        "there is no free GPU; on Kubernetes worker pods are Pending: `kubectl describe rayservice`. "
                        "After Ray's initializing timeout the RayService must be made anew",
                    ),
                ),
            ),
            Step(
                "penstock doctor",
                (
                    ("something bad", "correct what it names: GPUs, memory, the model's files"),
                    ("all is good", "the reason is in the engine: its log has the first error"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockErrors",
        severity=Severity.CRITICAL,
        summary="{{ $value | humanizePercentage }} of calls fail because of faults in the cluster.",
        expr="""
            (
              sum(rate(penstock_router_calls_total{code=~"INTERNAL|UNKNOWN|ABORTED|UNAVAILABLE|DATA_LOSS"}[5m]))
              - (sum(rate(penstock_router_errors_total{reason="TAKEN_OVER"}[5m])) or vector(0))
            )
            / sum(rate(penstock_router_calls_total[5m])) > 0.01
        """,
        pending_minutes=10,
        meaning=(
            "More than one call in a hundred fails, and not by its client's fault. A call that another call of the "
            "same client took over does not count. The dashboard 'Golden signals' splits them by reason: "
            "QUEUE_UNAVAILABLE points to Redis, NO_REPLICA and GENERATION_FAILED to replicas, INTERNAL to the router."
        ),
        steps=(
            Step(
                "penstock status",
                (
                    ("queue not reachable", "Redis is away, full or blocked: look at Redis and its memory"),
                    ("no ready replica", "follow the runbook of PenstockNoReplica"),
                    ("everything is ready", "go on with the logs"),
                ),
            ),
            Step(
                _LOGS_OF_ROUTERS,
                (
                    ("router.incident", "a fault in the router: report it with this record"),
                    ("many SHUTTING_DOWN", "a rollout's drain is too short: raise router.drain_s"),
                    ("lost attempts", "follow the runbook of PenstockLostAttempts"),
                ),
            ),
            Step(
                "penstock explain --missed --all-tenants",
                (
                    ("one pool", "its replicas are at fault: look at their logs"),
                    ("all pools", "Redis or the network is at fault"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockRefusals",
        severity=Severity.WARNING,
        summary="{{ $value | humanizePercentage }} of requests are refused for lack of room or time.",
        expr=f"""
            sum(rate(penstock_router_errors_total{{
              method=~"{REQUESTS}",
              reason=~"QUEUE_FULL|NOT_IN_TIME|QUEUE_TIMEOUT"
            }}[10m]))
            / sum(rate(penstock_router_calls_total{{
              method=~"{REQUESTS}"
            }}[10m])) > 0.1
        """,
        pending_minutes=10,
        meaning=(
            "More requests come than the pools serve, or clients allow less time than a request takes. The dashboard "
            "'Fairness' splits them by reason. QUEUE_FULL: the line is at queue.max_waiting or at the tenant's own "
            "limit. NOT_IN_TIME: the estimated wait is longer than the client's limit, or than the SLO where the pool "
            "gives up requests. QUEUE_TIMEOUT: the real wait was longer."
        ),
        steps=(
            Step(
                "penstock status",
                (
                    ("many requests wait, and replicas run at their limit", "go on with `penstock decisions`"),
                    ("few requests wait", "clients allow too little time: raise their max_queue_wait or deadline"),
                ),
            ),
            Step(
                "penstock decisions",
                (
                    ("max_replicas or budget limits the number", "raise autoscale.max_replicas, or the budget"),
                    ("replicas start", "wait for them; on Kubernetes look for worker pods that are Pending"),
                    ("there are no decisions", "no autoscaler runs: raise `replicas` of the pool"),
                ),
            ),
            Step(
                "penstock usage --all-tenants",
                (("one tenant has most of the tokens", "give it a quota, or a smaller weight"),),
            ),
        ),
    ),
    Alert(
        name="PenstockSlowStart",
        severity=Severity.WARNING,
        summary=(
            "One in a hundred requests of class {{ $labels.class }} of pool {{ $labels.pool }} waits longer than 30 s."
        ),
        expr="""
            histogram_quantile(
              0.99, sum by (le, pool, class) (rate(penstock_router_queue_seconds_bucket{class!="batch"}[10m]))
            ) > 30
        """,
        pending_minutes=15,
        meaning="More requests come than the pool serves. Batch work may wait, and raises no alert.",
        steps=(
            Step(
                "penstock decisions --pool {{ $labels.pool }}",
                (
                    ("max_replicas or budget limits the number", "raise autoscale.max_replicas, or the budget"),
                    ("replicas start", "wait for them; on Kubernetes look for worker pods that are Pending"),
                    ("there are no decisions", "no autoscaler runs: raise `replicas` of the pool"),
                ),
            ),
            Step(
                "penstock usage --all-tenants",
                (
                    ("one tenant has most of the tokens", "give it a quota, or a smaller weight"),
                    ("the tenants are as usual", "the pool is too small for its load"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockLeaseLost",
        severity=Severity.CRITICAL,
        summary="Router {{ $labels.instance }} has no lease in pool {{ $labels.pool }}.",
        expr="min by (pool, instance) (penstock_router_lease_held) == 0",
        pending_minutes=1,
        meaning="The router starts no new requests. Its streams continue.",
        steps=(
            Step(
                "penstock status",
                (
                    (
                        "queue not reachable",
                        "Redis is away, failing over, full (noeviction refuses writes) or blocked by a network policy",
                    ),
                    ("other routers only", "this one hangs, or lacks CPU: restart it, and clients resume elsewhere"),
                ),
            ),
            Step(
                "penstock logs redis",
                (
                    ("nothing new", "Redis has stopped: start it; routers submit again what waits"),
                    ("a failed write or a full disk", "give it room; new requests are refused until then"),
                ),
            ),
            Step(
                "penstock doctor",
                (
                    ("Redis is bad", "correct what it says of Redis: address, password, memory, policy"),
                    ("Redis is good", "the router hangs, or lacks CPU: restart it"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockCellAway",
        severity=Severity.WARNING,
        summary="Router {{ $labels.instance }} does not reach {{ $value }} of the cells of pool {{ $labels.pool }}.",
        expr="max by (pool, instance) (penstock_router_cells_away) > 0",
        pending_minutes=2,
        meaning=(
            "New requests go to the other cells. What waits in these waits on. Calls with a key, or of a tenant with a "
            "rate, a budget or a bound, fail with UNAVAILABLE where their home is there. The autoscaler removes no "
            "replica of the pool, and its roll-out stands still."
        ),
        steps=(
            Step(
                "penstock logs redis",
                (
                    ("a server that has stopped", "start it, or let its follower take over"),
                    ("a slot without a server", "give it one: `redis-cli --cluster fix HOST:PORT`"),
                    (
                        "a server that is lost for good, without a follower",
                        "give its slots to the others: `redis-cli --cluster fix HOST:PORT "
                        "--cluster-fix-with-unreachable-masters`. The pool goes on by itself, without what only that "
                        "server had. Fewer `cells` don't help: the lost one is looked at all the same",
                    ),
                    ("nothing new", "go on with the logs of routers"),
                ),
            ),
            Step(
                "penstock logs router-0 --level warning --since 1h",
                (
                    ("cell.away at one router", "the network between this router and that server is at fault"),
                    ("cell.away at all routers", "that server hangs, is full or is blocked by a network policy"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockEventLoopSlow",
        severity=Severity.WARNING,
        summary=(
            "The event loop of router {{ $labels.instance }} stalls for {{ $value | humanizePercentage }} of the time."
        ),
        expr="rate(penstock_router_loop_stalled_seconds_total[10m]) > 0.02",
        pending_minutes=5,
        meaning="Its CPU limit throttles the router, or the node is too full. Tokens reach clients late.",
        steps=(
            Step(
                "penstock status",
                (
                    ("several routers", "run one more, or raise the CPU limit of a router"),
                    ("one router", "raise router.processes, one per core at most; on Kubernetes router.replicas"),
                ),
            ),
        ),
    ),
    Alert(
        name="PenstockIssuerAway",
        severity=Severity.WARNING,
        summary="Router {{ $labels.instance }} gets no keys from issuer {{ $labels.issuer }}.",
        expr="""
            sum by (issuer, instance) (increase(penstock_router_issuer_fetches_total{outcome="bad"}[10m])) > 0
            unless on (issuer, instance)
            sum by (issuer, instance) (increase(penstock_router_issuer_fetches_total{outcome="good"}[10m])) > 0
        """,
        pending_minutes=5,
        meaning=(
            "The keys that the router knows stay in force for auth.jwt.*.keep_s, a day by default. Then, and from the "
            "start of a router that never got them, all tokens of this issuer are refused with ISSUER_UNAVAILABLE. "
            "Tokens with a new key of the issuer are refused already. API keys and other issuers are not concerned."
        ),
        steps=(
            Step(
                "penstock logs router-0 --level warning --since 1h",
                (
                    ("issuer.away with a name or an address", "DNS, the network policy or a proxy is in the way"),
                    ("issuer.away with a certificate", "name its authority in auth.jwt.*.ca_file"),
                    ("issuer.away with a status", "the issuer refuses: look at it, and at auth.jwt.*.token_file"),
                ),
            ),
            Step(
                "penstock config check",
                (("something about auth.jwt", "correct it, and restart the routers one by one"),),
            ),
        ),
    ),
    Alert(
        name="PenstockBadFile",
        severity=Severity.WARNING,
        summary="Router {{ $labels.instance }} could not load a changed {{ $labels.file }}.",
        expr='increase(penstock_router_file_reloads_total{outcome="bad"}[15m]) > 0',
        meaning="The last good content stays in force, so new keys or certificates have no effect.",
        steps=(
            Step(
                "penstock keys check",
                (
                    ("a mistake and its line", "correct the file; routers load it by themselves"),
                    ("no mistake", "it is a certificate, or the file cannot be read: go on with the logs"),
                ),
            ),
            Step(_LOGS_OF_ROUTERS, (("file.bad", "the record has the file and the reason: correct the file"),)),
        ),
    ),
)
