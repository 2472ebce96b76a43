"""Panels of dashboards, and the PromQL that they are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cluster.alerts.burn_rates import CHOICES, TARGET

NAMESPACE = 'namespace=~"$namespace"'
"""Selector of namespaces, as a Prometheus may have several releases. "All" also matches a missing label, outside
Kubernetes.
"""
POOL = 'pool=~"$pool"'
WINDOW = "[$__rate_interval]"
_METRIC = r"\b((?:penstock|gen_ai_(?:client|server))_\w+)"


@dataclass(frozen=True)
class Panel:
    """Graph with its PromQL by legend."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    text: str = ""
    """Description: how to read the graph."""
    stack: bool = field(default=False)

    @property
    def scoped(self) -> dict[str, str]:
        """The same queries for the chosen namespaces."""
        return {legend: in_namespaces(query) for legend, query in self.queries.items()}


def in_namespaces(query: str) -> str:
    """Restrict every metric of a query to the chosen namespaces."""
    narrowed = re.sub(rf"{_METRIC}\{{", rf"\1{{{NAMESPACE},", query)
    return re.sub(rf"{_METRIC}(?![\w{{])", rf"\1{{{NAMESPACE}}}", narrowed)


def rate(metric: str, by: str = "pool", where: str = "") -> str:
    """Return the growth of a counter per second. `where` restricts it further."""
    selector = f"{POOL},{where}" if where else POOL
    return f"sum by ({by}) (rate({metric}{{{selector}}}{WINDOW}))"


def burn_rate(window: str) -> str:
    """Return the rate at which a class uses up its error budget over a window; 1 makes it last for 30 days."""
    missed, all_choices = (
        f"sum by (pool, class) (rate({CHOICES}{{{selector}}}[{window}]))"
        for selector in (f'{POOL},outcome!="met"', POOL)
    )
    return f"{missed} / {all_choices} / (1 - max by (pool, class) ({TARGET}{{{POOL}}}))"


def quantile(metric: str, part: float, by: str = "pool") -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({part}, sum by (le, {by}) (rate({metric}_bucket{{{POOL}}}{WINDOW})))"


def quantiles(metric: str) -> dict[str, str]:
    """Return the median, the 95th and the 99th percentile, by legend."""
    return {f"{{{{pool}}}} p{int(q * 100)}": quantile(metric, q) for q in (0.5, 0.95, 0.99)}


def by_class(metric: str, high: float = 0.99) -> dict[str, str]:
    """Return the median and a high percentile of each class, by legend. Each class has its own SLO."""
    return {f"{{{{pool}}}} {{{{class}}}} p{int(q * 100)}": quantile(metric, q, "pool, class") for q in (0.5, high)}


def per_hour(metric: str, by: str = "pool, direction") -> str:
    """Return the growth of a counter per hour."""
    return f"3600 * {rate(metric, by)}"


def highest(metric: str, by: str = "pool") -> str:
    """Return a gauge that several processes export."""
    return f"max by ({by}) ({metric}{{{POOL}}})"
