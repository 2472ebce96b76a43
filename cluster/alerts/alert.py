"""An alert and its runbook."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from textwrap import dedent


class Severity(enum.StrEnum):
    """How soon a person must act."""

    CRITICAL = "critical"
    """At once."""
    WARNING = "warning"
    """Within the day."""
    INFO = "info"
    """When there is time."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a runbook, and what to do by what it shows."""

    command: str
    """Command line as it is typed."""
    findings: tuple[tuple[str, str], ...]
    """Pairs of what the command shows, and what to do then."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    severity: Severity
    summary: str
    """One sentence. It may have Prometheus' templates."""
    expr: str
    """PromQL. Every metric in it begins with `penstock_`."""
    meaning: str
    """What is wrong, whom it concerns, and when the alert stays silent."""
    steps: tuple[Step, ...]
    pending_minutes: int = 0
    """Minutes for which the expression must hold."""

    @property
    def query(self) -> str:
        """The PromQL without indentation."""
        return dedent(self.expr).strip()

    @property
    def runbook(self) -> str:
        """The runbook as plain text, as an annotation has it."""
        lines = [self.meaning]
        for step in self.steps:
            lines.append(f"Type: {step.command}")
            lines += [f"- {shown} -> {action}" for shown, action in step.findings]
        return "\n".join(lines)
