"""Result of one check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Health(enum.StrEnum):
    """Verdict of a check."""

    OK = "ok"
    WARN = "warn"
    """The cluster runs, and something is worse than it could be."""
    BAD = "bad"
    """The cluster does not start, or loses what it promises to keep."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report."""

    subject: str
    """What was checked, such as "redis persistence"."""
    health: Health
    text: str
    """What was found."""
    remedy: str = ""
    """What to do about it; empty where nothing is to be done."""


def ok(subject: str, text: str) -> DoctorFinding:
    return DoctorFinding(subject, Health.OK, text)


def warn(subject: str, text: str, remedy: str = "") -> DoctorFinding:
    return DoctorFinding(subject, Health.WARN, text, remedy)


def bad(subject: str, text: str, remedy: str = "") -> DoctorFinding:
    return DoctorFinding(subject, Health.BAD, text, remedy)


def exit_status(findings: Iterable[DoctorFinding]) -> int:
    """Return 1 where anything is bad, else 0."""
    return int(any(each.health is Health.BAD for each in findings))
