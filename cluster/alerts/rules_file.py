"""The file with all rules, as Prometheus reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from cluster.alerts import autoscaler_alerts, burn_rates, replica_alerts, service_alerts
from cluster.alerts.alert import Alert
from cluster.alerts.burn_rates import BURN_RATES, threshold
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint

GROUPS: Mapping[str, tuple[Alert, ...]] = {
    "penstock.service": service_alerts.ALERTS,
    "penstock.slo": burn_rates.ALERTS,
    "penstock.replicas": replica_alerts.ALERTS,
    "penstock.autoscaler": autoscaler_alerts.ALERTS,
}
"""All alerts, by group."""
_METRIC = re.compile(r"\b(penstock_\w+)(\{?)")


def all_alerts() -> list[Alert]:
    """Return the alerts of all groups."""
    return [alert for alerts in GROUPS.values() for alert in alerts]


def narrowed(query: str, labels: Mapping[str, str]) -> str:
    """Restrict every metric of a query to series with these labels."""
    if not labels:
        return query
    matchers = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())

    def restrict(found: re.Match[str]) -> str:
        return f"{found[1]}{{{matchers}," if found[2] else f"{found[1]}{{{matchers}}}"

    return _METRIC.sub(restrict, query)


def rules_file(header: str, labels: Mapping[str, str] | None = None) -> str:
    """Return the file as YAML.

    Args:
        header: comment at the top, without `#`.
        labels: labels of the series that the rules look at; alerts get them too. Needed where one Prometheus scrapes
            several clusters.
    """
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    lines.append("groups:")
    for group, alerts in GROUPS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            lines += _rule(alert, labels or {})
    return "\n".join(lines) + "\n"


def promises(points: Mapping[str, OperatingPoint]) -> str:
    """Describe what pools promise, and the part of missed choices at which each burn-rate alert fires."""
    lines = []
    for pool, point in points.items():
        for each in RequestClass:
            name = f"pool {pool}, class {each.name.lower()}"
            if point.of(each).empty:
                lines.append(f"{name}: no SLO, so no alert on a burn rate")
                continue
            limits = ", ".join(
                f"{_percent(threshold(rate, point.attainment))} in {rate.long} and {rate.short}" for rate in BURN_RATES
            )
            lines.append(f"{name}: {_percent(point.attainment)} within the SLO; alerts above {limits} missed")
    return "\n".join(lines)


def _rule(alert: Alert, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one rule. JSON's texts are YAML's, too."""
    yield f"      - alert: {alert.name}"
    yield from _text("expr", narrowed(alert.query, labels), "        ")
    if alert.pending_minutes:
        yield f"        for: {alert.pending_minutes}m"
    yield "        labels:"
    for name, value in {"severity": alert.severity.value, **labels}.items():
        yield f"          {name}: {json.dumps(value, ensure_ascii=False)}"
    yield "        annotations:"
    yield from _text("summary", alert.summary, "          ")
    yield from _text("runbook", alert.runbook, "          ")


def _text(name: str, text: str, indent: str) -> Iterator[str]:
    if "\n" not in text:
        yield f"{indent}{name}: {json.dumps(text, ensure_ascii=False)}"
        return
    yield f"{indent}{name}: |-"
    for line in text.splitlines():
        yield f"{indent}  {line}"


def _percent(part: float) -> str:
    return f"{100.0 * part:.4g} %"
