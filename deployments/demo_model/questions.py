"""The questions and answers that the demo model knows, read from `questions.jsonl`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

QUESTIONS_FILE = Path(__file__).parent / "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer, with the canonical wording of its question and further wordings."""

    question: str
    answer: str
    variants: tuple[str, ...]

    @property
    def wordings(self) -> tuple[str, ...]:
        """All wordings of the question, the canonical one first."""
        return (self.question, *self.variants)


def load_entries(path: Path = QUESTIONS_FILE) -> tuple[Entry, ...]:
    """Read all entries in file order.

    Raises:
        ValueError: two entries share a wording.
    """
    entries = []
    seen: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        entry = Entry(record["question"], record["answer"], tuple(record.get("variants", ())))
        for wording in entry.wordings:
            if wording.lower() in seen:
                raise ValueError(f"two entries in {path.name} ask {wording!r}")
            seen.add(wording.lower())
        entries.append(entry)
    return tuple(entries)
