"""The page of all alerts with their runbooks, from `cluster.alerts`."""

from __future__ import annotations

import re

from cluster.alerts.alert import Alert
from cluster.alerts.burn_rates import BURN_RATES, OUTAGE, threshold
from cluster.alerts.rules_file import GROUPS
from reference.markdown import code, page, prose, table

INTRO = """`penstock config alerts` prints these rules for Prometheus, and the Helm chart installs them: see
[Use dashboards and alerts](../README.md#use-dashboards-and-alerts). Each alert carries its runbook. A runbook is a list
of commands, and of what to do by what each of them shows."""
TITLES = {
    "penstock.service": "Service",
    "penstock.slo": "Burn rates",
    "penstock.replicas": "Replicas",
    "penstock.autoscaler": "Autoscaler",
}
BURN_TEXT = f"""The error budget is the part of a class' choices that may miss their SLO: one less the attainment of the
operating point. At a burn rate of 1 it lasts for 30 days. An alert needs its burn rate in a long and in a short window.
It compares with the attainment in force, so a change by `penstock operating-point` needs no new rules. A threshold is
never above {OUTAGE:.0%}: a target of 93 % or less has so large a budget that an outage could not burn it fast enough.
Windows and rates are those of Google's SRE workbook."""
_TEMPLATE = re.compile(r"\{\{ (?:\$value|\$labels\.(\w+))(?: \| \w+)? \}\}")


def render() -> str:
    """Return the page."""
    return page("Alerts", INTRO, *(_group(name, alerts) for name, alerts in GROUPS.items()))


def _group(name: str, alerts: tuple[Alert, ...]) -> str:
    text = [f"## {TITLES[name]}"]
    if name == "penstock.slo":
        text += [prose(BURN_TEXT), _burn_table()]
    return "\n\n".join((*text, *(_section(alert) for alert in alerts)))


def _burn_table() -> str:
    head = ["alert", "burn rate", "windows", "gone by then", "threshold at 99 %", "at 95 %"]
    rows = [
        [
            code(f"PenstockSloBurn{rate.name}"),
            f"{rate.factor:g}",
            f"{rate.long} and {rate.short}",
            f"{rate.used} of the budget",
            *(f"{threshold(rate, attainment):.4g}" for attainment in (0.99, 0.95)),
        ]
        for rate in BURN_RATES
    ]
    return table(head, rows)


def _section(alert: Alert) -> str:
    wait = f", after {alert.pending_minutes} minutes" if alert.pending_minutes else ""
    parts = [
        f"### {alert.name}",
        f"{alert.severity.value.capitalize()}{wait}. {prose(_plain(alert.summary))}",
        prose(alert.meaning),
        f"```text\n{alert.query}\n```",
    ]
    for step in alert.steps:
        rows = [[prose(shown), prose(action)] for shown, action in step.findings]
        parts += [f"```console\n$ {_plain(step.command)}\n```", table(["it shows", "then"], rows)]
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    """Replace Prometheus' templates by what they stand for."""
    return _TEMPLATE.sub(lambda found: (found[1] or "part").upper(), text)
