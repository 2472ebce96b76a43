"""Metrics of a router. Counters change once per request, never per token."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.queue.entries import Settlement
from cluster.telemetry.metrics import LATENCY_BUCKETS
from cluster.telemetry.tenant_labels import TenantLabels
from cluster.trust.secret import SECRET_FILE
from cluster.trust.tls import LINK_TLS, ROUTER_TLS
from penstock.models import RequestClass
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.steps import Relief
from penstock.wire import duration_from_wire
from router.dispatch.pool import Pool
from router.generation.choice import Choice
from router.generation.generation import Generation
from router.identity.authenticator import KEYS_FILE
from router.routing import Route

Series = TypeVar("Series", Counter, Histogram)


class RouterMetrics:
    """Metrics of one router, and their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = self._counter(
            "penstock_router_calls",
            "Calls that ended, by method and name of the gRPC status; CANCELLED also where the client left.",
            ["method", "code"],
        )
        self._errors = self._counter("penstock_router_errors", "Calls that failed, by reason.", ["method", "reason"])
        self._choices = self._counter(
            "penstock_router_choices",
            "Choices that ended on this router, waiting or running, by reason; refused ones do not count.",
            ["pool", "reason"],
        )
        self._tokens = self._counter(
            "penstock_router_tokens",
            "Tokens of requests that ended, for any reason, by kind; the same as in the ledger.",
            ["pool", "kind"],
        )
        self._tenant_tokens = self._counter(
            "penstock_router_tenant_tokens",
            "Prompt and output tokens of requests that ended, for any reason, by tenant.",
            ["pool", "tenant"],
        )
        self._tenants = TenantLabels()
        self._reloads = self._counter(
            "penstock_router_file_reloads",
            "Changes of files of keys, certificates and secrets; after a bad one the last good content stays in force.",
            ["file", "outcome"],
        )
        for file in (KEYS_FILE, ROUTER_TLS, LINK_TLS, SECRET_FILE):
            self.watch_file(file)
        self._job_items = self._counter(
            "penstock_router_job_items", "Items of jobs whose result this router stored.", ["pool", "outcome"]
        )
        self._alias_requests = self._counter(
            "penstock_alias_requests",
            "Requests of aliases that a pool let in, by the model and adapter that serve them, and by way: target, "
            "fallback or shadow.",
            ["alias", "model", "adapter", "way"],
        )
        self._alias_shadow_errors = self._counter(
            "penstock_alias_shadow_errors",
            "Copies of requests that failed, or were not sent because too many were in flight, by reason.",
            ["alias", "model", "reason"],
        )
        self._queue = self._histogram("penstock_router_queue_seconds", "Acceptance to the grant of a slot.")
        self._ttft = self._histogram("penstock_router_ttft_seconds", "Arrival of the call to the first token.")
        self._itl = self._histogram("penstock_router_inter_token_seconds", "Mean inter-token latency per choice.")
        self._eta_error = self._histogram(
            "penstock_router_eta_error_seconds", "Difference between the wait and its first estimate."
        )
        self._total = self._histogram("penstock_router_request_seconds", "Arrival of the call to the end.")

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Callable[..., Counter]:
        return _series(Counter(name, text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str) -> Callable[..., Histogram]:
        return _series(Histogram(name, text, ["pool", "class"], buckets=LATENCY_BUCKETS, registry=self.registry))

    def watch(self, pools: Mapping[str, Pool], streams: Callable[[], int]) -> None:
        """Read the pools at every scrape, and count the choices that end in them."""
        self.registry.register(_Live(pools, streams))
        for pool in pools.values():
            self.count(pool)

    def count(self, pool: Pool) -> None:
        """Count the choices that end in a pool."""
        pool.on_settled = partial(self.settled, pool.name)

    def call(self, method: str, code: str, reason: str | None) -> None:
        """Count a call that ended."""
        self._calls(method, code).inc()
        if reason is not None:
            self._errors(method, reason).inc()

    def job_item(self, pool: str, failed: bool) -> None:
        """Count an item of a job whose result was stored."""
        self._job_items(pool, "error" if failed else "ok").inc()

    def alias_request(self, alias: str, route: Route) -> None:
        """Count a request of an alias that was let in."""
        self._alias_requests(alias, route.pool, route.adapter, route.kind.value).inc()

    def alias_shadow_failed(self, alias: str, route: Route, reason: str) -> None:
        """Count a copy that failed or was not sent."""
        self._alias_shadow_errors(alias, route.pool, reason).inc()

    def watch_file(self, file: str) -> None:
        """Count the changes of a file from 0: Prometheus sees no increase in a series that begins with 1."""
        for outcome in ("good", "bad"):
            self._reloads(file, outcome)

    def reloaded(self, file: str, good: bool) -> None:
        """Count a changed file. Safe to call from any thread."""
        self._reloads(file, "good" if good else "bad").inc()

    def settled(self, pool: str, choice: Choice, used: Settlement | None) -> None:
        """Count a choice that is over, once, when its usage goes to the ledger: also one whose client has left."""
        labels = (pool, choice.entry.request_class.name.lower())
        # A choice without an end was taken over from a lost router, and could not be resumed.
        reason = types.FINISH_REASON_ERROR if choice.end is None else choice.end.finish_reason
        self._choices(pool, _reason(reason)).inc()
        if choice.wait.predicted_s is not None and choice.wait.waited_s is not None:
            self._eta_error(*labels).observe(abs(choice.wait.predicted_s - choice.wait.waited_s))
        for attempt in choice.metering.attempts:
            self._queue(*labels).observe(attempt.queue_s)
            if attempt.end.output_tokens > 1:
                self._itl(*labels).observe(attempt.end.decode_s / (attempt.end.output_tokens - 1))
        if used is not None:
            self._tokens(pool, "prompt").inc(used.prompt_tokens)
            self._tokens(pool, "output").inc(used.output_tokens)
            self._tokens(pool, "cached").inc(used.cached_tokens)
            tenant = self._tenants.of(choice.entry.tenant)
            self._tenant_tokens(pool, tenant).inc(used.prompt_tokens + used.output_tokens)

    def left(self, generation: Generation) -> None:
        """Record the time to first token of a call that is over, for any reason."""
        # A call that took over a running attempt owes its first token to another call.
        firsts = [
            each.first_token_at for each in generation.choices if each.first_token_at and each.wait.waited_s is not None
        ]
        if firsts:
            self._ttft(*_labels(generation)).observe(min(firsts) - generation.choices[0].wait.arrived_at)

    def finished(self, generation: Generation, end: api.Finished) -> None:
        """Record the duration of a request that ended well."""
        self._total(*_labels(generation)).observe(duration_from_wire(end.receipt.total_time))


def _series(metric: Series) -> Callable[..., Series]:
    """Return a cached lookup of series by labels: the library itself converts labels and takes a lock each time."""
    return functools.cache(metric.labels)


def _labels(generation: Generation) -> tuple[str, str]:
    return generation.pool, generation.choices[0].entry.request_class.name.lower()


def _reason(reason: types.FinishReason.ValueType) -> str:
    """Return the reason's name in the metrics of replicas."""
    return types.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


class _Stalls:
    """Time that the event loop stood still. The leases of all pools measure the same loop, so their values are not
    added up. The sum goes on where pools come and go: Prometheus takes a smaller one for that of a new process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}
        self._before: dict[str, float] | None = None
        """What there was before each pool began to measure; None before the first look."""
        self._total = 0.0

    def total(self, measured: Mapping[str, float]) -> float:
        """Return the sum of all times, by what each pool has measured since it came. Safe to call from any thread."""
        with self._lock:
            if self._before is None:
                self._before, self._last = dict.fromkeys(measured, 0.0), dict(measured)
            same = {name for name, value in measured.items() if value >= self._last.get(name, float("inf"))}
            self._total = max(self._total, *(measured[name] + self._before[name] for name in same), 0.0)
            if len(same) < len(measured) or measured.keys() != self._last.keys():
                self._before = {name: self._total - value for name, value in measured.items()}
            self._last = dict(measured)
            return self._total


class _Live(Collector):
    def __init__(self, pools: Mapping[str, Pool], streams: Callable[[], int]) -> None:
        self._pools = pools
        self._stalls = _Stalls()
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        streams = GaugeMetricFamily("penstock_router_open_calls", "Open generations on this router.")
        streams.add_metric([], self._streams())
        yield streams
        waiting = GaugeMetricFamily(
            "penstock_queue_waiting", "Waiting requests of all routers.", labels=["pool", "class"]
        )
        running = GaugeMetricFamily("penstock_queue_running", "Requests with a slot, of all routers.", labels=["pool"])
        ready = GaugeMetricFamily("penstock_replicas_ready", "Replicas that take work.", labels=["pool"])
        linked = GaugeMetricFamily("penstock_router_links_up", "Replicas this router has a link to.", labels=["pool"])
        held = GaugeMetricFamily("penstock_router_lease_held", "1 while this router's lease is held.", labels=["pool"])
        lag = GaugeMetricFamily(
            "penstock_router_loop_lag_seconds", "Longest time that the event loop stood still, since the start."
        )
        lag.add_metric([], max((pool.longest_lag_s for pool in self._pools.values()), default=0.0))
        yield lag
        stalled = CounterMetricFamily(
            "penstock_router_loop_stalled_seconds",
            "Time that the event loop stood still, in stretches of more than a quarter of a second.",
        )
        stalled.add_metric([], self._stalls.total({name: pool.stalled_s for name, pool in self._pools.items()}))
        yield stalled
        relief = GaugeMetricFamily(
            "penstock_router_relief",
            "1 for what the pool gives up because it lacks replicas.",
            labels=["pool", "relief"],
        )
        budgets = GaugeMetricFamily(
            "penstock_router_tenant_budget_used_ratio",
            "Used part of tenants' budgets of which at least warn_at is used, as of their last request here; 1 or more "
            "refuses requests.",
            labels=["pool", "tenant", "budget"],
        )
        for name, pool in self._pools.items():
            for (tenant, budget), share in pool.admission.budgets.warned.items():
                budgets.add_metric([name, tenant, budget], share)
        yield budgets
        for name, pool in self._pools.items():
            for each in Relief:
                relief.add_metric([name, each.value], float(each is pool.admission.relief))
            if pool.beat is not None:
                for number, label in enumerate(("interactive", "standard", "batch")):
                    waiting.add_metric([name, label], pool.beat.waiting[number])
                running.add_metric([name], pool.beat.running)
            ready.add_metric([name], pool.replicas.ready())
            linked.add_metric([name], len(pool.replicas.connected()))
            held.add_metric([name], float(pool.available))
        yield from (waiting, running, ready, linked, held, relief)
        yield from self._promises()
        yield from self._affinity()
        yield from self._troubles()

    def _promises(self) -> Iterable[Metric]:
        judged = CounterMetricFamily(
            "penstock_router_slo_choices",
            "Choices that ended and had an SLO, by outcome: met; ttft, itl or ttft_and_itl where those were missed; "
            "not_served for choices that were refused because there was no room, or failed. ITL is the choice's mean.",
            labels=["pool", "class", "outcome"],
        )
        for name, pool in self._pools.items():
            for (request_class, verdict), count in pool.admission.demand.verdicts.items():
                judged.add_metric([name, request_class.name.lower(), verdict.value], count)
        yield judged
        promised = GaugeMetricFamily(
            "penstock_router_slo_attainment",
            "Part of a class' choices that the operating point in force promises to serve within the SLO. A class "
            "without an SLO has no series.",
            labels=["pool", "class"],
        )
        for name, pool in self._pools.items():
            point = pool.admission.demand.point
            for each in RequestClass:
                if not point.of(each).empty:
                    promised.add_metric([name, each.name.lower()], point.attainment)
        yield promised

    def _affinity(self) -> Iterable[Metric]:
        affinity = CounterMetricFamily(
            "penstock_router_affinity_grants",
            "Grants on a replica that the request preferred (hit), on another one (miss), or of a request without a "
            "preference (none). The benefit is in penstock_router_tokens: cached over prompt.",
            labels=["pool", "outcome"],
        )
        known = GaugeMetricFamily(
            "penstock_router_affinity_blocks", "Beginnings of prompts that are remembered.", labels=["pool"]
        )
        for name, pool in self._pools.items():
            outcomes = {"hit": pool.affinity.hits, "miss": pool.affinity.misses, "none": pool.affinity.indifferent}
            for outcome, count in outcomes.items():
                affinity.add_metric([name, outcome], count)
            known.add_metric([name], pool.affinity.known_blocks)
        yield from (affinity, known)

    def _troubles(self) -> Iterable[Metric]:
        lost = CounterMetricFamily(
            "penstock_router_lost_attempts",
            "Attempts lost to a failed replica or engine; at most router.max_attempts per choice.",
            labels=["pool", "failure"],
        )
        paused = GaugeMetricFamily(
            "penstock_router_replicas_paused", "Replicas that failed too often and get no work.", labels=["pool"]
        )
        orphaned = CounterMetricFamily(
            "penstock_router_stray_attempts", "Attempts stopped because their output had no receiver.", labels=["pool"]
        )
        changes = CounterMetricFamily(
            "penstock_router_store_changes",
            "Times that this router found Redis restarted, failed over or emptied.",
            labels=["pool"],
        )
        again = CounterMetricFamily(
            "penstock_router_submitted_again", "Waiting choices submitted again after a store change.", labels=["pool"]
        )
        mended = CounterMetricFamily(
            "penstock_router_mended",
            "Lasting differences between Redis and this router, by remedy: release, requeue, withdraw, submit, adopt. "
            "Some are normal after a failover or a partition.",
            labels=["pool", "how"],
        )
        unread = GaugeMetricFamily(
            "penstock_router_unread_bytes", "Estimated output that clients have not read.", labels=["pool"]
        )
        slow = CounterMetricFamily(
            "penstock_router_slow_readers", "Choices that ended because their client did not read.", labels=["pool"]
        )
        moves = CounterMetricFamily(
            "penstock_router_cell_moves", "Waiting choices moved to another cell of their pool.", labels=["pool"]
        )
        away = GaugeMetricFamily(
            "penstock_router_cells_away", "Cells of a pool that did not answer the last heartbeat.", labels=["pool"]
        )
        for name, pool in self._pools.items():
            moves.add_metric([name], pool.moves.moved)
            away.add_metric([name], len(pool.cells.seen.away))
            for failure, count in pool.losses.items():
                lost.add_metric([name, failure.value], count)
            paused.add_metric([name], len(pool.replicas.paused()))
            orphaned.add_metric([name], pool.replicas.orphaned_output.aborted)
            changes.add_metric([name], pool.resubmit.changes)
            again.add_metric([name], pool.resubmit.submitted)
            for remedy, count in pool.reconciler.mended.items():
                mended.add_metric([name, remedy.value], count)
            unread.add_metric([name], pool.slow_readers.unread)
            slow.add_metric([name], pool.slow_readers.stopped)
        yield from (lost, paused, orphaned, changes, again, mended, unread, slow, moves, away)
