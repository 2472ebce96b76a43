"""Tests that failed by a time-out and passed when they ran again: which are known, and when they are too many."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from tests.support.notes import Note

TOO_MANY = 3
"""Flakes in one run; so many are no chance."""


@dataclass(frozen=True)
class Known:
    """An entry of tests/flaky.toml."""

    test: str
    """Its name as pytest prints it."""
    first_seen: date
    expires: date


def load_known(file: Path) -> tuple[Known, ...]:
    """Read the known flakes.

    Raises:
        ValueError: an entry lacks a field, has another one, or names a test again.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("flaky", [])
    known = []
    for entry in entries:
        if set(entry) != {"test", "first_seen", "expires"} or not all(
            isinstance(entry[name], date) for name in ("first_seen", "expires")
        ):
            raise ValueError(f"{file}: an entry has a test and the dates first_seen and expires, not {entry}")
        known.append(Known(**entry))
    names = [each.test for each in known]
    if len(set(names)) != len(names):
        raise ValueError(f"{file}: a test is listed twice")
    return tuple(known)


def faults(flakes: list[str], known: tuple[Known, ...], today: date) -> list[str]:
    """Return why a run is red although everything passed in the end; empty when it is not."""
    listed = {each.test: each for each in known}
    found = [
        f"{each.test}: its entry in tests/flaky.toml expired on {each.expires}; mend what makes it fail"
        for each in known
        if each.expires < today
    ]
    found += [
        f"{name}: failed by a time-out again; first seen {listed[name].first_seen}" for name in flakes if name in listed
    ]
    if len(flakes) >= TOO_MANY:
        found.append(f"{len(flakes)} tests failed by a time-out and passed alone; {TOO_MANY} are too many for chance")
    return found


def record(folder: Path, test: str, failures: list[Note], when: datetime) -> Path:
    """Write the tracebacks of a flake's first failure into a file of its own; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", test.removeprefix("tests/")).strip("-")[:150]
    file = folder / f"{name}.{when:%Y%m%dT%H%M%S}.txt"
    parts = [f"{test}\n{when.isoformat(timespec='seconds')}: failed by a time-out, passed alone\n"]
    parts += [f"--- {each.phase}, {each.seconds} s\n{each.text}\n" for each in failures]
    file.write_text("\n".join(parts), encoding="utf-8")
    return file
