"""Parts of a router with which jobs and files are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cluster.settings import JobsSettings
from penstock.models import FieldViolation, StructuredOutput
from router.jobs.stores import JobStores
from router.validation import RequestLimits


@dataclass(frozen=True, slots=True)
class JobTools:
    """Parts that all uploads share."""

    stores: JobStores
    settings: JobsSettings
    limits: RequestLimits
    nudge: Callable[[str], None]
    """Called with the pool of every job that was opened here."""
    constraint_problem: Callable[[str, StructuredOutput], Awaitable[FieldViolation | None]]
    """Function that returns what a pool's engines refuse of a constraint; None where they follow it."""
