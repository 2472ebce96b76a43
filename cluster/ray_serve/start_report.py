"""Files in which a starting replica tells the process that waits for it how far it is, and why it failed.

A report is a few files with one base name, because several processes of an engine write: `.stage` is replaced by
whoever is furthest, `.cause` belongs to the first process that fails, `.failure` to the replica.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PENSTOCK_START_REPORT"
"""Variable with a report's base name, which the engine's processes inherit."""
FOLDER = "starts"
"""Folder of the reports, beside the settings file of a local cluster."""
_FINAL = "final\n"
_LONGEST = 8_000
"""Most characters of a cause or failure."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A start that failed."""

    text: str
    final: bool
    """Whether another start would fail the same way."""


class StartReport:
    """Report of one start. Without a base name nothing is written. A file that can't be written is left out: the start
    itself is more important.
    """

    def __init__(self, base: Path | None) -> None:
        self._base = base

    @classmethod
    def of_process(cls) -> StartReport:
        """Return the report that this process inherited."""
        base = os.environ.get(VARIABLE)
        return cls(Path(base) if base else None)

    def stage(self, text: str) -> None:
        """Note what is being done."""
        self._write(".stage", text)

    def cause(self, text: str) -> None:
        """Note the first error; later ones follow from it and are dropped."""
        if self._base is None:
            return
        with suppress(OSError):
            self._base.parent.mkdir(parents=True, exist_ok=True)
            with self._file(".cause").open("x", encoding="utf-8") as file:
                file.write(text[:_LONGEST])

    def first_cause(self) -> str:
        """Return the first error that was noted; empty without one."""
        return "" if self._base is None else _read(self._file(".cause"))

    def fail(self, failure: Failure) -> None:
        """Note the end of a start that failed."""
        self._write(".failure", f"{_FINAL if failure.final else ''}{failure.text[:_LONGEST]}")
        self._remove(".stage")

    def clear(self) -> None:
        """Remove the report."""
        for suffix in (".stage", ".cause", ".failure"):
            self._remove(suffix)

    def _remove(self, suffix: str) -> None:
        if self._base is not None:
            with suppress(OSError):
                self._file(suffix).unlink()

    def _file(self, suffix: str) -> Path:
        assert self._base is not None  # noqa: S101 - checked by the callers
        return self._base.with_name(self._base.name + suffix)

    def _write(self, suffix: str, text: str) -> None:
        if self._base is None:
            return
        target = self._file(suffix)
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)


def report_base(settings_file: str, pool: str, replica: str) -> Path | None:
    """Return the base name of a replica's report; None for a replica without a settings file, for which no process
    waits.
    """
    return Path(settings_file).parent / FOLDER / f"{pool}@{replica}" if settings_file else None


def stages(folder: Path, pool: str) -> list[str]:
    """Return what the pool's starting replicas do; without repetitions."""
    return list(dict.fromkeys(text for text in map(_read, sorted(folder.glob(f"{pool}@*.stage"))) if text))


def failures(folder: Path, pool: str) -> Iterator[Failure]:
    """Return the pool's failed starts, the oldest first."""
    for file in sorted(folder.glob(f"{pool}@*.failure"), key=_written_at):
        text = _read(file)
        yield Failure(text.removeprefix(_FINAL), text.startswith(_FINAL))


def forget(folder: Path, pool: str) -> None:
    """Remove all reports of a pool."""
    for file in folder.glob(f"{pool}@*"):
        with suppress(OSError):
            file.unlink()


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
