"""Metrics of callers' credentials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.identity.attempts import Attempts

if TYPE_CHECKING:
    from router.identity.issuers.tokens import Issuer


class IdentityMetrics(Collector):
    """Series about attempts and issuers, read at every scrape."""

    def __init__(self, attempts: Attempts, issuers: Sequence[Issuer]) -> None:
        self._attempts = attempts
        self._issuers = issuers

    def collect(self) -> Iterable[Metric]:
        blocked = CounterMetricFamily(
            "penstock_router_blocked_attempts",
            "Keys and tokens that were not looked at, because their address had sent too many wrong ones.",
        )
        blocked.add_metric([], self._attempts.blocked)
        yield blocked
        fetches = CounterMetricFamily(
            "penstock_router_issuer_fetches",
            "Requests to issuers of tokens for their keys, by outcome.",
            labels=["issuer", "outcome"],
        )
        age = GaugeMetricFamily(
            "penstock_router_issuer_keys_age_seconds",
            "Age of the keys of an issuer of tokens; they are in force for auth.jwt.*.keep_s.",
            labels=["issuer"],
        )
        for issuer in self._issuers:
            for outcome, count in issuer.keys.fetches.items():
                fetches.add_metric([issuer.name, outcome], count)
            if (age_s := issuer.keys.age_s()) is not None:
                age.add_metric([issuer.name], age_s)
        yield from (fetches, age)
