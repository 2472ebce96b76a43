"""Decisions keep their numbers, and index, bodies and references agree."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "DECISIONS.md"
BODIES = sorted(ROOT.glob("*/DECISIONS.md"))
ROOMS = [path.parent for path in BODIES]
DOCUMENTS = sorted(
    {*ROOT.glob("*.md"), *(page for room in ROOMS for page in room.rglob("*.md") if "node_modules" not in page.parts)}
)
MOST_WORDS = 14
"""Words of a title, which is also the line in the index."""

ROW = re.compile(r"^\| \[(\d+)\]\((\S+?)#(\S+)\) \| (.+?) \| (\S+) \| (\S+) \| (.+?) \|$", re.MULTILINE)
BODY = re.compile(r"^## (\d+)\. (.+)\n\n(\S+) · (.+)\n(?:\n|\Z)", re.MULTILINE)
STATUS = re.compile(r"holds|replaced by \[(\d+)\]\(\S+\)")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*?)#([^)\s]+)\)")
SPOKEN = re.compile(r"\bdecisions?\s+(\d{1,3}\b(?:(?:,\s*|\s+and\s+)\d{1,3}\b)*)", re.IGNORECASE)
"""A decision, or several of them, named in running text."""


@dataclass(frozen=True)
class Decision:
    """What the index and the body of a decision both say."""

    number: int
    title: str
    room: str
    date: str
    status: str
    anchor: str

    @property
    def successor(self) -> int | None:
        """Number of the decision that replaced this one."""
        match = STATUS.fullmatch(self.status)
        return int(match[1]) if match and match[1] else None


def slug(heading: str) -> str:
    """Return the anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read_index() -> list[Decision]:
    """Return the rows of the index; the room is the linked one."""
    rows = ROW.findall(INDEX.read_text(encoding="utf-8"))
    return [
        Decision(int(number), title, room if page == f"{room}/DECISIONS.md" else page, when, status, anchor)
        for number, page, anchor, title, room, when, status in rows
    ]


def read_bodies(path: Path) -> list[Decision]:
    """Return the decisions of one room."""
    found = BODY.findall(path.read_text(encoding="utf-8"))
    return [
        Decision(int(number), title, path.parent.name, when, status, slug(f"{number}. {title}"))
        for number, title, when, status in found
    ]


def anchors() -> dict[Path, set[str]]:
    """Return the anchors of all decisions by file."""
    return {path: {decision.anchor for decision in read_bodies(path)} for path in BODIES}


def links(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield text, target file and anchor of every link to a decision."""
    for text, page, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        target = Path(os.path.normpath(path.parent / page)) if page else path
        if target in BODIES:
            yield text, target, anchor


INDEXED = read_index()
WRITTEN = [decision for path in BODIES for decision in read_bodies(path)]


def plain(decision: Decision) -> Decision:
    """Return a decision whose status has no link, as links differ by place."""
    status = re.sub(r"\[(\d+)\]\(\S+\)", r"\1", decision.status)
    return Decision(decision.number, decision.title, decision.room, decision.date, status, decision.anchor)


def test_every_number_is_given_once_and_none_is_missing() -> None:
    expected = list(range(1, len(WRITTEN) + 1))
    assert expected == [decision.number for decision in INDEXED]
    assert expected == sorted(decision.number for decision in WRITTEN)


@pytest.mark.parametrize("path", BODIES, ids=name)
def test_every_heading_of_a_room_is_a_decision_in_order(path: Path) -> None:
    headings = re.findall(r"^##+ (\d*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    numbers = [decision.number for decision in read_bodies(path)]
    assert sorted(numbers) == numbers
    assert [str(number) for number in numbers] == headings


def test_every_row_of_the_index_is_a_decision() -> None:
    rows = [line for line in INDEX.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(INDEXED) + 2 == len(rows)


def test_index_and_bodies_agree() -> None:
    written = {decision.number: plain(decision) for decision in WRITTEN}
    assert [] == [plain(each) for each in INDEXED if plain(each) != written.get(each.number)]


def test_titles_are_short_and_dates_follow_the_numbers() -> None:
    assert [] == [each.title for each in INDEXED if len(each.title.split()) > MOST_WORDS]
    dates = [date.fromisoformat(each.date) for each in INDEXED]
    assert sorted(dates) == dates


def test_every_decision_holds_or_names_a_later_one_that_holds() -> None:
    replaced = {each.number: each.successor for each in WRITTEN if each.status != "holds"}
    in_force = {each.number for each in WRITTEN if each.status == "holds"}
    assert replaced
    assert {} == {
        number: later for number, later in replaced.items() if later is None or later < number or later not in in_force
    }


def test_what_replaces_a_decision_tells_of_it() -> None:
    targets = {path.parent.name: {anchor for _, _, anchor in links(path)} for path in BODIES}
    rooms = {each.number: each.room for each in WRITTEN}
    assert [] == [
        each.number
        for each in WRITTEN
        if each.successor is not None and each.anchor not in targets[rooms[each.successor]]
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_to_decisions_resolve(path: Path) -> None:
    known = anchors()
    for text, target, anchor in links(path):
        assert anchor in known[target], f"{text} of {name(path)}"
        number = re.fullmatch(r"(?:decisions? )?(\d+)", text, re.IGNORECASE)
        assert number is None or anchor.startswith(f"{number[1]}-"), f"{text} of {name(path)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_decisions_that_are_named_exist(path: Path) -> None:
    """In the decisions themselves every one that is named is also a link."""
    text = path.read_text(encoding="utf-8")
    if path in BODIES:
        assert [] == SPOKEN.findall(LINK.sub("", text))
    named = {int(number) for spoken in SPOKEN.findall(text) for number in re.findall(r"\d+", spoken)}
    assert set() == named - {decision.number for decision in WRITTEN}
