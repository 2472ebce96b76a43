"""What a router exports. Counters move once per request, never per token."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.queue.entries import Settlement
from cluster.telemetry.metrics import LATENCY_BUCKETS
from cluster.trust.tls import ROUTER_TLS
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.steps import Relief
from penstock.wire import duration_from_wire
from router.dispatch.pool import Pool
from router.generation.choice import Choice
from router.generation.generation import Generation
from router.identity.authenticator import KEYS_FILE

MAX_TENANTS = 100
"""Tenants with a series of their own; those that come later share one. The ledger has them all."""
OTHER_TENANTS = "(other)"

Series = TypeVar("Series", Counter, Histogram)


class RouterMetrics:
    """Owns the router's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = self._counter(
            "penstock_router_calls",
            "Calls that ended, by method and the name of their gRPC status; CANCELLED also where the client left.",
            ["method", "code"],
        )
        self._errors = self._counter("penstock_router_errors", "Calls that failed, by reason.", ["method", "reason"])
        self._choices = self._counter(
            "penstock_router_choices",
            "Choices that ended here, in line or running, by reason; refused ones are not among them.",
            ["pool", "reason"],
        )
        self._tokens = self._counter(
            "penstock_router_tokens",
            "Tokens of requests that ended, however they did, by kind; the same as in the ledger.",
            ["pool", "kind"],
        )
        self._tenant_tokens = self._counter(
            "penstock_router_tenant_tokens",
            "Prompt and output tokens of requests that ended, however they did, by tenant.",
            ["pool", "tenant"],
        )
        self._tenants: set[str] = set()
        self._reloads = self._counter(
            "penstock_router_file_reloads",
            "Changes of keys and certificate files that were seen; bad ones left the last good content in force.",
            ["file", "outcome"],
        )
        for file, outcome in itertools.product((KEYS_FILE, ROUTER_TLS), ("good", "bad")):
            # Prometheus sees no increase in a series that begins with its first event.
            self._reloads(file, outcome)
        self._job_items = self._counter(
            "penstock_router_job_items", "Items of jobs that got their result here.", ["pool", "outcome"]
        )
        self._queue = self._histogram("penstock_router_queue_seconds", "Acceptance to the grant of a slot.")
        self._ttft = self._histogram("penstock_router_ttft_seconds", "Arrival of the call to the first token.")
        self._itl = self._histogram("penstock_router_inter_token_seconds", "Mean inter-token latency per choice.")
        self._eta_error = self._histogram(
            "penstock_router_eta_error_seconds", "Difference of the wait and its first estimate."
        )
        self._total = self._histogram("penstock_router_request_seconds", "Arrival of the call to the end.")

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Callable[..., Counter]:
        return _series(Counter(name, text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str) -> Callable[..., Histogram]:
        return _series(Histogram(name, text, ["pool", "class"], buckets=LATENCY_BUCKETS, registry=self.registry))

    def watch(self, pools: Mapping[str, Pool], streams: Callable[[], int]) -> None:
        """Read the pools whenever the endpoint is scraped, and count the choices that end in them."""
        self.registry.register(_Live(pools, streams))
        for name, pool in pools.items():
            pool.on_settled = partial(self.settled, name)

    def call(self, method: str, code: str, reason: str | None) -> None:
        """Count a call that ended."""
        self._calls(method, code).inc()
        if reason is not None:
            self._errors(method, reason).inc()

    def job_item(self, pool: str, failed: bool) -> None:
        """Count an item of a job whose result was stored."""
        self._job_items(pool, "error" if failed else "ok").inc()

    def reloaded(self, file: str, good: bool) -> None:
        """Count a changed file. Called from any thread."""
        self._reloads(file, "good" if good else "bad").inc()

    def _tenant_label(self, tenant: str) -> str:
        if len(self._tenants) < MAX_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else OTHER_TENANTS

    def settled(self, pool: str, choice: Choice, used: Settlement | None) -> None:
        """Count a choice that is over, once, when the ledger gets what it used: also one whose client has left."""
        labels = (pool, choice.entry.request_class.name.lower())
        # Without an end: taken over from a router that is gone, and nobody could go on.
        reason = types.FINISH_REASON_ERROR if choice.end is None else choice.end.finish_reason
        self._choices(pool, _reason(reason)).inc()
        if choice.predicted_wait_s is not None and choice.waited_s is not None:
            self._eta_error(*labels).observe(abs(choice.predicted_wait_s - choice.waited_s))
        for ran in choice.metering.attempts:
            self._queue(*labels).observe(ran.queue_s)
            if ran.end.output_tokens > 1:
                self._itl(*labels).observe(ran.end.decode_s / (ran.end.output_tokens - 1))
        if used is not None:
            self._tokens(pool, "prompt").inc(used.prompt_tokens)
            self._tokens(pool, "output").inc(used.output_tokens)
            self._tokens(pool, "cached").inc(used.cached_tokens)
            tenant = self._tenant_label(choice.entry.tenant)
            self._tenant_tokens(pool, tenant).inc(used.prompt_tokens + used.output_tokens)

    def left(self, generation: Generation) -> None:
        """Note when the first token of a call came that is over, however it ended."""
        # A call that took a running attempt over had its first token from somebody else's work.
        firsts = [
            each.first_token_at for each in generation.choices if each.first_token_at and each.waited_s is not None
        ]
        if firsts:
            self._ttft(*_labels(generation)).observe(min(firsts) - generation.choices[0].arrived_at)

    def finished(self, generation: Generation, end: api.Finished) -> None:
        """Note how long a request took that ended well."""
        self._total(*_labels(generation)).observe(duration_from_wire(end.receipt.total_time))


def _series(metric: Series) -> Callable[..., Series]:
    """Return what finds the series of some labels: the library makes strings of them and takes a lock each time."""
    return functools.cache(metric.labels)


def _labels(generation: Generation) -> tuple[str, str]:
    return generation.pool, generation.choices[0].entry.request_class.name.lower()


def _reason(reason: types.FinishReason.ValueType) -> str:
    """Return the word that replicas have for it."""
    return types.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


class _Live(Collector):
    def __init__(self, pools: Mapping[str, Pool], streams: Callable[[], int]) -> None:
        self._pools = pools
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        streams = GaugeMetricFamily("penstock_router_open_calls", "Generations that are open on this router.")
        streams.add_metric([], self._streams())
        yield streams
        waiting = GaugeMetricFamily(
            "penstock_queue_waiting", "Waiting requests, all routers.", labels=["pool", "class"]
        )
        running = GaugeMetricFamily("penstock_queue_running", "Requests with a slot, all routers.", labels=["pool"])
        ready = GaugeMetricFamily("penstock_replicas_ready", "Replicas that take work.", labels=["pool"])
        linked = GaugeMetricFamily("penstock_router_links_up", "Replicas this router is linked to.", labels=["pool"])
        held = GaugeMetricFamily("penstock_router_lease_held", "1 while this router's lease is held.", labels=["pool"])
        lag = GaugeMetricFamily(
            "penstock_router_loop_lag_seconds", "The longest that the event loop stood still, since start."
        )
        lag.add_metric([], max((pool.longest_lag_s for pool in self._pools.values()), default=0.0))
        yield lag
        # Every pool's lease asks the same loop, so they are not added up.
        stalled = CounterMetricFamily(
            "penstock_router_loop_stalled_seconds",
            "How long the event loop stood still, in stretches of more than a quarter of a second.",
        )
        stalled.add_metric([], max((pool.stalled_s for pool in self._pools.values()), default=0.0))
        yield stalled
        relief = GaugeMetricFamily(
            "penstock_router_relief", "1 for what the pool gives up for want of replicas.", labels=["pool", "relief"]
        )
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
            "Choices that ended and were promised an SLO, by what became of it: met, ttft, itl, ttft_and_itl, or "
            "not_served for those that were refused for want of room or failed. ITL is the mean of the choice.",
            labels=["pool", "class", "outcome"],
        )
        for name, pool in self._pools.items():
            for (request_class, verdict), count in pool.admission.demand.verdicts.items():
                judged.add_metric([name, request_class.name.lower(), verdict.value], count)
        yield judged

    def _affinity(self) -> Iterable[Metric]:
        affinity = CounterMetricFamily(
            "penstock_router_affinity_grants",
            "Grants on a replica that the request preferred (hit), on another one (miss), or of a request without a "
            "preference (none). What it brings: penstock_router_tokens, cached over prompt.",
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
            "Attempts that were lost to a failing replica or engine; up to router.max_attempts per choice.",
            labels=["pool", "failure"],
        )
        paused = GaugeMetricFamily(
            "penstock_router_replicas_paused", "Replicas that failed so often that they get no work.", labels=["pool"]
        )
        strays = CounterMetricFamily(
            "penstock_router_stray_attempts", "Attempts stopped because their output had no receiver.", labels=["pool"]
        )
        changes = CounterMetricFamily(
            "penstock_router_store_changes",
            "Times that Redis was found restarted, failed over or emptied.",
            labels=["pool"],
        )
        again = CounterMetricFamily(
            "penstock_router_submitted_again", "Waiting choices put in line again after that.", labels=["pool"]
        )
        mended = CounterMetricFamily(
            "penstock_router_mended",
            "Differences between Redis and this router that stayed, by what was done: release, requeue, withdraw, "
            "submit, adopt. After a failover or a partition some are to be expected.",
            labels=["pool", "how"],
        )
        unread = GaugeMetricFamily(
            "penstock_router_unread_bytes", "Output that clients have not read, estimated.", labels=["pool"]
        )
        slow = CounterMetricFamily(
            "penstock_router_slow_readers", "Choices that ended because nobody read their output.", labels=["pool"]
        )
        for name, pool in self._pools.items():
            for failure, count in pool.losses.items():
                lost.add_metric([name, failure.value], count)
            paused.add_metric([name], len(pool.replicas.paused()))
            strays.add_metric([name], pool.replicas.orphaned_output.aborted)
            changes.add_metric([name], pool.resubmit.changes)
            again.add_metric([name], pool.resubmit.submitted)
            for remedy, count in pool.reconciler.mended.items():
                mended.add_metric([name, remedy.value], count)
            unread.add_metric([name], pool.slow_readers.unread)
            slow.add_metric([name], pool.slow_readers.stopped)
        yield from (lost, paused, strays, changes, again, mended, unread, slow)
