"""Alerts on the rate at which a class uses up its error budget, as Google's SRE workbook describes them.

The budget is the part of the choices that may miss the SLO: one less the attainment. At a burn rate of 1 it lasts for
exactly 30 days. An alert needs its rate in a long window, so that it is no blip, and in a short one, so that it goes
soon after the fault has gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.alerts.alert import Alert, Severity, Step

TARGET = "penstock_router_slo_attainment"
"""Gauge with the attainment in force. Rules compare with it, so a change of the operating point needs no new rules."""
CHOICES = "penstock_router_slo_choices_total"
OUTAGE = 0.9
"""Part of missed choices that is an outage by any target. A target of 0.93 or less has so large a budget that not even
a total outage burns it at 14.4 times the rate."""
RESOLUTION = "0.000000001"
"""Step to which parts are rounded before they are compared. Without it, an attainment of 0.9 gives a budget of a tiny
bit less than 0.1, and choices that miss exactly that budget raise an alert."""


@dataclass(frozen=True, slots=True)
class BurnRate:
    """One alert on a burn rate, with its two windows."""

    name: str
    factor: float
    """Burn rate, in multiples of the one that uses up the budget in 30 days."""
    long: str
    short: str
    """Windows, as PromQL writes durations."""
    used: str
    """Part of the budget of 30 days that is gone when the alert fires, in words."""
    severity: Severity


BURN_RATES = (
    BurnRate("Fast", 14.4, "1h", "5m", "2 % in one hour", Severity.CRITICAL),
    BurnRate("Medium", 6.0, "6h", "30m", "5 % in six hours", Severity.CRITICAL),
    BurnRate("Slow", 1.0, "3d", "6h", "10 % in three days", Severity.WARNING),
)


def threshold(rate: BurnRate, attainment: float) -> float:
    """Return the part of missed choices above which an alert fires."""
    return min(rate.factor * (1.0 - attainment), OUTAGE)


def _missed(window: str) -> str:
    return f"""round(
  sum by (pool, class) (rate({CHOICES}{{outcome!="met"}}[{window}]))
  / sum by (pool, class) (rate({CHOICES}[{window}])),
  {RESOLUTION}
)"""


def _expr(rate: BurnRate) -> str:
    # Routers that learn of a new operating point one after the other differ for seconds: the stricter target counts.
    budget = f"round(1 - max by (pool, class) ({TARGET}), {RESOLUTION})"
    limit = f"clamp_max({rate.factor:g} * {budget}, {OUTAGE:g})"
    return f"{_missed(rate.long)}\n> {limit}\nand\n{_missed(rate.short)}\n> {limit}"


STEPS = (
    Step(
        "penstock top --once --pool {{ $labels.pool }}",
        (
            ("no replica takes work", "follow the runbook of PenstockNoReplica"),
            ("one replica has longer steps or ITL than the others", "look at its node, or end it"),
            ("every replica is full, and requests wait", "go on with `penstock decisions`"),
            ("one tenant has most of the line", "give it a quota, or a smaller weight"),
            ("nothing waits, and the targets are met", "it is over: go on with `penstock explain`"),
        ),
    ),
    Step(
        "penstock explain --missed --all-tenants --pool {{ $labels.pool }}",
        (
            (
                "most have an error",
                "they were not served: follow the runbook of PenstockErrors, or of PenstockRefusals",
            ),
            ("they were late or slow", "take the id of a usual one for the next step"),
            ("nothing", "routers keep no records (router.records.most), or these are too old"),
        ),
    ),
    Step(
        "penstock explain ID",
        (
            ("every replica had a full batch or KV cache", "add replicas: go on with `penstock decisions`"),
            ("another tenant's requests were ahead", "give that tenant a quota, or a smaller weight"),
            ("its replica was lost", "follow the runbook of PenstockLostAttempts"),
            ("steps took longer than usual for their batch", "look at that replica's node and its other processes"),
            ("long prompts, its own or others'", "serve them from a pool of their own, or promise more time"),
            ("Redis did not answer", "follow the runbook of PenstockLeaseLost"),
            ("its client read slowly, or was away", "the cluster is not the reason"),
        ),
    ),
    Step(
        "penstock decisions --pool {{ $labels.pool }}",
        (
            ("max_replicas or budget limits the number", "raise autoscale.max_replicas, or the budget"),
            ("a pause after failed starts", "follow the runbook of PenstockAutoscalerFailedStarts"),
            ("needed is no more than ready", "the number is not the reason"),
            ("there are no decisions", "no autoscaler runs: add replicas by hand (`replicas` of the pool)"),
        ),
    ),
    Step(
        "penstock operating-point --pool {{ $labels.pool }}",
        (
            ("the promise is tighter than the hardware can keep", "change it, with the same command"),
            ("the promise is the agreed one", "add replicas"),
        ),
    ),
)

ALERTS = tuple(
    Alert(
        name=f"PenstockSloBurn{rate.name}",
        severity=rate.severity,
        summary=(
            f"{{{{ $value | humanizePercentage }}}} of the choices of class {{{{ $labels.class }}}} in pool "
            f"{{{{ $labels.pool }}}} missed their SLO in the last {rate.long}."
        ),
        expr=_expr(rate),
        meaning=(
            f"The class uses up its error budget at {rate.factor:g} times the rate that lasts for 30 days, or faster: "
            f"{rate.used}. The panel 'Promises missed' of the dashboard 'Golden signals' has the outcomes. ttft: the "
            "first token came too late. itl: the tokens came too slowly. not_served: refused because there was no "
            "room, or failed. A class without an SLO raises no alert."
        ),
        steps=STEPS,
    )
    for rate in BURN_RATES
)
