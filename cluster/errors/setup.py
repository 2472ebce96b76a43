"""Errors in settings and environment, found before anything serves."""

from __future__ import annotations

from cluster.errors.root import PenstockError


class SetupError(PenstockError):
    """Fault in settings or environment."""

    reason = "SETUP"
    remedy = "Correct what the message names."


class SettingsError(SetupError):
    """A setting that is unknown, missing or out of range."""

    reason = "SETTINGS"
    remedy = "Correct the setting that the message names. The settings reference has its range."


class BootstrapError(SetupError):
    """A component of a local cluster that did not start, or has ended."""

    reason = "BOOTSTRAP"
    remedy = "Correct what the message names; it quotes the component's log."

    def __init__(self, component: str, detail: str, *, ended: bool = False) -> None:
        """`ended`: whether the component had started before."""
        self.component = component
        self.detail = detail
        super().__init__(f"{component} {'ended' if ended else 'did not start'}: {detail}")


class FetchGivenUpError(SetupError):
    """A download that made no progress for too long. Another start goes on where it ended."""

    reason = "FETCH_GIVEN_UP"
    remedy = "Look at the hub's status and at limits of its token, and start the download again; it goes on."

    def __init__(self, what: str, tries: int, waited_s: float, last: str) -> None:
        self.what = what
        self.tries = tries
        self.waited_s = waited_s
        self.last = last
        super().__init__(f"{what}: no progress in {tries} tries over {waited_s:.0f} s; the last error was {last}")


class TraceError(SetupError):
    """A trace file that has no known format or has a wrong value."""

    reason = "TRACE"
    remedy = "Correct the line and field of the file that the message names."

    def __init__(self, file: str, line: int, field: str, problem: str) -> None:
        """`line`: 1 is the first, 0 is the file as a whole. `field`: empty where no single field is wrong."""
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem
        where = ": ".join(part for part in (file, f"line {line}" if line else "", field) if part)
        super().__init__(f"{where}: {problem}")


def plain_reason(error: Exception) -> str:
    """Return why a file could not be read, for a message that names it: Python's own text repeats the name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
