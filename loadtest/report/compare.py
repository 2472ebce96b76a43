"""The comparison of two runs, figure by figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError, plain_reason
from loadtest.report.document import Grid
from loadtest.report.units import shown_time

_EQUAL = 0.005
"""Relative difference below which two values count as equal."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of two runs."""

    name: str
    here: float | None
    there: float | None
    form: str
    """Format of the value, such as `,.1f`, or `time` for seconds. A part with `%` changes by points, anything else by a
    part of itself.
    """
    unit: str = ""
    more_is_better: bool | None = False
    """None where neither is."""

    def cells(self) -> tuple[str, str, str, str]:
        return self.name, self._shown(self.here), self._shown(self.there), self._change()

    @property
    def worse(self) -> bool:
        """Whether this run is worse than the other one."""
        return self._verdict() == "worse"

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.form == "time":
            return shown_time(value)
        return f"{value:{self.form}} {self.unit}".strip().replace("%", " %")

    def _change(self) -> str:
        if self.here is None or self.there is None:
            return "-"
        if self._verdict() == "equal":
            return "equal"
        if self.form.endswith("%"):
            change = f"{100 * (self.here - self.there):+.2f} points"
        elif not self.there:
            return self._verdict()
        else:
            change = f"{self.here / self.there - 1:+.0%}".replace("%", " %")
        return f"{change}, {word}" if (word := self._verdict()) else change

    def _verdict(self) -> str:
        if self.here is None or self.there is None:
            return ""
        if abs(self.here - self.there) <= _EQUAL * max(abs(self.here), abs(self.there)) * (
            0.02 if self.form.endswith("%") else 1
        ):
            return "equal"
        if self.more_is_better is None:
            return ""
        return "better" if (self.here > self.there) is self.more_is_better else "worse"


def comparison(measures: Sequence[Measure], other: str) -> Grid:
    """Return the table of a comparison. `other` names the other run."""
    bad = frozenset((row, 3) for row, each in enumerate(measures) if each.worse)
    return Grid(("", "this run", other, "this run is"), [each.cells() for each in measures], words=(3,), bad=bad)


def read_report(name: str, needs: Sequence[str], what: str) -> dict[str, Any]:
    """Read the JSON of another run.

    Args:
        name: the file.
        needs: fields that it must have.
        what: what it must be a report of, in words.

    Raises:
        SettingsError: it cannot be read, or is no such report.
    """
    try:
        found = json.loads(Path(name).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"compare: {name} cannot be read: {plain_reason(error)}") from error
    missing = [field for field in needs if not isinstance(found, dict) or field not in found]
    if missing:
        raise SettingsError(f"compare: {name} must be the JSON of {what}; it has no {', '.join(missing)}")
    report: dict[str, Any] = found
    return report
