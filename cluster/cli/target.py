"""What all commands that call a router share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console


@dataclass(slots=True)
class Outcome:
    """Is the exit status of a command."""

    status: int = 0


@contextmanager
def report_call_errors(console: Console, target: str) -> Iterator[Outcome]:
    """Print a failed call as one line and set the exit status, instead of a traceback."""
    from router.client import InvalidArgumentError, PenstockClientError, UnavailableError

    outcome = Outcome()
    try:
        yield outcome
    except InvalidArgumentError as error:
        outcome.status = 2
        for violation in error.violations:
            console.print(f"[red]penstock:[/] {violation.field}: {violation.description}", highlight=False)
        if not error.violations:
            console.print(f"[red]penstock:[/] {error}", highlight=False)
    except UnavailableError as error:
        outcome.status = 1
        console.print(f"[red]penstock:[/] {target} is not available: {error}", highlight=False)
    except PenstockClientError as error:
        outcome.status = 1
        console.print(f"[red]penstock:[/] {error}", highlight=False)
